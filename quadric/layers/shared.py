"""The shared neuron: our step beyond the paper. The square neuron is its diagonal.

The paper lets one output in k+1 be quadratic and hands its features on. But the features are there
for all: here each of the k outputs of a group has its own row of eigenvalues over the group's k
features, `z_i + sum_j L_ij z_j^2` with `z = Wx + b`. Every output is then a rank-k quadratic
neuron, M_i = Q diag(L_i) Q', and the group shares its eigenvectors Q, which are the filters
themselves. Eigen is L with only its first row (and no own square), square is its diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

from quadric.layers.neuron import register
from quadric.layers.squares import EigenvalueInit, Squares
from quadric.ops.blocks import Blocks, shared_blocks, square_blocks


@register(
    "square",
    paper="baseline",
    formula="z + a z^2, z = w'x + b",
    params="n + 1",
    macs="n + 2",
    note="the ablation of the mixing: each output has only its own square",
)
@dataclass(frozen=True)
class Diagonal(Squares):
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
class Shared(Squares):
    """Every output of a group is a quadratic neuron over the same eigenvectors.

    `rank` is the size of a group. With `recompute` the linear map runs again in backward instead
    of keeping its output.
    """

    rank: int = 8
    recompute: bool = False
    eigenvalue_init: EigenvalueInit = "zeros"

    def blocks(self, outputs: int, groups: int) -> Blocks:
        return shared_blocks(outputs, self.rank, groups)
