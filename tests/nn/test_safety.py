"""Half precision in deep networks: nothing overflows that the linear network would not, and what
does not fit is infinite only where a part of it does not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import quadric
from tests import reference


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
    found = []
    for _ in range(steps):
        chosen = torch.randint(len(x), (batch,))
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x[chosen]).float(), target[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    if dtype == torch.float16:
        assert scaler.get_scale() == 256.0, f"{neuron}: a gradient overflowed"
    for name, parameter in model.named_parameters():
        assert torch.all(torch.isfinite(parameter)), f"{neuron}: {name}"
    return found


each_half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@each_half
@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared"])
def test_a_residual_network_trains_under_autocast(neuron: str, dtype: torch.dtype) -> None:
    found = torch.tensor(losses("resnet14", neuron, dtype, steps=12, batch=4))
    assert torch.all(torch.isfinite(found)), found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # float16 is emulated on most CPUs
@each_half
@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared"])
def test_the_deepest_network_trains_under_autocast(neuron: str, dtype: torch.dtype) -> None:
    found = torch.tensor(losses("resnet110", neuron, dtype, steps=200, batch=16))
    assert torch.all(torch.isfinite(found)), found
    # It learned something, too: chance is 2.3.
    assert found[-20:].mean() < 1.5


# ------------------------------------------------------------------------------------------------
# Inputs a thousand times too large
# ------------------------------------------------------------------------------------------------


def fits_eigen(layer: Any, linear: Tensor, y: Tensor, limit: float) -> Tensor:
    """Where design allows no infinity: y, its linear part and its features all fit."""
    fits = torch.ones_like(y, dtype=torch.bool)
    for first, features in reference.neuron_channels(y.shape[1], layer.rank, 1):
        parts = torch.stack([y[:, first], *(linear[:, c] for c in (first, *features))])
        fits[:, first] = (parts.abs() < limit).all(0)
        for feature in features:
            fits[:, feature] = linear[:, feature].abs() < limit
    return fits


def fits_shared(layer: Any, linear: Tensor, y: Tensor, limit: float) -> Tensor:
    fits = y.abs() < limit
    for start in range(0, y.shape[1], layer.rank):
        group = slice(start, start + layer.rank)
        fits[:, group] &= (linear[:, group].abs() < limit).all(1, keepdim=True)
    return fits


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_infinite_only_where_a_part_does_not_fit(neuron: str) -> None:
    """Every layer of a float16 network against float64, on the inputs that reach it."""
    blocks: list[nn.Module] = []
    for inputs in (3, 20, 20):
        plain = nn.Conv2d(inputs, 20, 3, padding=1)
        blocks += [quadric.make_layer(plain, neuron=neuron), nn.ReLU()]
    model = nn.Sequential(*blocks)
    layers: list[Any] = [m for m in model if isinstance(m, quadric.layers.QuadraticLayer)]
    for layer in layers:
        nn.init.normal_(layer.quadratic_parameters()["eigenvalues"], std=0.03)
    model.half()
    seen: list[tuple[Any, Tensor, Tensor]] = []
    for layer in layers:
        layer.register_forward_hook(lambda m, args, out: seen.append((m, args[0], out)))
    with torch.no_grad():
        model(1e3 * torch.randn(4, 3, 8, 8).half())
    finite = infinite = 0
    for layer, given, out in seen:
        # Only inputs that fit themselves: what comes after an infinity is no longer this layer's.
        given = given.nan_to_num(0.0).clamp(-6e4, 6e4)
        out = layer.forward(given)
        exact: Any = copy.deepcopy(layer.to_linear()).double()
        x = given.double()
        linear = exact(x)
        lam = layer.eigenvalues.double()
        formula = eigen_reference if neuron == "eigen" else shared_reference
        y, size = formula(linear, lam, layer.rank), formula(linear.abs(), lam.abs(), layer.rank)
        # Rounding, relative to the terms of the sum before they cancel.
        rounding = 0.01 * (size + linear.abs().amax(1, keepdim=True))
        find = fits_eigen if neuron == "eigen" else fits_shared
        fits = find(layer, linear, y.abs() + rounding, 65504.0)
        assert torch.all(torch.isfinite(out[fits]))
        assert torch.all((out.double() - y)[fits].abs() <= rounding[fits])
        finite += int(fits.sum())
        infinite += int((~torch.isfinite(out)).sum())
    assert finite > 1000
    assert infinite > 100  # the inputs are really too large for some of it


def eigen_reference(z: Tensor, eigenvalues: Tensor, rank: int) -> Tensor:
    return reference.add_quadratic(z, eigenvalues, rank)


def shared_reference(z: Tensor, eigenvalues: Tensor, rank: int) -> Tensor:
    """z_i + sum_j L_ij z_j^2, group by group."""
    out = z.clone()
    used = 0
    for start in range(0, z.shape[1], rank):
        size = min(rank, z.shape[1] - start)
        matrix = eigenvalues[used : used + size * size].reshape(size, size)
        used += size * size
        group = slice(start, start + size)
        out[:, group] += torch.einsum("ij,njhw->nihw", matrix, z[:, group] ** 2)
    return out
