"""Layers of quadratic neurons, one interface for all of them, and the registry."""

from quadric.layers import eigen_rule as _eigen
from quadric.layers import full as _full
from quadric.layers import gates as _gates
from quadric.layers import kervolution as _kervolution
from quadric.layers import products as _products
from quadric.layers import shared as _shared
from quadric.layers.attention import QuadraticMultiheadAttention as QuadraticMultiheadAttention
from quadric.layers.conv import QuadraticConv1d as QuadraticConv1d
from quadric.layers.conv import QuadraticConv2d as QuadraticConv2d
from quadric.layers.conv import QuadraticConv3d as QuadraticConv3d
from quadric.layers.conv import QuadraticConvTranspose1d as QuadraticConvTranspose1d
from quadric.layers.conv import QuadraticConvTranspose2d as QuadraticConvTranspose2d
from quadric.layers.conv import QuadraticConvTranspose3d as QuadraticConvTranspose3d
from quadric.layers.eigen import EigenLayer as EigenLayer
from quadric.layers.layer import ConvGeometry as ConvGeometry
from quadric.layers.layer import ConvTransposeGeometry as ConvTransposeGeometry
from quadric.layers.layer import LinearGeometry as LinearGeometry
from quadric.layers.layer import QuadraticLayer as QuadraticLayer
from quadric.layers.layer import check_size as check_size
from quadric.layers.linear import QuadraticLinear as QuadraticLinear
from quadric.layers.make import layer_kind as layer_kind
from quadric.layers.make import make_layer as make_layer
from quadric.layers.neuron_layer import NeuronConv1d as NeuronConv1d
from quadric.layers.neuron_layer import NeuronConv2d as NeuronConv2d
from quadric.layers.neuron_layer import NeuronConv3d as NeuronConv3d
from quadric.layers.neuron_layer import NeuronLayer as NeuronLayer
from quadric.layers.neuron_layer import NeuronLinear as NeuronLinear
from quadric.layers.neuron_layer import brings_activation as brings_activation
from quadric.layers.neuron_layer import check_start as check_start
from quadric.layers.registry import Neuron as Neuron
from quadric.layers.registry import Rule as Rule
from quadric.layers.registry import get_neuron as get_neuron
from quadric.layers.registry import neurons as neurons
from quadric.layers.registry import register as register
from quadric.layers.registry import unregister as unregister
from quadric.layers.table import neuron_facts as neuron_facts
from quadric.layers.table import neuron_table as neuron_table

# Importing a family registers its neurons.
del _eigen, _full, _gates, _kervolution, _products, _shared

__all__ = [
    "Neuron",
    "NeuronConv1d",
    "NeuronConv2d",
    "NeuronConv3d",
    "NeuronLayer",
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
    "Rule",
    "brings_activation",
    "get_neuron",
    "layer_kind",
    "make_layer",
    "neurons",
    "register",
    "unregister",
]
