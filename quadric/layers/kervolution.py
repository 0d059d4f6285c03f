"""Kervolution with the polynomial kernel: (w'x + c)^p + b.

Wang et al., "Kervolutional Neural Networks", CVPR 2019.

The bias lies outside the power, as in the official code (some ports put it inside). Ours is one
convolution followed by a power; the originals unfold the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, register, widened


@register(
    "kervolution",
    paper="Wang et al. 2019",
    formula="(w'x + c)^p + b",
    params="n",
    macs="n + p - 1",
    note="c is a constant by default; learnable_c=True adds one parameter per output",
)
@dataclass(frozen=True)
class Kervolution(Neuron):
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

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes(layer, bias)
        return shapes | {"offset": (layer.num_outputs,)} if self.learnable_c else shapes

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        if self.learnable_c:
            nn.init.constant_(layer.offset, self.c)

    def _base(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, Tensor | float]:
        """The parts of the base: z = w'x, and c, shaped to broadcast."""
        z = layer.linear_op(input, layer.weight, None)
        if not self.learnable_c:
            return z, self.c
        return z, layer.along_channels(layer.offset.to(widened(z).dtype))

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        z, c = self._base(layer, input)
        return layer.with_bias((widened(z) + c).pow(self.p)).to(z.dtype)

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        z, c = self._base(layer, input)
        x = widened(z)
        linear = self.p * c ** (self.p - 1) * x + c**self.p
        return layer.with_bias(linear).to(z.dtype), (x + c).pow(self.p) - linear

    def per_output(self, n: int) -> tuple[int, int]:
        return n + self.learnable_c, n + self.p - 1
