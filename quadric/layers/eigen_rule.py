"""The linear neuron, the paper's eigen neuron, and symmetric, which keeps its features inside.

Chen, Zhang, Yin, Zhuo, Schlichtmann and Li, "Computational and Storage Efficient Quadratic Neurons
for Deep Neural Networks", DATE 2024. The eigen layers themselves live in `quadric.layers`; here is
their row of the registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quadric.functional import check_rank
from quadric.layers.eigenvalue_init import EigenvalueInit, check_eigenvalue_init
from quadric.layers.neuron_layer import NeuronLayer
from quadric.layers.registry import Rule, draw_, register, squared_dtype
from quadric.ops.blocks import eigen_blocks


@register("linear", paper="-", formula="w'x + b", params="n", macs="n")
@dataclass(frozen=True)
class Linear(Rule):
    """The ordinary neuron: torch's own layers."""

    @property
    def degree(self) -> int:
        return 1

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
class Eigen(Rule):
    """The paper's neuron; its layers are those of `quadric.layers`."""

    rank: int = 9
    eigenvalue_init: EigenvalueInit = "zeros"
    normalize: bool = False
    recompute: bool = False
    quadratic = ("eigenvalues",)

    def __post_init__(self) -> None:
        check_rank(self.rank)
        check_eigenvalue_init(self.eigenvalue_init)

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        return outputs * (n + bias) + eigen_blocks(outputs, self.rank, groups).num_eigenvalues

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        squares = eigen_blocks(outputs, self.rank, groups).num_eigenvalues
        return positions * (outputs * n + 2 * squares)


@register(
    "symmetric",
    paper="Chen et al. 2024, III-A without III-B",
    formula="x'Q L Q'x + w'x + b",
    params="(k+1)n + k",
    macs="(k+1)n + 2k",
    note="the ablation of the vectorised output: the features stay inside",
)
@dataclass(frozen=True)
class Symmetric(Rule):
    """The eigen neuron that keeps its features to itself: every output has k filters of its own."""

    rank: int = 9
    quadratic = ("eigenvectors", "eigenvalues")
    switches = ("eigenvalues",)

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        outputs = layer.num_outputs
        return super().shapes(layer, bias) | {
            "eigenvectors": layer.weight_shape(outputs * self.rank),
            "eigenvalues": (outputs, self.rank),
        }

    def start_(self, layer: NeuronLayer, init: str) -> None:
        draw_(layer.parameter("eigenvectors"))
        nn.init.zeros_(layer.parameter("eigenvalues"))

    def _parts(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        eigenvectors, lam = layer.parameter("eigenvectors"), layer.parameter("eigenvalues")
        linear, features = layer.fused(input, [layer.weight, eigenvectors], [layer.bias, None])
        dim = linear.dim() + layer.linear_op.channel_dim
        f = squared_dtype(features.unflatten(dim, (-1, self.rank)))
        lam = lam.reshape(*lam.shape, *(1,) * (linear.dim() - dim - 1)).to(f.dtype)
        return linear, (f * f * lam).sum(dim + 1)

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        linear, quadratic = self._parts(layer, input)
        return (linear.to(quadratic.dtype) + quadratic).to(linear.dtype)

    def responses(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        linear, quadratic = self._parts(layer, input)
        return linear, quadratic.to(linear.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return (self.rank + 1) * n + self.rank, (self.rank + 1) * n + 2 * self.rank
