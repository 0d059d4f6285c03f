"""Layers of quadratic neurons, one interface for all of them, and the registry."""

from quadric.layers import eigen as _eigen
from quadric.layers import full as _full
from quadric.layers import gates as _gates
from quadric.layers import kervolution as _kervolution
from quadric.layers import products as _products
from quadric.layers import shared as _shared
from quadric.layers.attention import QuadraticMultiheadAttention as QuadraticMultiheadAttention
from quadric.layers.conv import NeuronConv as NeuronConv
from quadric.layers.conv import NeuronConv1d as NeuronConv1d
from quadric.layers.conv import NeuronConv2d as NeuronConv2d
from quadric.layers.conv import NeuronConv3d as NeuronConv3d
from quadric.layers.conv import NeuronConvTranspose as NeuronConvTranspose
from quadric.layers.conv import NeuronConvTranspose1d as NeuronConvTranspose1d
from quadric.layers.conv import NeuronConvTranspose2d as NeuronConvTranspose2d
from quadric.layers.conv import NeuronConvTranspose3d as NeuronConvTranspose3d
from quadric.layers.conv import QuadraticConv1d as QuadraticConv1d
from quadric.layers.conv import QuadraticConv2d as QuadraticConv2d
from quadric.layers.conv import QuadraticConv3d as QuadraticConv3d
from quadric.layers.conv import QuadraticConvTranspose1d as QuadraticConvTranspose1d
from quadric.layers.conv import QuadraticConvTranspose2d as QuadraticConvTranspose2d
from quadric.layers.conv import QuadraticConvTranspose3d as QuadraticConvTranspose3d
from quadric.layers.layer import QuadraticLayer as QuadraticLayer
from quadric.layers.linear import NeuronLinear as NeuronLinear
from quadric.layers.linear import QuadraticLinear as QuadraticLinear
from quadric.layers.make import brings_activation as brings_activation
from quadric.layers.make import layer_kind as layer_kind
from quadric.layers.make import make_layer as make_layer
from quadric.layers.neuron import Neuron as Neuron
from quadric.layers.neuron import get_neuron as get_neuron
from quadric.layers.neuron import neurons as neurons
from quadric.layers.neuron import register as register
from quadric.layers.neuron import unregister as unregister
from quadric.layers.table import neuron_facts as neuron_facts
from quadric.layers.table import neuron_table as neuron_table

# Importing a family registers its neurons.
del _eigen, _full, _gates, _kervolution, _products, _shared

__all__ = [
    "Neuron",
    "NeuronConv1d",
    "NeuronConv2d",
    "NeuronConv3d",
    "NeuronConvTranspose1d",
    "NeuronConvTranspose2d",
    "NeuronConvTranspose3d",
    "NeuronLinear",
    "QuadraticConv1d",
    "QuadraticConv2d",
    "QuadraticConv3d",
    "QuadraticConvTranspose1d",
    "QuadraticConvTranspose2d",
    "QuadraticConvTranspose3d",
    "QuadraticLayer",
    "QuadraticLinear",
    "QuadraticMultiheadAttention",
    "brings_activation",
    "get_neuron",
    "layer_kind",
    "make_layer",
    "neurons",
    "register",
    "unregister",
]
