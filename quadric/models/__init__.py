"""Networks of the experiments: plain torch modules, and `create`, which makes them quadratic.

A baseline and its quadratic network differ by one argument of `create`: the networks themselves
know nothing of quadratic neurons.
"""

from quadric.models.building import create as create
from quadric.models.registry import build as build
from quadric.models.registry import example_inputs as example_inputs
from quadric.models.registry import input_shape as input_shape
from quadric.models.registry import names as names
from quadric.models.registry import options as options
from quadric.models.size_to_budget import SizedNetwork as SizedNetwork
from quadric.models.size_to_budget import fit as fit
from quadric.models.trained import Weights as Weights
from quadric.models.trained import pretrained as pretrained
