"""A neuron of a user's own: z + a z^2."""

from dataclasses import dataclass

from torch import nn

import quadric


@quadric.layers.register(
    "bent", paper="mine", formula="z + a z^2, z = w'x + b", params="n + 1", macs="n + 2"
)
@dataclass(frozen=True)
class Bent(quadric.layers.Neuron):
    quadratic = switches = ("a",)

    def shapes(self, layer, bias):
        return super().shapes(layer, bias) | {"a": (layer.num_outputs,)}

    def start_(self, layer, init):
        nn.init.zeros_(layer.a)

    def forward(self, layer, input):
        z = layer.linear_op(input, layer.weight, layer.bias)
        return z + layer.along_channels(layer.a) * z * z

    def per_output(self, n):
        return n + 1, n + 2
