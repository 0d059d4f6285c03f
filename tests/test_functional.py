"""The functions on tensors: against the reference, and under torch.func."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric import functional as QF
from tests import reference
from tests.conftest import assert_close
from tests.layers.cases import EIGEN, Geometry, randomize_

F64 = torch.float64
CONV = {1: QF.quadratic_conv1d, 2: QF.quadratic_conv2d, 3: QF.quadratic_conv3d}
TRANSPOSED = {
    1: QF.quadratic_conv_transpose1d,
    2: QF.quadratic_conv_transpose2d,
    3: QF.quadratic_conv_transpose3d,
}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def eigenvalues(channels: int, rank: int, groups: int = 1) -> Tensor:
    return random(len(reference.eigenvalue_slots(channels, rank, groups)))


# ------------------------------------------------------------------------------------------------
# add_quadratic
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("channels", [8, 9])
def test_add_quadratic_never_changes_its_argument(channels: int, grad: bool) -> None:
    out, lam = random(3, channels), eigenvalues(channels, 2)
    out.requires_grad_(grad)
    before, version = out.detach().clone(), out._version
    result = QF.add_quadratic(out, lam, 2)
    assert not torch.equal(result, before)
    torch.testing.assert_close(out.detach(), before, rtol=0, atol=0)
    assert out._version == version
    with torch.no_grad():
        result.zero_()
    torch.testing.assert_close(out.detach(), before, rtol=0, atol=0)


def test_add_quadratic_without_eigenvalues_gives_a_result_of_its_own() -> None:
    out = random(3, 2)
    result = QF.add_quadratic(out, random(0), 5, groups=2)
    torch.testing.assert_close(result, out, rtol=0, atol=0)
    result.add_(1)
    assert not torch.equal(result, out)


def test_add_shared() -> None:
    """Two groups of five channels, in each a block of three and one of two."""
    out, lam = random(2, 10, 3), random(2 * (9 + 4))
    got = QF.add_shared(out, lam, 3, groups=2)
    eye = torch.eye(5, dtype=F64)
    for group, (part, own) in enumerate(zip(out.chunk(2, 1), lam.chunk(2), strict=True)):
        truth = reference.over_vectors(
            lambda z, own=own: reference.shared(z, eye, None, own, 3), part.movedim(1, -1)
        )
        assert_close(got.chunk(2, 1)[group], truth.movedim(-1, 1))


def test_add_quadratic_derivatives() -> None:
    out, lam = random(2, 7, 2).requires_grad_(), eigenvalues(7, 2).requires_grad_()

    def call(out: Tensor, lam: Tensor) -> Tensor:
        return QF.add_quadratic(out, lam, 2)

    assert torch.autograd.gradcheck(call, (out, lam))
    assert torch.autograd.gradgradcheck(call, (out, lam))


# ------------------------------------------------------------------------------------------------
# The layers' functions
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3, 100])
@pytest.mark.parametrize("outputs", [1, 6, 7, 8])
def test_quadratic_linear(outputs: int, rank: int, bias: bool) -> None:
    layer: Any = quadric.QuadraticLinear(4, outputs, bias, rank=rank, dtype=F64)
    randomize_(layer)
    x = random(2, 3, 4)
    got = QF.quadratic_linear(x, layer.weight, layer.eigenvalues, layer.bias, rank=rank)
    assert_close(got, EIGEN.reference(layer, x))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("back", [False, True])
def test_convolutions_in_torchs_argument_order(dims: int, back: bool) -> None:
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    options |= {"output_padding": 1} if back else {}
    plain = getattr(nn, f"Conv{'Transpose' if back else ''}{dims}d")
    geometry = Geometry(plain, (4, 8, 2), (2, 4, *(5, 4, 4)[:dims]), options)
    layer, x = EIGEN.make(geometry), geometry.input()
    function: Any = (TRANSPOSED if back else CONV)[dims]
    given = (2, 1, 1, 2, 2) if back else (2, 1, 2, 2)
    got = function(x, layer.weight, layer.eigenvalues, layer.bias, *given, rank=2)
    assert_close(got, EIGEN.reference(layer, x))


# ------------------------------------------------------------------------------------------------
# torch.func
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_vmap_and_grad_over_a_convolution(transposed: bool) -> None:
    x, lam = random(3, 2, 4, 4), random(2, 4)
    function: Any = QF.quadratic_conv_transpose2d if transposed else QF.quadratic_conv2d
    weight = random(2, 6, 3, 3) if transposed else random(6, 2, 3, 3)

    def loss(lam: Tensor, weight: Tensor, sample: Tensor) -> Tensor:
        return function(sample, weight, lam, rank=2).pow(2).sum()

    got = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, None, 0))(
        lam[0], weight, x
    )
    ensembles = torch.func.vmap(loss, in_dims=(0, None, None))(lam, weight, x)
    for i in range(2):
        assert_close(ensembles[i], loss(lam[i], weight, x))
    for i, sample in enumerate(x):
        leaves = [lam[0].clone().requires_grad_(), weight.clone().requires_grad_()]
        slopes = torch.autograd.grad(loss(*leaves, sample), leaves)
        for part, expected in zip(got, slopes, strict=True):
            assert_close(part[i], expected)


def test_jacobians_and_hessian() -> None:
    x, weight, lam = random(4), random(3, 4), random(2)

    def call(x: Tensor) -> Tensor:
        return QF.quadratic_linear(x, weight, lam, rank=2)

    expected = torch.autograd.functional.jacobian(
        lambda x: reference.eigen(x, weight, None, lam, 2), x
    )
    assert_close(torch.func.jacrev(call)(x), expected)
    assert_close(torch.func.jacfwd(call)(x), expected)
    M = reference.dense_form(weight[0], weight.new_zeros(()), weight[1:], random(2) * 0, lam)[0]
    hessian = torch.func.hessian(call)(x)
    assert_close(hessian[0], 2 * M)
    assert torch.count_nonzero(hessian[1:]) == 0


# ------------------------------------------------------------------------------------------------
# What the functions refuse: one error each, with rule, value and remedy
# ------------------------------------------------------------------------------------------------

IMAGE, WEIGHT, BACK = torch.zeros(1, 3, 5, 5), torch.zeros(4, 3, 3, 3), torch.zeros(3, 4, 3, 3)
LAM = torch.zeros(2)


OUT, FIVE = torch.zeros(2, 8), torch.zeros(5)


def add(out: Any = OUT, lam: Any = FIVE, rank: Any = 2, **more: Any):
    return QF.add_quadratic(out, lam, rank, **more)


def conv(input: Any = IMAGE, weight: Any = WEIGHT, lam: Any = LAM, **options: Any):
    return QF.quadratic_conv2d(input, weight, lam, rank=1, **options)


def transposed(**options: Any):
    return QF.quadratic_conv_transpose2d(IMAGE, BACK, LAM, rank=1, **options)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: conv(groups=0), ValueError, "groups must be >= 1, got 0"),
        (lambda: conv(groups=-1), ValueError, "groups must be >= 1, got -1"),
        (lambda: conv(groups=1.0), TypeError, "groups must be an integer"),
        (lambda: conv(stride=2, padding="same"), ValueError, "'same' needs stride 1, got stride 2"),
        (
            lambda: conv(input=[1.0]),
            TypeError,
            "input must be a real .* tensor, got list",
        ),
        (lambda: conv(lam=[0.0, 0.0]), TypeError, "eigenvalues must be .*, got list"),
        (lambda: conv(weight=WEIGHT.int()), TypeError, "weight must be .*torch.int32"),
        (lambda: conv(bias=torch.zeros(3)), ValueError, r"4 outputs, got shape \(3,\)"),
        (lambda: conv(bias=torch.zeros(4).int()), TypeError, "bias must be .*torch.int32"),
        (lambda: transposed(groups=0), ValueError, "groups must be >= 1, got 0"),
        (lambda: transposed(groups=2), ValueError, "in_channels must be divisible by groups"),
        (lambda: transposed(padding="same"), TypeError, "must be numbers, got 'same'"),
        (
            lambda: QF.quadratic_linear(torch.zeros(3), torch.zeros(3), LAM, rank=1),
            ValueError,
            r"shape \(out_features, in_features\), got \(3,\)",
        ),
        (lambda: add(rank=0), ValueError, "rank must be .*>= 1, got 0"),
        (lambda: add(rank=1.5), TypeError, r"rank must be an integer.*1\.5"),
        (lambda: add(lam=torch.zeros(4)), ValueError, r"eigenvalues.*\b5\b.*\b4\b"),
        (lambda: add(lam=torch.zeros(5, 1)), ValueError, "eigenvalues"),
        (lambda: add(lam=torch.zeros(5) + 0j), TypeError, "torch.complex64"),
        (lambda: add(out=torch.ones(2, 8).int()), TypeError, "torch.int32"),
        (lambda: add(groups=3), ValueError, "divisible by groups, got 8 outputs and 3 groups"),
        (lambda: add(dim=2), ValueError, "dim must be a dimension of the output"),
        (lambda: conv(input=IMAGE[:, :2]), ValueError, r"in_channels = 3 .*\(1, 2, 5, 5\)"),
        (lambda: conv(lam=torch.zeros(3)), ValueError, r"eigenvalues.*\b2\b.*\b3\b"),
        (lambda: conv(input=IMAGE.int()), TypeError, "input must be .*torch.int32"),
        (
            lambda: QF.quadratic_linear(torch.zeros(2, 3), torch.zeros(6, 4), LAM, rank=2),
            ValueError,
            r"in_features = 4, got .*\(2, 3\)",
        ),
        (
            lambda: QF.quadratic_linear(IMAGE, WEIGHT, LAM, None, 1),  # type: ignore[call-arg,misc]
            TypeError,
            "positional|rank",
        ),
    ],
)
def test_bad_input_gets_one_clear_error(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_the_public_names() -> None:
    assert all(callable(getattr(QF, name)) for name in QF.__all__)
    for function in (QF.quadratic_conv2d, QF.quadratic_conv_transpose3d):
        assert pickle.loads(pickle.dumps(function)) is function
    assert list(inspect.signature(QF.quadratic_conv1d).parameters)[:5] == [
        "input", "weight", "eigenvalues", "bias", "stride",
    ]  # fmt: skip
