"""The eigen neuron as drop-in layers."""

from quadric.nn.conv import QuadraticConv1d as QuadraticConv1d
from quadric.nn.conv import QuadraticConv2d as QuadraticConv2d
from quadric.nn.conv import QuadraticConv3d as QuadraticConv3d
from quadric.nn.conv import QuadraticConvTranspose1d as QuadraticConvTranspose1d
from quadric.nn.conv import QuadraticConvTranspose2d as QuadraticConvTranspose2d
from quadric.nn.conv import QuadraticConvTranspose3d as QuadraticConvTranspose3d
from quadric.nn.layer import QuadraticLayer as QuadraticLayer
from quadric.nn.linear import QuadraticLinear as QuadraticLinear
