"""The scale of eigenvalues: safe first steps whatever the features' size, saved and taken back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import quadric
from quadric import watch
from quadric.layers import QuadraticLayer
from quadric.watchdog import CurvatureWarning
from tests.conftest import assert_close
from tests.refusals import Check, refusals

NEURONS = ("eigen", "shared", "square")
SIZES = torch.tensor([10.0, 30.0, 100.0, 300.0, 1000.0, 10.0, 300.0, 1000.0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first, second, last = nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 1)
    return nn.Sequential(first, nn.SiLU(), second, nn.SiLU(), last)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(128, 8, generator=generator) * SIZES
    return x, (x / SIZES).sum(1, keepdim=True)


def losses(model: nn.Module, lr: float, steps: int = 20) -> list[float]:
    optimizer = torch.optim.AdamW(quadric.param_groups(model, lr))
    seen = []
    for i in range(steps):
        x, y = batch(i % 5)
        loss = (model(x) - y).square().mean()
        seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return seen


def layers(model: nn.Module) -> list[QuadraticLayer]:
    return [layer for layer in model.modules() if isinstance(layer, QuadraticLayer)]


@pytest.mark.parametrize("neuron", NEURONS)
def test_first_steps_are_as_safe_as_the_plain_networks(neuron: str) -> None:
    plain = losses(network(), 1e-3)
    model = network()
    quadric.convert_(model, neuron)
    scaled = losses(model, 1e-3)
    assert all(own <= 1.1 * other for own, other in zip(scaled, plain, strict=True))
    assert not any(layer.awaits_scale for layer in layers(model))
    bare = network()
    quadric.convert_(bare, neuron)
    for layer in layers(bare):
        layer.drop_scale_()
    assert max(losses(bare, 1e-3)) > 1.1 * max(plain)


@pytest.mark.parametrize("neuron", NEURONS)
def test_the_scale_follows_the_features(neuron: str) -> None:
    scales = []
    for size in (1.0, 100.0):
        layer = quadric.make_layer(nn.Linear(8, 40, bias=False), neuron)
        layer.weight = nn.Parameter(network()[0].weight.detach())
        layer.await_scale_()
        layer(size * batch()[0])
        scales.append(float(layer.eigenvalue_scale))
    assert scales[0] == pytest.approx(100 * scales[1])


def test_a_trial_before_training_does_no_harm() -> None:
    model, other = network(), network()
    for m in (model, other):
        quadric.convert_(m, "shared")
    model(torch.full((4, 8), 1e-3) + 1e-6 * torch.randn(4, 8))
    assert losses(model, 1e-3) == losses(other, 1e-3)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("only", [None, "quadratic"])
def test_files_hold_what_counts(neuron: str, only: str | None, tmp_path) -> None:
    model = network()
    quadric.convert_(model, neuron)
    optimizer = torch.optim.AdamW(quadric.param_groups(model, 1e-2, only="quadratic"))
    x, y = batch()
    for _ in range(3):
        (model(x) - y).square().mean().backward()
        optimizer.step()
    quadric.save(model, tmp_path / "file", only=only)
    fresh, converted = network(), network()
    quadric.convert_(converted, neuron)
    converted(x)
    for target in (fresh, converted):
        quadric.load_(target, tmp_path / "file")
        with torch.no_grad():
            assert_close(target(x), model(x))
        assert all(layer.awaits_scale for layer in layers(target))
        assert_close(target(x), model(x))  # measured, and still the same function


def test_state_dicts_carry_the_scale_and_older_ones_load() -> None:
    model = network()
    quadric.convert_(model, "eigen")
    losses(model, 1e-3)
    x = batch()[0]
    same, older = network(), network()
    for m in (same, older):
        quadric.convert_(m, "eigen")
    same.load_state_dict(model.state_dict())
    assert torch.equal(same(x), model(x))
    assert [layer.awaits_scale for layer in layers(same)] == [False, False]
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("_scale")}
    older.load_state_dict(state)
    assert all(layer.awaits_scale and layer.eigenvalue_scale == 1 for layer in layers(older))


@pytest.mark.parametrize("neuron", NEURONS)
def test_calibrating_and_dropping_leave_the_function(neuron: str) -> None:
    model, x = network().double(), batch()[0].double()
    quadric.convert_(model, neuron)
    for layer in layers(model):
        nn.init.normal_(layer.eigenvalues, std=1e-3)
    expected = model(x).detach()
    assert quadric.calibrate_(model, x) == ["0", "2"]
    assert_close(model(x), expected)
    copied = copy.deepcopy(model)
    for layer in layers(copied):
        layer.drop_scale_()
        assert layer.eigenvalue_scale is None
    assert_close(copied(x), expected)


def test_one_graph_of_the_compiler_takes_the_first_batch() -> None:
    model, x = network(), batch()[0]
    quadric.convert_(model, "shared")
    torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()
    other = network()
    quadric.convert_(other, "shared")
    other(x)
    for one, two in zip(layers(model), layers(other), strict=True):
        assert_close(one.eigenvalue_scale, two.eigenvalue_scale)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("record", [make_fx, None])
def test_a_recorded_network_measures_nothing(neuron: str, measured: bool, record: Any) -> None:
    """Setting the scale would be part of the graph, which torch.jit.trace refuses."""
    torch.manual_seed(0)
    images, conv, linear = torch.randn(3, 3, 6, 6), nn.Conv2d(3, 20, 3), nn.Linear(320, 40)
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear, nn.ReLU(), nn.Linear(40, 2))
    quadric.convert_(model, neuron)
    for layer in layers(model):
        nn.init.normal_(layer.eigenvalues, std=0.1)
        if measured:
            layer.use_scale_(torch.tensor(0.3))
    graph = record(model)(images) if record else torch.jit.trace(model, images)
    assert [layer.awaits_scale for layer in layers(model)] == [not measured] * 2
    with torch.no_grad():
        assert_close(graph(images.flip(0)), model(images.flip(0)))


def test_the_watchdog_names_the_layer_once() -> None:
    model = network()
    quadric.convert_(model, "shared")
    for layer in layers(model):
        layer.drop_scale_()
    handle = watch(model)
    with pytest.warns(CurvatureWarning, match=r"layer '0': .*lower quadratic_lr") as told:
        losses(model, 1e-3)
    assert len(told) == 1
    assert handle.warning is not None
    calm = network()
    quadric.convert_(calm, "shared")
    watched = watch(calm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses(calm, 1e-3, steps=101)
    assert watched.warning is None
    assert not any(layer._forward_hooks for layer in layers(calm))


@refusals(
    (lambda: quadric.calibrate_(network(), batch()[0]), ValueError, "without any: convert it"),
    (lambda: watch(network()), ValueError, "must have a quadratic layer"),
)
def test_refusals(check: Check) -> None:
    check()


def test_folding_the_normalization_takes_the_scale_in() -> None:
    layer = quadric.QuadraticLinear(4, 10, rank=2, normalize=True)
    nn.init.normal_(layer.eigenvalues)
    layer.use_scale_(torch.tensor(0.25))
    x = torch.randn(5, 4)
    expected = layer(x)
    torch.testing.assert_close(layer.fold_normalization_()(x), expected)
