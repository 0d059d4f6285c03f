"""Networks of the experiments: plain torch modules, and `create`, which makes them quadratic.

A baseline and its quadratic network differ by one argument of `create`: the networks themselves
know nothing of quadratic neurons.
"""

from quadric.models.building import create
from quadric.models.registry import build, example_inputs, input_shape, names, options
from quadric.models.size_to_budget import SizedNetwork, fit
from quadric.models.trained import Weights, pretrained

__all__ = [
    "SizedNetwork",
    "Weights",
    "build",
    "create",
    "example_inputs",
    "fit",
    "input_shape",
    "names",
    "options",
    "pretrained",
]
