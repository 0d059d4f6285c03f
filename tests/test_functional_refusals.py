"""What the functions refuse: one ValueError or TypeError each, with rule, value and remedy."""

from __future__ import annotations

import pytest
import torch

import quadric
from quadric import functional as QF

IMAGE = torch.zeros(1, 3, 5, 5)
WEIGHT = torch.zeros(4, 3, 3, 3)
BACK = torch.zeros(3, 4, 3, 3)
LAM = torch.zeros(2)


def conv(input=IMAGE, weight=WEIGHT, lam=LAM, **options):
    return QF.quadratic_conv2d(input, weight, lam, rank=1, **options)


def transposed(**options):
    return QF.quadratic_conv_transpose2d(IMAGE, BACK, LAM, rank=1, **options)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: conv(groups=0), ValueError, "groups must be >= 1, got 0"),
        (lambda: conv(groups=-1), ValueError, "groups must be >= 1, got -1"),
        (lambda: conv(groups=1.0), TypeError, "groups must be an integer"),
        (lambda: conv(stride=2, padding="same"), ValueError, "'same' needs stride 1, got stride 2"),
        (lambda: conv(input=[1.0]), TypeError, "input must be a tensor, got list"),
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
        (
            lambda: quadric.QuadraticLinear(3, 4, dtype="float32"),  # type: ignore[arg-type]
            TypeError,
            "dtype must be a torch.dtype, got 'float32'",
        ),
        (
            lambda: quadric.QuadraticLinear.from_dense(torch.eye(2), torch.zeros(2), torch.ones(2)),
            ValueError,
            r"got w \(1, 2\), b \(2,\)",
        ),
        (
            lambda: quadric.QuadraticLinear.from_dense(torch.eye(2), None),  # type: ignore[arg-type]
            TypeError,
            "w must be a tensor, got NoneType",
        ),
        (
            lambda: quadric.QuadraticLinear.from_dense(torch.eye(2), torch.full((2,), torch.nan)),
            ValueError,
            "w must be finite",
        ),
    ],
)
def test_bad_input_gets_one_clear_error(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
