"""What only QuadraticLinear has: leading dimensions, remainders, and building from dense forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quadric
from tests import reference
from tests.conftest import assert_close

F64 = torch.float64


def make(n: int, outputs: int, rank: int, **options: object) -> quadric.QuadraticLinear:
    layer = quadric.QuadraticLinear(n, outputs, rank=rank, dtype=F64, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.eigenvalues.normal_()
    return layer


def truth(layer: quadric.QuadraticLinear, x: torch.Tensor) -> torch.Tensor:
    return reference.eigen_linear(x, layer.weight, layer.bias, layer.eigenvalues, layer.rank)


@pytest.mark.parametrize("leading", [(), (1,), (4,), (2, 3), (2, 1, 3)], ids=str)
def test_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    layer, x = make(3, 7, rank=2), torch.randn(*leading, 3, dtype=F64)
    out = layer(x)
    assert out.shape == (*leading, 7)
    assert_close(out, truth(layer, x))


@pytest.mark.parametrize("leading", [(0,), (2, 0), (0, 3)], ids=str)
def test_leading_dimensions_of_no_vectors(leading: tuple[int, ...]) -> None:
    assert make(3, 7, rank=2)(torch.empty(*leading, 3, dtype=F64)).shape == (*leading, 7)


@pytest.mark.parametrize(
    ("outputs", "rank", "ranks"),
    [
        (6, 2, (2, 2)),  # remainder 0
        (7, 2, (2, 2, 0)),  # remainder 1: a plain linear channel
        (8, 2, (2, 2, 1)),  # remainder 2
        (1, 1, (0,)),
        (1, 9, (0,)),
        (2, 9, (1,)),
        (9, 9, (8,)),
        (10, 9, (9,)),
        (11, 9, (9, 0)),
        (32, 9, (9, 9, 9, 1)),
    ],
)
def test_remainders(outputs: int, rank: int, ranks: tuple[int, ...]) -> None:
    layer, x = make(3, outputs, rank), torch.randn(2, 3, dtype=F64)
    assert layer.neuron_ranks == ranks
    assert layer.num_neurons == len(ranks)
    assert layer.eigenvalues.numel() == sum(ranks) == outputs - len(ranks)
    assert_close(layer(x), truth(layer, x))


def test_a_single_linear_channel_has_no_eigenvalues_and_trains() -> None:
    layer, x = make(3, 1, rank=9), torch.randn(2, 3, dtype=F64)
    assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    linear, quadratic, features = layer.responses(x)
    assert (linear.shape, quadratic.shape, features.shape) == ((2, 1), (2, 1), (2, 0))
    assert torch.count_nonzero(quadratic) == 0
    M, w, b = layer.to_dense()
    assert torch.count_nonzero(M) == 0
    assert_close(w, layer.weight)
    assert layer.bias is not None
    assert_close(b, layer.bias)


def test_channel_order_by_hand() -> None:
    """Two neurons of rank 2 on x = (1, 10), worked out on paper."""
    layer = quadric.QuadraticLinear(2, 6, rank=2, bias=True, dtype=F64)
    assert layer.bias is not None
    with torch.no_grad():
        layer.weight.copy_(
            torch.tensor([[1.0, 0], [0, 1], [1, 1], [2, 0], [1, -1], [0, 0.5]], dtype=F64)
        )
        layer.bias.copy_(torch.tensor([0.5, 0, 0, 0, 1, 0], dtype=F64))
        layer.eigenvalues.copy_(torch.tensor([1, 0.1, -1, 2], dtype=F64))
    out = layer(torch.tensor([1.0, 10.0], dtype=F64))
    # f = 10, 11, then 1 - 10 + 1 = -8, 5; y = 1.5 + 100 + 12.1 and 2 - 64 + 50
    expected = torch.tensor([113.6, 10, 11, -12, -8, 5], dtype=F64)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("m", [1, 3])
def test_from_dense_at_full_rank_is_the_same_function(m: int, symmetric: bool) -> None:
    n = 4
    M, w, b = (torch.randn(*shape, dtype=F64) for shape in [(m, n, n), (m, n), (m,)])
    if symmetric:
        M = M + M.transpose(1, 2)
    layer = quadric.QuadraticLinear.from_dense(M, w, b, rank=n)
    assert (layer.in_features, layer.out_features, layer.rank) == (n, m * (n + 1), n)
    assert layer.neuron_ranks == (n,) * m
    assert layer.weight.dtype == F64
    assert all(parameter.requires_grad for parameter in layer.parameters())
    x = torch.randn(5, n, dtype=F64)
    expected = reference.over_vectors(lambda v: reference.general(v, M, w, b), x)
    assert_close(layer(x)[:, :: n + 1], expected)


def test_dense_round_trip() -> None:
    layer = make(3, 8, rank=3)
    M, w, b = layer.to_dense()
    again = quadric.QuadraticLinear.from_dense(M, w, b, rank=3)
    for one, other in zip(again.to_dense(), (M, w, b), strict=True):
        assert_close(one, other)


def test_from_dense_keeps_the_largest_eigenvalues_by_magnitude() -> None:
    basis, _ = torch.linalg.qr(torch.randn(4, 4, dtype=F64))
    values = torch.tensor([0.5, -4.0, 1.0, 3.0], dtype=F64)
    M = (basis * values) @ basis.T
    layer = quadric.QuadraticLinear.from_dense(
        M[None], torch.zeros(1, 4, dtype=F64), torch.zeros(1, dtype=F64), rank=2
    )
    kept = (basis[:, [1, 3]] * values[[1, 3]]) @ basis[:, [1, 3]].T
    assert_close(layer.to_dense()[0][0], kept)


def test_rings_are_separated_exactly_as_the_form_does() -> None:
    form = torch.eye(2)[None], torch.zeros(1, 2), torch.tensor([-1.0])
    layer = quadric.QuadraticLinear.from_dense(*form, rank=2)
    assert (layer.in_features, layer.out_features) == (2, 3)
    angle = torch.rand(500) * 6.2832
    radius = torch.cat([torch.rand(250) * 0.9, 1.1 + torch.rand(250)])
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    y = layer(x)[:, 0]
    torch.testing.assert_close(y > 0, radius > 1)
    torch.testing.assert_close(y, radius**2 - 1, rtol=1e-5, atol=1e-5)


def test_from_dense_refuses_forms_that_are_none() -> None:
    M, w, b = torch.eye(3)[None], torch.zeros(1, 3), torch.zeros(1)
    build = quadric.QuadraticLinear.from_dense
    with pytest.raises(ValueError, match=r"square.*\(1, 3, 2\)|square.*\[1, 3, 2\]"):
        build(M[:, :, :2], w, b, rank=2)
    bad = M.clone()
    bad[0, 1, 1] = float("nan")
    with pytest.raises(ValueError, match=r"(?i)nan|finite"):
        build(bad, w, b, rank=2)
    bad[0, 1, 1] = float("inf")
    with pytest.raises(ValueError, match=r"(?i)inf|finite"):
        build(bad, w, b, rank=2)
    with pytest.raises(ValueError, match=r"rank must be .*>= 1.*got 0"):
        build(M, w, b, rank=0)
    with pytest.raises(ValueError, match=r"\bw\b.*4"):
        build(M, torch.zeros(1, 4), b, rank=2)
    with pytest.raises(ValueError, match=r"\bb\b.*2"):
        build(M, w, torch.zeros(2), rank=2)


def test_extra_repr_text() -> None:
    layer = quadric.QuadraticLinear(3, 8, rank=2)
    assert layer.extra_repr().startswith("in_features=3, out_features=8, bias=True, rank=2")


def test_parameter_names_in_a_model() -> None:
    model = nn.Sequential(quadric.QuadraticLinear(3, 8), nn.BatchNorm1d(8))
    names = {name for name, _ in model.named_parameters()}
    assert names == {"0.weight", "0.bias", "0.eigenvalues", "1.weight", "1.bias"}
