"""Every published quadratic neuron with one interface."""

from quadric.zoo import eigen as _eigen
from quadric.zoo import full as _full
from quadric.zoo import gates as _gates
from quadric.zoo import kervolution as _kervolution
from quadric.zoo import products as _products
from quadric.zoo import shared as _shared
from quadric.zoo.layers import NeuronConv1d as NeuronConv1d
from quadric.zoo.layers import NeuronConv2d as NeuronConv2d
from quadric.zoo.layers import NeuronConv3d as NeuronConv3d
from quadric.zoo.layers import NeuronLayer as NeuronLayer
from quadric.zoo.layers import NeuronLinear as NeuronLinear
from quadric.zoo.layers import brings_activation as brings_activation
from quadric.zoo.make import layer_kind as layer_kind
from quadric.zoo.make import make_layer as make_layer
from quadric.zoo.registry import Neuron as Neuron
from quadric.zoo.registry import Rule as Rule
from quadric.zoo.registry import get_neuron as get_neuron
from quadric.zoo.registry import neurons as neurons
from quadric.zoo.registry import register as register
from quadric.zoo.registry import unregister as unregister

# Importing a family registers its neurons.
del _eigen, _full, _gates, _kervolution, _products, _shared
