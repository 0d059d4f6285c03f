"""Half precision: squares accumulate in float32, and infinity comes only where it must."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric import functional as QF
from tests import reference
from tests.conftest import assert_close
from tests.nn.cases import CASES, IDS, Case

each_layer = pytest.mark.parametrize("case", CASES, ids=IDS)
each_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@each_layer
@each_half
def test_layers_in_half_precision(case: Case, dtype: torch.dtype) -> None:
    layer, x = case.make(dtype=dtype), case.input(dtype=dtype).requires_grad_()
    out = layer(x)
    assert out.dtype == dtype
    assert_close(out, case.reference(layer, x))
    inputs = [x, *layer.parameters()]
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, seed)
    expected = torch.autograd.grad(case.reference(layer, x), inputs, seed.double())
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == dtype
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert error < (0.03 if dtype == torch.bfloat16 else 0.004)


@each_layer
@each_half
def test_autocast(case: Case, dtype: torch.dtype) -> None:
    layer, x = case.make(dtype=torch.float32), case.input(dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x)
        plain = layer.to_linear()(x)
    assert out.dtype == plain.dtype == dtype
    assert_close(out, case.reference(layer, x))
    out.float().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
    expected = torch.autograd.grad(case.reference(layer, x).sum(), list(layer.parameters()))
    for parameter, value in zip(layer.parameters(), expected, strict=True):
        assert (parameter.grad - value).norm() < 0.03 * value.norm()


@each_layer
def test_autocast_behind_an_in_place_activation(case: Case) -> None:
    """The linear map that backward computes again is the one of forward, autocast included."""
    layer, x = case.make(dtype=torch.float32), case.input(dtype=torch.float32).requires_grad_()
    inputs = [x, *layer.parameters()]

    def gradients(inplace: bool) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = F.relu(layer(x), inplace=inplace)
        return torch.autograd.grad(out.float().square().sum(), inputs)

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_layers_of_two_dtypes_meet_under_autocast() -> None:
    model = nn.Sequential(quadric.QuadraticLinear(4, 8), nn.ReLU(True), nn.Linear(8, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(3, 4))
    assert out.dtype == torch.bfloat16


# ------------------------------------------------------------------------------------------------
# What fits
# ------------------------------------------------------------------------------------------------


def one_neuron(features: list[float], eigenvalues: list[float], linear: float = 0.0) -> Tensor:
    """y of one fp16 neuron with given features, by a layer whose input is 1."""
    layer = quadric.QuadraticLinear(
        1, 1 + len(features), rank=len(features), bias=False, dtype=torch.float16
    )
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[linear], *([f] for f in features)]))
        layer.eigenvalues.copy_(torch.tensor(eigenvalues))
    return layer(torch.ones(1, dtype=torch.float16))[0]


def test_a_square_that_does_not_fit_while_its_weighted_value_does() -> None:
    y = one_neuron([300.0], [0.01])  # 300^2 = 90,000 > 65,504
    torch.testing.assert_close(y.float(), torch.tensor(900.0), rtol=2e-3, atol=0)


def test_weighted_squares_that_do_not_fit_but_cancel() -> None:
    y = one_neuron([300.0, 300.0], [1.0, -1.0], linear=7.0)
    torch.testing.assert_close(y.float(), torch.tensor(7.0), rtol=0, atol=0.01)


def test_squares_that_fit_only_together_with_the_linear_part() -> None:
    y = one_neuron([300.0], [1.0], linear=-60_000.0)  # 90,000 - 60,000
    torch.testing.assert_close(y.float(), torch.tensor(30_000.0), rtol=2e-3, atol=0)


def test_what_does_not_fit_is_infinite() -> None:
    assert torch.isposinf(one_neuron([300.0], [1.0]))
    assert torch.isneginf(one_neuron([300.0], [-1.0]))


def test_squares_too_small_for_the_dtype_still_add_up() -> None:
    # each weighted square is 1e-8, below fp16's smallest number; a thousand of them are not
    y = one_neuron([1e-2] * 1000, [1e-4] * 1000)
    torch.testing.assert_close(y.float(), torch.tensor(1e-5), rtol=0.05, atol=0)


@each_half
def test_a_long_sum_does_not_stall(dtype: torch.dtype) -> None:
    """Adding ones in half precision stops at 256 (bf16) or 2048 (fp16)."""
    rank = 5000
    out = torch.ones(1, rank + 1, dtype=dtype)
    y = QF.add_quadratic(out, torch.ones(rank, dtype=dtype), rank)[0, 0]
    torch.testing.assert_close(y.float(), torch.tensor(5001.0), rtol=2**-8, atol=0)


@pytest.mark.parametrize("path", ["training", "inference"])
@each_half
def test_one_rounding_at_the_end(dtype: torch.dtype, path: str) -> None:
    """The result is the float32 sum rounded once: at most half a unit in the last place away."""
    channels, rank = 30, 9
    out = (8 * torch.randn(200, channels)).to(dtype).requires_grad_(path == "training")
    lam = torch.randn(27).to(dtype)
    with torch.set_grad_enabled(path == "training"):
        got = QF.add_quadratic(out, lam, rank).detach()
    exact = reference.add_quadratic(out.detach().double(), lam.double(), rank)
    unit = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
    assert torch.all((got.double() - exact).abs() <= 0.501 * unit + 1e-4)


@each_layer
@each_half
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0, 30_000.0])
def test_infinity_only_where_a_part_does_not_fit(
    case: Case, dtype: torch.dtype, scale: float
) -> None:
    layer, x = case.make(rank=3, dtype=dtype), (scale * case.input()).to(dtype)
    with torch.no_grad():
        layer.eigenvalues.mul_(1e-2)
    out = layer(x)
    y = case.reference(layer, x)
    linear = layer.to_linear()(x).double()
    fits = torch.ones_like(y, dtype=torch.bool)
    limit = 0.99 * torch.finfo(dtype).max
    for first, features in reference.neuron_channels(case.outputs, 3, case.groups):
        parts = torch.stack(
            [y.select(case.dim, first), *(linear.select(case.dim, c) for c in (first, *features))]
        )
        fits.select(case.dim, first).copy_((parts.abs() < limit).all(0))
        for feature in features:
            fits.select(case.dim, feature).copy_(linear.select(case.dim, feature).abs() < limit)
    assert torch.all(torch.isfinite(out[fits]))
    assert torch.any(fits) or scale > 1000
    assert torch.all(fits) or dtype == torch.float16


def test_gradients_of_eigenvalues_accumulate_in_float32() -> None:
    """sum g f^2 with f^2 above fp16's largest number, and a sum of many terms."""
    layer: Any = quadric.QuadraticLinear(1, 2, rank=1, bias=False, dtype=torch.float16)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [300.0]]))
    out = layer(torch.ones(1, 1, dtype=torch.float16))
    out.backward(torch.tensor([[1e-3, 0.0]], dtype=torch.float16))
    expected = torch.tensor([90.0])
    torch.testing.assert_close(layer.eigenvalues.grad.float(), expected, rtol=5e-3, atol=0)
    layer = quadric.QuadraticLinear(1, 2, rank=1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    layer(torch.ones(5000, 1, dtype=torch.bfloat16)).sum().backward()
    expected = torch.tensor([5000.0])
    torch.testing.assert_close(layer.eigenvalues.grad.float(), expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize("normalize", [False, True])
def test_normalize_in_half_precision(normalize: bool) -> None:
    """|q|^2 = 400 * 20^2 = 160,000 does not fit fp16; the neuron's y does."""
    layer = quadric.QuadraticLinear(
        400, 2, rank=1, bias=False, normalize=normalize, dtype=torch.float16
    )
    with torch.no_grad():
        layer.weight.copy_(torch.stack([torch.zeros(400), torch.full((400,), 20.0)]))
        layer.eigenvalues.fill_(1.0 if normalize else 1e-4)
    x = torch.full((1, 400), 0.05, dtype=torch.float16)
    expected = reference.eigen_linear(
        x.double(), layer.weight.double(), None, layer.eigenvalues.double(), 1, normalize
    )
    torch.testing.assert_close(layer(x).double(), expected, rtol=5e-3, atol=0)


def test_ten_convolutions_train_under_autocast() -> None:
    blocks: list[nn.Module] = []
    for i in range(10):
        convolution = quadric.QuadraticConv2d(3 if i == 0 else 20, 20, 3, padding=1, bias=False)
        blocks += [convolution, nn.BatchNorm2d(20), nn.ReLU(inplace=True)]
    model: Any = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, target = torch.randn(8, 3, 6, 6), torch.randint(10, (8,))
    losses = []
    for _ in range(50):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert torch.all(torch.isfinite(parameter)), name
    assert torch.count_nonzero(model[0].eigenvalues) == model[0].eigenvalues.numel()
    assert losses[-1] < 0.5 * losses[0]
