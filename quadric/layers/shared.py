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

from quadric.functional import check_rank
from quadric.layers.eigenvalue_init import EigenvalueInit, check_eigenvalue_init, eigenvalues_
from quadric.layers.neuron_layer import NeuronLayer
from quadric.layers.registry import Rule, register
from quadric.ops import add_squares, reference
from quadric.ops.blocks import Blocks, shared_blocks, square_blocks


@dataclass(frozen=True)
class _Mixing(Rule):
    """z + S z^2 with full blocks: what shared and square have in common."""

    quadratic = ("eigenvalues",)
    switches = ("eigenvalues",)

    def blocks(self, outputs: int, groups: int) -> Blocks:
        """Where each eigenvalue of a layer stands."""
        raise NotImplementedError

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        count = self.blocks(layer.num_outputs, layer.linear_op.groups).num_eigenvalues
        return super().shapes(layer, bias) | {"eigenvalues": (count,)}

    def start_(self, layer: NeuronLayer, init: str) -> None:
        eigenvalues_(layer.parameter("eigenvalues"), "zeros")

    def _forward(self, layer: NeuronLayer, input: Tensor, recompute: bool) -> Tensor:
        linear_op = layer.linear_op
        blocks = self.blocks(layer.num_outputs, linear_op.groups)
        eigenvalues = layer.parameter("eigenvalues")
        return add_squares(
            linear_op, blocks, input, layer.weight, layer.bias, eigenvalues, recompute
        )

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        return self._forward(layer, input, recompute=False)

    def responses(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        linear_op = layer.linear_op
        z = linear_op(input, layer.weight, layer.bias)
        blocks = self.blocks(layer.num_outputs, linear_op.groups)
        eigenvalues = layer.parameter("eigenvalues")
        mixed = reference.quadratic_part(z, eigenvalues, blocks, linear_op.channel_dim)
        return z, mixed.to(z.dtype)

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        return outputs * (n + bias) + self.blocks(outputs, groups).num_eigenvalues

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        squares = self.blocks(outputs, groups).num_eigenvalues + outputs
        return positions * (outputs * n + squares)


@register(
    "square",
    paper="baseline",
    formula="z + a z^2, z = w'x + b",
    params="n + 1",
    macs="n + 2",
    note="the ablation of the mixing: each output has only its own square",
)
@dataclass(frozen=True)
class Square(_Mixing):
    """z + a z^2: the diagonal of the shared neuron."""

    def blocks(self, outputs: int, groups: int) -> Blocks:
        return square_blocks(outputs)


@register(
    "shared",
    paper="Quadric",
    formula="z_i + sum_j L_ij z_j^2, z = Wx + b, j over the k outputs of i's group",
    params="n + k",
    macs="n + k + 1",
    note="exact for full groups; a last group of s outputs has s^2 eigenvalues",
)
@dataclass(frozen=True)
class Shared(_Mixing):
    """Every output of a group is a quadratic neuron over the same eigenvectors.

    `rank` is the size of a group. With `recompute` the linear map runs again in backward instead
    of keeping its output.
    """

    rank: int = 8
    recompute: bool = False
    eigenvalue_init: EigenvalueInit = "zeros"

    def __post_init__(self) -> None:
        check_rank(self.rank)
        check_eigenvalue_init(self.eigenvalue_init)

    def blocks(self, outputs: int, groups: int) -> Blocks:
        return shared_blocks(outputs, self.rank, groups)

    def start_(self, layer: NeuronLayer, init: str) -> None:
        start = "zeros" if init == "linear" else self.eigenvalue_init
        eigenvalues_(layer.parameter("eigenvalues"), start)

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        return self._forward(layer, input, self.recompute)
