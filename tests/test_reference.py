"""The reference against torch's own linear operators: a truth that is wrong tests nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import reference

F64 = torch.float64
CONV: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}


def linear_neuron(plain: Any, rows: Tensor) -> reference.GroupNeuron:
    """The outputs of one of two groups of a convolution at one position."""
    parts = list(zip(rows.chunk(2), plain.bias.chunk(2), strict=True))
    return lambda group, patch: reference.linear(patch, *parts[group])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_patches_are_torchs(dims: int, mode: str, padding: Any) -> None:
    stride = 1 if isinstance(padding, str) else 2
    plain = CONV[dims](4, 6, 3, stride, padding, 1, groups=2, padding_mode=mode, dtype=F64)
    x = torch.randn(2, 4, *(5, 4, 3)[:dims], dtype=F64)
    neuron = linear_neuron(plain, plain.weight.flatten(1))
    got = reference.over_patches(neuron, x, plain.kernel_size, stride, padding, 1, 2, mode)
    torch.testing.assert_close(got, plain(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_patches_are_torchs(dims: int) -> None:
    plain = TRANSPOSED[dims](4, 6, 2, 2, 1, 1, groups=2, dilation=2, dtype=F64)
    x = torch.randn(2, 4, *(2, 3, 2)[:dims], dtype=F64)
    neuron = linear_neuron(plain, reference.transposed_rows(plain.weight, 2))
    got = reference.over_transposed_patches(neuron, x, plain.kernel_size, 2, 1, 1, 2, 2)
    torch.testing.assert_close(got, plain(x))


def test_an_eigen_neuron_is_its_dense_form_and_its_sum_of_squares() -> None:
    w, Q, lam = torch.randn(3, dtype=F64), torch.randn(2, 3, dtype=F64), torch.randn(2, dtype=F64)
    b, c = torch.randn((), dtype=F64), torch.randn(2, dtype=F64)
    x = torch.randn(3, dtype=F64)
    M, v, d = reference.dense_form(w, b, Q, c, lam)
    y = x @ M @ x + v @ x + d
    features = [Q[0] @ x + c[0], Q[1] @ x + c[1]]
    expected = w @ x + b + lam[0] * features[0] ** 2 + lam[1] * features[1] ** 2
    torch.testing.assert_close(y, expected)
    layer = reference.eigen(x, torch.cat([w[None], Q]), torch.cat([b[None], c]), lam, 2)
    torch.testing.assert_close(layer, torch.stack([expected, *features]))


def test_the_neurons_of_the_registry_by_hand() -> None:
    """x = (1, 2); every value worked out on paper."""
    x = torch.tensor([1.0, 2.0], dtype=F64)

    def rows(*values: Any) -> Tensor:
        return torch.tensor(values, dtype=F64)

    a, b, c = rows([1.0, 1.0]), rows([2.0, -1.0]), rows([0.0, 1.0])  # 3, 0, 2
    M, one, half = rows([[1.0, 2.0], [0.0, 1.0]]), rows(1.0), rows(0.5)  # x'Mx = 1 + 4 + 4
    R = reference
    assert R.general(x, M, a, one).tolist() == [13.0]
    assert R.pure(x, M, one).tolist() == [10.0]
    assert R.pure(x, M, None).tolist() == [9.0]
    assert R.qres(x, a, c, one).tolist() == [10.0]
    assert R.lowrank(
        x, rows([[1.0, 1.0], [0.0, 1.0]]), rows([[0.0, 1.0], [0.0, 1.0]]), a, one
    ).tolist() == [14.0]
    assert R.fan(x, a, one, c, half, c, one).tolist() == [4 * 2.5 + 4 + 1]
    assert R.quadralib(x, a, c, b, one).tolist() == [7.0]
    assert R.kervolution(x, c, 1.0, 3, one).tolist() == [28.0]
    assert R.kervolution(x, c, half, 2, None).tolist() == [6.25]
    z = torch.cat([a, c])  # z = 3, 2: each output meets the channel before it
    assert R.quadenhancer(x, z, rows([0.5, 1.0]), None).tolist() == [3 * 2.0, 2 * 4.0]
    assert R.bilinear(x, a, one, c, half).tolist() == [4 * 2.5]
    assert R.glu(x, "relu6", c, one, a, one).tolist() == [3 * 4.0]
    assert R.glu(x, "relu6", 4 * c, None, a, None).tolist() == [6 * 3.0]
    for act, known in (("sigmoid", 0.8807970779778823), ("silu", 1.7615941559557646)):
        torch.testing.assert_close(R.glu(x, act, c, None, b, one), rows(known))  # b'x + 1 = 1
    torch.testing.assert_close(R.glu(x, "gelu", c, None, b, one), rows(1.9544997361036416))
    # z = 3, 2; V'z = 5, -1; U V'z = 5 * 1 - 1 * 2 = 3 and 0.5 * 5 = 2.5
    U, V = rows([1.0, 2.0], [0.5, 0.0]), rows([1.0, 1.0], [1.0, -2.0])
    assert R.cross(x, z, None, U, V).tolist() == [3 * 4.0, 2 * 3.5]
    assert R.symmetric(x, rows([[1.0, 1.0], [0.0, 1.0]]), rows([1.0, -1.0]), c, one).tolist() == [
        8.0
    ]
    assert R.square(x, a, one, half).tolist() == [4 + 8.0]
    L = rows(1.0, 10.0, 0.0, 0.5, 2.0)  # a group of two, then one of one
    three = torch.cat([a, c, a])
    assert R.shared(x, three, None, L, 2).tolist() == [3 + 9 + 40.0, 2 + 2.0, 3 + 18.0]


def test_shared_holds_eigen_and_square() -> None:
    """L with only its first row and no own square is eigen; its diagonal is square."""
    x, W, b = torch.randn(4, dtype=F64), torch.randn(3, 4, dtype=F64), torch.randn(3, dtype=F64)
    L = torch.zeros(3, 3, dtype=F64)
    L[0, 1:] = torch.randn(2, dtype=F64)
    torch.testing.assert_close(
        reference.shared(x, W, b, L.flatten(), 3), reference.eigen(x, W, b, L[0, 1:], 2)
    )
    diagonal = torch.randn(3, dtype=F64)
    torch.testing.assert_close(
        reference.shared(x, W, b, torch.diag(diagonal).flatten(), 3),
        reference.square(x, W, b, diagonal),
    )
