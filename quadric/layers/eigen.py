"""The linear neuron, the paper's eigen neuron, and symmetric, which keeps its features inside.

Chen, Zhang, Yin, Zhuo, Schlichtmann and Li, "Computational and Storage Efficient Quadratic Neurons
for Deep Neural Networks", DATE 2024. An eigen neuron of rank k is `f = Q'x + b_f` (k features),
`y = w'x + b + sum_j lambda_j f_j^2`, output `[y, f_1 … f_k]`, neuron by neuron. Departure: the
paper has no bias in its features; ours belongs to its channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quadric.layers.fused import fused
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, register, widened
from quadric.layers.parameters import draw_
from quadric.layers.squares import EigenvalueInit, Squares
from quadric.ops.blocks import Blocks, eigen_blocks


@register("linear", paper="-", formula="w'x + b", params="n", macs="n")
@dataclass(frozen=True)
class Linear(Neuron):
    """The ordinary neuron: torch's own layers."""

    @property
    def degree(self) -> int:
        return 1

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        return layer.linear_op(input, layer.weight, layer.bias)

    def is_linear(self, layer: QuadraticLayer) -> bool:
        return True

    def per_output(self, n: int) -> tuple[int, int]:
        return n, n


@register(
    "eigen",
    paper="Chen et al. 2024 (DATE), the paper",
    formula="[x'Q L Q'x + w'x + b, Q'x]",
    params="n + k/(k+1)",
    macs="n + 2k/(k+1)",
    printed_params="n + k/(k+1)",
    printed_macs="n + 2k/(k+1)",
    note="exact where the outputs fill whole neurons; a smaller last neuron has fewer eigenvalues",
)
@dataclass(frozen=True)
class Eigen(Squares):
    """The paper's neuron."""

    rank: int = 9
    eigenvalue_init: EigenvalueInit = "zeros"
    normalize: bool = False
    recompute: bool = False
    redraws = False

    def blocks(self, outputs: int, groups: int) -> Blocks:
        return eigen_blocks(outputs, self.rank, groups)

    def effective_eigenvalues(self, layer: QuadraticLayer) -> Tensor:
        """The eigenvalues that multiply f^2: with `normalize`, lambda / |q|^2."""
        eigenvalues = super().effective_eigenvalues(layer)
        return eigenvalues / self.unit_lengths(layer) if self.normalize else eigenvalues

    def unit_lengths(self, layer: QuadraticLayer) -> Tensor | float:
        """With `normalize` |q|^2; infinite for a filter of zeros, which has no direction."""
        if not self.normalize:
            return 1.0
        assert layer.blocks is not None
        filters = layer.linear_op.filters(layer.weight)[layer.blocks.features]
        lengths = filters.to(torch.promote_types(filters.dtype, torch.float32)).square().sum(1)
        return torch.where(
            lengths > 0, lengths.clamp_min(torch.finfo(lengths.dtype).tiny), torch.inf
        )


@register(
    "symmetric",
    paper="Chen et al. 2024, III-A without III-B",
    formula="x'Q L Q'x + w'x + b",
    params="(k+1)n + k",
    macs="(k+1)n + 2k",
    note="the ablation of the vectorised output: the features stay inside",
)
@dataclass(frozen=True)
class Symmetric(Neuron):
    """The eigen neuron that keeps its features to itself: every output has k filters of its own."""

    rank: int = 9
    quadratic = ("eigenvectors", "eigenvalues")
    switches = ("eigenvalues",)

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        outputs = layer.num_outputs
        eigenvectors = layer.weight_shape(outputs * self.rank)
        own = {"eigenvectors": eigenvectors, "eigenvalues": (outputs, self.rank)}
        return super().shapes(layer, bias) | own

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        draw_(layer.eigenvectors)
        nn.init.zeros_(layer.eigenvalues)

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        biases = [layer.bias, None]
        linear, features = fused(layer.linear_op, input, [layer.weight, layer.eigenvectors], biases)
        dim = linear.dim() + layer.linear_op.channel_dim
        f, lam = widened(features.unflatten(dim, (-1, self.rank))), layer.eigenvalues
        lam = lam.reshape(*lam.shape, *(1,) * (linear.dim() - dim - 1)).to(f.dtype)
        return linear, (f * f * lam).sum(dim + 1)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        linear, quadratic = self.responses(layer, input)
        return (linear.to(quadratic.dtype) + quadratic).to(linear.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return (self.rank + 1) * n + self.rank, (self.rank + 1) * n + 2 * self.rank
