"""The shared neuron: our step beyond the paper.

The paper lets one output in k+1 be quadratic and hands its features on. But the features are there
for all: here each of the k outputs of a group has its own row of eigenvalues over the group's k
features, `z_i + sum_j L_ij z_j^2` with `z = Wx + b`. Every output is then a rank-k quadratic
neuron, M_i = Q diag(L_i) Q', and the group shares its eigenvectors Q, which are the filters
themselves. Eigen is L with only its first row (and no own square), square is its diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quadric._autograd import map_with_squares
from quadric._joined import map_with_norm
from quadric._squares import SharedSquares
from quadric.functional import check_rank
from quadric.init import EigenvalueInit, check_eigenvalue_init, eigenvalues_
from quadric.zoo.layers import NeuronLayer
from quadric.zoo.registry import Rule, register


@register(
    "shared",
    paper="Quadric",
    formula="z_i + sum_j L_ij z_j^2, z = Wx + b, j over the k outputs of i's group",
    params="n + k",
    macs="n + k + 1",
    note="exact for full groups; a last group of s outputs has s^2 eigenvalues",
)
@dataclass(frozen=True)
class Shared(Rule):
    """Every output of a group is a quadratic neuron over the same eigenvectors.

    `rank` is the size of a group, `recompute` computes the linear map again in backward instead of
    keeping its output.
    """

    rank: int = 8
    recompute: bool = False
    eigenvalue_init: EigenvalueInit = "zeros"
    quadratic = ("eigenvalues",)
    switches = ("eigenvalues",)

    def __post_init__(self) -> None:
        check_rank(self.rank)
        check_eigenvalue_init(self.eigenvalue_init)

    def _squares(self, layer: NeuronLayer) -> SharedSquares:
        linear_map = layer.linear_map
        return SharedSquares(self.rank, linear_map.channel_dim, linear_map.groups)

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        count = self._squares(layer).num_eigenvalues(layer.num_outputs)
        return super().shapes(layer, bias) | {"eigenvalues": (count,)}

    def start_(self, layer: NeuronLayer, init: str) -> None:
        start = "zeros" if init == "linear" else self.eigenvalue_init
        eigenvalues_(layer.parameter("eigenvalues"), start)

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        parts = (layer.weight, layer.bias, layer.parameter("eigenvalues"))
        squares = self._squares(layer)
        if layer.behind is not None:
            return map_with_norm(layer.linear_map, squares, input, *parts, layer.behind)
        return map_with_squares(layer.linear_map, squares, input, *parts, self.recompute)

    def responses(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        out = layer.linear_map(input, layer.weight, layer.bias)
        mixed = self._squares(layer).mixed(out, layer.parameter("eigenvalues"))
        return out, mixed.to(out.dtype)

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        squares = SharedSquares(self.rank, groups=groups)
        return outputs * (n + bias) + squares.num_eigenvalues(outputs)

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        squares = SharedSquares(self.rank, groups=groups)
        return positions * (outputs * n + squares.num_eigenvalues(outputs) + outputs)
