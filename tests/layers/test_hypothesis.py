"""Random shapes and arguments: the layers equal the loops whatever the numbers are."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import quadric
from quadric import functional as QF
from tests import reference
from tests.conftest import assert_close
from tests.layers.cases import EIGEN

F64 = torch.float64
CONV: dict[int, Any] = {
    1: quadric.QuadraticConv1d,
    2: quadric.QuadraticConv2d,
    3: quadric.QuadraticConv3d,
}
TRANSPOSED: dict[int, Any] = {
    1: quadric.QuadraticConvTranspose1d,
    2: quadric.QuadraticConvTranspose2d,
    3: quadric.QuadraticConvTranspose3d,
}
ranks = st.integers(1, 12)


def randomized(layer: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def check(layer: Any, x: Tensor, truth: Tensor) -> None:
    """Values, and gradients of every parameter and the input."""
    out = layer(x)
    assert out.shape == truth.shape
    assert_close(out, truth)
    inputs = [x, *(p for p in layer.parameters() if p.numel())]
    weights = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, weights)
    # A transposed convolution may crop away every position that reads the input.
    expected = torch.autograd.grad(
        truth, inputs, weights, allow_unused=True, materialize_grads=True
    )
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@settings(max_examples=60)
@given(
    n=st.integers(1, 5),
    outputs=st.integers(1, 14),
    rank=ranks,
    leading=st.lists(st.integers(1, 3), max_size=3),
    bias=st.booleans(),
    normalize=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_linear(
    n: int, outputs: int, rank: int, leading: list[int], bias: bool, normalize: bool, seed: int
) -> None:
    layer = quadric.QuadraticLinear(n, outputs, bias, rank=rank, normalize=normalize, dtype=F64)
    randomized(layer, seed)
    x = torch.randn(*leading, n, dtype=F64, requires_grad=True)
    check(layer, x, EIGEN.reference(layer, x))


@settings(max_examples=90)
@given(
    data=st.data(),
    dims=st.integers(1, 3),
    back=st.booleans(),
    rank=ranks,
    seed=st.integers(0, 1000),
)
def test_conv(data: st.DataObject, dims: int, back: bool, rank: int, seed: int) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(dims))

    groups = data.draw(st.sampled_from([1, 1, 2]))
    c_in, c_out = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 6))
    kernel, space = each(1, 2), each(1 if back else 2, 5 - dims)
    modes = ["zeros"] if back else ["zeros", "reflect", "replicate", "circular"]
    options: dict[str, Any] = {
        "stride": each(1, 2),
        "padding": each(0, 1),
        "dilation": each(1, 2),
        "groups": groups,
        "padding_mode": data.draw(st.sampled_from(modes)),
        "bias": data.draw(st.booleans()),
    }
    if back:
        options["output_padding"] = tuple(
            data.draw(st.integers(0, max(options["stride"][d], options["dilation"][d]) - 1))
            for d in range(dims)
        )
    kind = (TRANSPOSED if back else CONV)[dims]
    normalize = data.draw(st.booleans())
    layer = kind(c_in, c_out, kernel, rank=rank, normalize=normalize, dtype=F64, **options)
    randomized(layer, seed)
    x = torch.randn(data.draw(st.integers(1, 2)), c_in, *space, dtype=F64, requires_grad=True)
    try:
        layer.to_linear()(x)
    except RuntimeError:  # torch itself has no output for this
        assume(False)
    check(layer, x, EIGEN.reference(layer, x))


@settings(max_examples=100)
@given(
    per_group=st.integers(1, 15),
    groups=st.integers(1, 4),
    rank=ranks,
    before=st.lists(st.integers(1, 3), max_size=2),
    after=st.lists(st.integers(1, 3), max_size=2),
    negative=st.booleans(),
)
def test_add_quadratic(
    per_group: int, groups: int, rank: int, before: list[int], after: list[int], negative: bool
) -> None:
    channels = per_group * groups
    number = len(reference.eigenvalue_slots(channels, rank, groups))
    out = torch.randn(*before, channels, *after, dtype=F64, requires_grad=True)
    lam = torch.randn(number, dtype=F64, requires_grad=True)
    dim = len(before) - (out.dim() if negative else 0)
    got = QF.add_quadratic(out, lam, rank, dim, groups)
    truth = reference.add_quadratic(out, lam, rank, dim, groups)
    assert_close(got, truth)
    inputs = [out, lam] if number else [out]
    weights = torch.randn_like(got)
    for one, other in zip(
        torch.autograd.grad(got, inputs, weights),
        torch.autograd.grad(truth, inputs, weights),
        strict=True,
    ):
        assert_close(one, other)
