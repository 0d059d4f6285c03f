"""Neurons z + S z^2 over z = Wx + b: what eigen, shared and square have in common.

Zero is the default start of the eigenvalues, the numbers in S: a fresh layer then computes exactly
what the linear layer computes, while their gradient, sum g_y f^2, is not zero, so they learn from
the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, widened
from quadric.ops import add_squares, reference
from quadric.ops.blocks import Blocks

EigenvalueInit = str | Callable[[Tensor], object]


def random_sign_(eigenvalues: Tensor, magnitude: float = 0.1) -> Tensor:
    """Fills with `magnitude` times a random sign: curvature from the start, up and down alike."""
    with torch.no_grad():
        signs = torch.randint(0, 2, eigenvalues.shape, device=eigenvalues.device)
        return eigenvalues.copy_((2 * signs - 1) * magnitude)


_STARTS: dict[str, Callable[[Tensor], object]] = {
    "zeros": nn.init.zeros_,
    "random_sign": random_sign_,
}


@dataclass(frozen=True)
class Squares(Neuron):
    """Abstract: z + S z^2, where `blocks` says where the eigenvalues stand in S."""

    quadratic = ("eigenvalues",)
    switches = ("eigenvalues",)

    def __post_init__(self) -> None:
        super().__post_init__()
        start = getattr(self, "eigenvalue_init", "zeros")
        if not (callable(start) or (isinstance(start, str) and start in _STARTS)):
            raise InputError(
                f"eigenvalue_init must be one of {', '.join(map(repr, _STARTS))} or a function "
                f"that fills a tensor in place, got {start!r}: choose one of these"
            )

    def blocks(self, outputs: int, groups: int) -> Blocks:
        """Where each eigenvalue of a layer stands."""
        raise NotImplementedError

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        assert layer.blocks is not None
        return super().shapes(layer, bias) | {"eigenvalues": (layer.blocks.num_eigenvalues,)}

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        start = "zeros" if init == "linear" else getattr(self, "eigenvalue_init", "zeros")
        with torch.no_grad():
            (_STARTS[start] if isinstance(start, str) else start)(layer.eigenvalues)

    def effective_eigenvalues(self, layer: QuadraticLayer) -> Tensor:
        own = layer._parameters
        eigenvalues: Any = own["eigenvalues"] if "eigenvalues" in own else layer.eigenvalues
        scale = layer._buffers["eigenvalue_scale"]
        effective: Tensor = eigenvalues if scale is None else eigenvalues * scale
        return effective

    def unit_lengths(self, layer: QuadraticLayer) -> Tensor | float:
        """What each square is divided by."""
        return 1.0

    def measured_scale(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        """The scale at which a step of the eigenvalues changes the outputs as one of a weight does.

        An optimizer such as Adam moves every number by about its rate. An eigenvalue counts times
        the square of a feature, so the scale is the spread of the outputs over the mean square of
        the features, and a third of that for safety. Squares are all positive, and an optimizer
        first moves the k eigenvalues of an output alike: they add up to k. 0 where the batch says
        nothing.
        """
        blocks = layer.blocks
        assert blocks is not None
        z = layer.linear_op(input, layer.weight, layer.bias)
        z = widened(z.movedim(layer.linear_op.channel_dim, 0).reshape(layer.num_outputs, -1))
        _, features = blocks.places(z.device)
        squares = (z.square().mean(1)[features] / self.unit_lengths(layer)).mean()
        spread: Tensor = z.var(1, correction=0).mean().sqrt()
        most = max(blocks.sizes, default=1) - (blocks.shape == "star")
        scale: Tensor = spread / (3 * max(most, 1) * squares)
        return scale.nan_to_num(0, 0, 0)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        blocks = layer.blocks
        assert blocks is not None
        # A module looks for a parameter in other places first, which takes as long as a small sum.
        own = layer._parameters
        weight: Any = own["weight"] if "weight" in own else layer.weight  # parametrized
        bias = own["bias"] if "bias" in own else layer.bias
        eigenvalues, recompute = (
            self.effective_eigenvalues(layer),
            getattr(self, "recompute", False),
        )
        return add_squares(layer.linear_op, blocks, input, weight, bias, eigenvalues, recompute)

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        linear_op, blocks = layer.linear_op, layer.blocks
        assert blocks is not None
        z, dim = linear_op(input, layer.weight, layer.bias), linear_op.channel_dim
        # The squares are summed on their own: y minus its linear part would cancel.
        quadratic = reference.quadratic_part(z, self.effective_eigenvalues(layer), blocks, dim)
        if blocks.shape == "full":
            return z, quadratic
        heads, features = (
            torch.tensor(channels, dtype=torch.long, device=z.device)
            for channels in (blocks.heads, blocks.features)
        )
        return z.index_select(dim, heads), quadratic, z.index_select(dim, features)

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        return outputs * (n + bias) + self.blocks(outputs, groups).num_eigenvalues

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        blocks = self.blocks(outputs, groups)
        # f f lambda for each eigenvalue of a star; z z once, and then S, for full blocks.
        again = blocks.num_eigenvalues if blocks.shape == "star" else outputs
        return positions * (outputs * n + blocks.num_eigenvalues + again)
