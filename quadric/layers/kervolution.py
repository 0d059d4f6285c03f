"""Kervolution with the polynomial kernel: (w'x + c)^p + b.

Wang et al., "Kervolutional Neural Networks", CVPR 2019.

The bias lies outside the power, as in the official code (some ports put it inside). Ours is one
convolution followed by a power; the originals unfold the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.neuron_layer import NeuronLayer
from quadric.layers.registry import Rule, along_channels, register, squared_dtype


@register(
    "kervolution",
    paper="Wang et al. 2019",
    formula="(w'x + c)^p + b",
    params="n",
    macs="n + p - 1",
    note="c is a constant by default; learnable_c=True adds one parameter per output",
)
@dataclass(frozen=True)
class Kervolution(Rule):
    """(w'x + c)^p + b. It cannot represent a linear layer."""

    p: int = 3
    c: float = 1.0
    learnable_c: bool = False
    starts = ("published",)
    quadratic = ("offset",)

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, int) or self.p < 2:
            raise InputError(f"p must be an integer >= 2, got {self.p!r}: the published power is 3")

    @property
    def degree(self) -> int:
        return self.p

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes(layer, bias)
        return shapes | {"offset": (layer.num_outputs,)} if self.learnable_c else shapes

    def start_(self, layer: NeuronLayer, init: str) -> None:
        if self.learnable_c:
            nn.init.constant_(layer.parameter("offset"), self.c)

    def _parts(
        self, layer: NeuronLayer, input: Tensor
    ) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """The parts z = w'x, c, and b, shaped to broadcast."""
        linear_op = layer.linear_op
        z = linear_op(input, layer.weight, None)
        dim = linear_op.channel_dim
        dtype = squared_dtype(z).dtype
        c: Tensor | float = self.c
        if self.learnable_c:
            c = along_channels(layer.parameter("offset").to(dtype), dim)
        b = along_channels(layer.bias.to(dtype), dim) if layer.bias is not None else 0.0
        return z, c, b

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        z, c, b = self._parts(layer, input)
        return ((squared_dtype(z) + c).pow(self.p) + b).to(z.dtype)

    def responses(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        z, c, b = self._parts(layer, input)
        x = squared_dtype(z)
        linear = self.p * c ** (self.p - 1) * x + c**self.p
        return (linear + b).to(z.dtype), ((x + c).pow(self.p) - linear).to(z.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return n + self.learnable_c, n + self.p - 1
