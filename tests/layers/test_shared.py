"""The shared neuron keeps the promises of the eigen neuron; only its memory differs, as stated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests.conftest import assert_close
from tests.layers.cases import F64, LINEAR, Geometry, each_geometry
from tests.layers.test_memory import each_recompute


def shared(geometry: Geometry, rank: int = 3, std: float = 0.5, **options: Any) -> Any:
    layer: Any = geometry.make("shared", rank=rank, **options)
    nn.init.normal_(layer.eigenvalues, std=std)
    return layer


def group_sizes(layer: Any) -> list[int]:
    """How many outputs each group has, in channel order."""
    groups = getattr(layer, "groups", 1)
    full, rest = divmod(layer.num_outputs // groups, layer.rank)
    return ([layer.rank] * full + ([rest] if rest else [])) * groups


def matrices(layer: Any) -> list[Tensor]:
    """The matrix L of each group: views of the eigenvalues."""
    sizes = group_sizes(layer)
    parts = layer.eigenvalues.split([s * s for s in sizes])
    return [part.reshape(s, s) for part, s in zip(parts, sizes, strict=True)]


# ------------------------------------------------------------------------------------------------
# What it is: eigen and square are masks of its matrix
# ------------------------------------------------------------------------------------------------


def masked(layer: Any, keep: Callable[[int, int], bool]) -> None:
    """Zeroes the eigenvalues L_ij of every group but those that `keep(i, j)` chooses."""
    with torch.no_grad():
        for matrix in matrices(layer):
            for i, j in itertools.product(range(len(matrix)), repeat=2):
                matrix[i, j] *= keep(i, j)


@each_geometry
@pytest.mark.parametrize("k", [2, 3, 5])
def test_its_first_row_without_the_own_square_is_eigen_of_rank_k_minus_1(
    geometry: Geometry, k: int
) -> None:
    layer = shared(geometry, k)
    masked(layer, lambda i, j: i == 0 and j != 0)
    eigen: Any = geometry.make("eigen", rank=k - 1)
    with torch.no_grad():
        eigen.weight.copy_(layer.weight)
        eigen.bias.copy_(layer.bias)
        eigen.eigenvalues.copy_(torch.cat([matrix[0, 1:] for matrix in matrices(layer)]))
    x = geometry.input()
    assert_close(layer(x), eigen(x))
    assert not torch.allclose(layer(x), layer.responses(x)[0])


@each_geometry
def test_its_diagonal_is_square(geometry: Geometry) -> None:
    layer = shared(geometry, 3)
    masked(layer, lambda i, j: i == j)
    square: Any = geometry.make("square")
    with torch.no_grad():
        square.weight.copy_(layer.weight)
        square.bias.copy_(layer.bias)
        square.eigenvalues.copy_(torch.cat([matrix.diagonal() for matrix in matrices(layer)]))
    x = geometry.input()
    assert_close(layer(x), square(x))
    assert torch.count_nonzero(square.eigenvalues) == layer.num_outputs


def test_every_output_is_a_quadratic_form_over_the_filters_of_its_group() -> None:
    layer = shared(LINEAR, rank=3, std=1.0)
    with torch.no_grad():
        layer.bias.zero_()
    x = torch.randn(4, dtype=F64)
    for i in range(7):
        group = [j for j in range(7) if j // 3 == i // 3]
        start = (i // 3) * 9 + (i % 3) * len(group)
        row = layer.eigenvalues[start : start + len(group)]
        form = sum(
            lam * torch.outer(layer.weight[j], layer.weight[j])
            for lam, j in zip(row, group, strict=True)
        )
        assert_close(layer(x)[i], x @ form @ x + layer.weight[i] @ x)


# ------------------------------------------------------------------------------------------------
# Half precision, loading, starts
# ------------------------------------------------------------------------------------------------


@each_recompute
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_are_summed_in_float32(dtype: torch.dtype, recompute: bool) -> None:
    """z^2 = 90,000 does not fit float16, the sums of positive and negative squares do."""
    layer: Any = quadric.make_layer(
        nn.Linear, 1, 4, bias=False, neuron="shared", rank=4, recompute=recompute, dtype=dtype
    )
    with torch.no_grad():
        layer.weight.fill_(300)
        layer.eigenvalues.copy_(torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(4))
    x = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    out = layer(x)
    torch.testing.assert_close(out, torch.full((1, 4), 300.0, dtype=dtype), rtol=0, atol=0)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
