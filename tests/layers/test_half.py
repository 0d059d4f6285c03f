"""Half precision: squares accumulate in float32, and infinity comes only where it must."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import quadric
from quadric import functional as QF
from tests import reference
from tests.layers.cases import EIGEN

each_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


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


@pytest.mark.parametrize(
    ("features", "eigenvalues", "linear", "expected", "rtol"),
    [
        ([300.0], [0.01], 0.0, 900.0, 2e-3),  # 300^2 = 90,000 > 65,504
        ([300.0, 300.0], [1.0, -1.0], 7.0, 7.0, 2e-3),  # the squares cancel
        ([300.0], [1.0], -60_000.0, 30_000.0, 2e-3),  # they fit with the linear part
        ([300.0], [1.0], 0.0, float("inf"), 0),
        ([300.0], [-1.0], 0.0, float("-inf"), 0),
        ([1e-2] * 1000, [1e-4] * 1000, 0.0, 1e-5, 0.05),  # each is too small for float16
    ],
)
def test_what_fits_float16(features, eigenvalues, linear, expected, rtol) -> None:
    y = one_neuron(features, eigenvalues, linear)
    torch.testing.assert_close(y.float(), torch.tensor(expected), rtol=rtol, atol=0)


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


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_autocast_leaves_float64_alone(neuron: str) -> None:
    """As it leaves the torch layer."""
    plain = nn.Linear(3, 6, dtype=torch.float64)
    layer = quadric.make_layer(plain, neuron=neuron, rank=2)
    x = torch.randn(5, 3, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), plain(x))


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
    torch.testing.assert_close(layer(x).double(), EIGEN.reference(layer, x), rtol=5e-3, atol=0)


# ------------------------------------------------------------------------------------------------
# Deep networks
# ------------------------------------------------------------------------------------------------


def losses(network: str, neuron: str, dtype: torch.dtype, steps: int, batch: int) -> list[float]:
    """The loss at every step of training on digits under autocast, as it is done on a GPU: SGD with
    momentum, the paper's rate for the eigenvalues, and in float16 a scaled loss. The rate is that
    by which He et al. start their ResNet of 110 layers: at 0.1 every loss first grows tenfold, and
    what that shows is divergence, not rounding. Raises if a parameter is not finite at the end."""
    torch.manual_seed(0)
    model = quadric.models.create(network, neuron=neuron)
    groups = quadric.param_groups(model, lr=0.01, quadratic_lr=1e-4, weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16, init_scale=256.0)
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    x, target = pictures.expand(-1, 3, -1, -1), torch.tensor(digits.target)
    seen = []
    for _ in range(steps):
        chosen = torch.randint(len(x), (batch,))
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x[chosen]).float(), target[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(loss.item())
    if dtype == torch.float16:
        assert scaler.get_scale() == 256.0, f"{neuron}: a gradient overflowed"
    for name, parameter in model.named_parameters():
        assert torch.all(torch.isfinite(parameter)), f"{neuron}: {name}"
    return seen


@each_half
@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared"])
def test_a_residual_network_trains_under_autocast(neuron: str, dtype: torch.dtype) -> None:
    found = torch.tensor(losses("resnet14", neuron, dtype, steps=12, batch=4))
    assert torch.all(torch.isfinite(found)), found
