"""param_groups with torch's optimizers and schedulers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from quadric.layers import QuadraticLinear, make_layer, neurons
from quadric.optim import param_groups
from tests.networks import eigen_net, images
from tests.refusals import Check, refusals


def _by_name(groups: list[dict]) -> dict[str, dict]:
    assert len({group["name"] for group in groups}) == len(groups)
    return {group["name"]: group for group in groups}


def test_quadratic_parameters_are_apart_and_everything_is_there_once():
    model = eigen_net()
    groups = _by_name(param_groups(model, lr=0.5, weight_decay=1e-2))
    assert list(groups) == ["linear", "quadratic"]
    quadratic = [model[0].eigenvalues, model[4].eigenvalues]
    assert [id(p) for p in groups["quadratic"]["params"]] == [id(p) for p in quadratic]
    everything = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    assert groups["linear"]["lr"] == 0.5
    assert groups["linear"]["weight_decay"] == 1e-2
    assert groups["quadratic"]["lr"] == 0.5
    assert groups["quadratic"]["weight_decay"] == 0.0


def test_quadratic_rates_can_be_given():
    groups = _by_name(param_groups(eigen_net(), 0.5, quadratic_lr=0.0, quadratic_weight_decay=0.25))
    assert (groups["quadratic"]["lr"], groups["quadratic"]["weight_decay"]) == (0.0, 0.25)
    assert groups["linear"]["weight_decay"] == 0.0


def test_bias_and_norm_without_decay_if_asked():
    model = eigen_net()
    model.append(nn.Embedding(2, 3))
    model.append(nn.MultiheadAttention(4, 2, add_bias_kv=True))
    model.append(nn.PReLU())
    model.append(nn.LayerNorm((2, 3)))
    groups = _by_name(
        param_groups(
            model, 0.1, weight_decay=1e-2, quadratic_weight_decay=1e-3, decay_bias_and_norm=False
        )
    )
    names = {id(p): name for name, p in model.named_parameters()}
    spared = {names[id(p)] for p in groups["linear_no_decay"]["params"]}
    assert spared == {
        "0.bias", "1.weight", "1.bias", "4.bias", "5.weight", "5.bias", "6.bias",
        "8.in_proj_bias", "8.out_proj.bias", "8.bias_k", "8.bias_v",
        "9.weight", "10.weight", "10.bias",
    }  # fmt: skip
    assert groups["linear_no_decay"]["weight_decay"] == 0.0
    assert groups["linear_no_decay"]["lr"] == 0.1
    assert {names[id(p)] for p in groups["linear"]["params"]} == {
        "0.weight", "4.weight", "6.weight", "7.weight", "8.in_proj_weight", "8.out_proj.weight",
    }  # fmt: skip
    # Eigenvalues are vectors too, but have their own decay.
    assert {names[id(p)] for p in groups["quadratic"]["params"]} == {
        "0.eigenvalues",
        "4.eigenvalues",
    }
    assert groups["quadratic"]["weight_decay"] == 1e-3


def test_a_norm_written_by_someone_else_is_known_by_its_name():
    class GridRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 3))

    model = nn.Sequential(nn.Linear(3, 3), GridRMSNorm())
    groups = _by_name(param_groups(model, 0.1, decay_bias_and_norm=False))
    spared = {id(p) for p in groups["linear_no_decay"]["params"]}
    assert spared == {id(model[0].bias), id(model[1].scale)}


def test_shared_layers_and_tied_parameters_come_once():
    layer = QuadraticLinear(4, 4, rank=1)
    other = QuadraticLinear(4, 4, rank=1)
    other.eigenvalues = layer.eigenvalues
    model = nn.ModuleList([layer, layer, other])
    groups = _by_name(param_groups(model, 0.1))
    assert len(groups["quadratic"]["params"]) == 1
    assert len(groups["linear"]["params"]) == 4


def test_frozen_parameters_are_left_out():
    model = eigen_net()
    model[0].requires_grad_(False)
    model[6].weight.requires_grad_(False)
    held = {id(p) for group in param_groups(model, 0.1) for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_only_quadratic_trains_nothing_else():
    model = eigen_net()
    groups = param_groups(model, 0.1, quadratic_lr=0.3, only="quadratic")
    assert [group["name"] for group in groups] == ["quadratic"]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(groups)
    model(images()).square().sum().backward()
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"0.eigenvalues", "4.eigenvalues"}
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("neuron", "name"), [("eigen", "eigenvalues"), ("shared", "eigenvalues"), ("fan", "weight2")]
)
def test_parametrized_quadratic_parameters_stay_quadratic(neuron, name):
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x

    layer = make_layer(nn.Linear, 3, 6, neuron=neuron)
    parametrize.register_parametrization(layer, name, Scale())
    parametrize.register_parametrization(layer, "weight", Scale())
    groups = _by_name(param_groups(layer, 0.1))
    names = {id(p): name for name, p in layer.named_parameters()}
    quadratic = {names[id(p)] for p in groups["quadratic"]["params"]}
    assert {f"parametrizations.{name}.original", f"parametrizations.{name}.0.gain"} <= quadratic
    linear = {names[id(p)] for p in groups["linear"]["params"]}
    assert linear == {"bias", "parametrizations.weight.original", "parametrizations.weight.0.gain"}


@pytest.mark.parametrize("neuron", sorted(set(neurons()) - {"linear"}))
def test_every_neuron_declares_its_quadratic_parameters(neuron):
    model = nn.Sequential(make_layer(nn.Conv1d, 2, 6, 2, neuron=neuron), nn.BatchNorm1d(6))
    groups = _by_name(param_groups(model, 0.1))
    declared = {id(p) for p in model[0].quadratic_parameters().values()}
    assert {id(p) for p in groups.get("quadratic", {"params": []})["params"]} == declared
    # kervolution's curvature has no parameter of its own: it is in the power.
    assert declared or neuron == "kervolution"
    everything = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())


_OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    # the base class; one group only; sparse gradients only; matrices only
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_torch_optimizer_takes_the_groups(name):
    model = eigen_net()
    optimizer = getattr(torch.optim, name)(param_groups(model, 1e-2, decay_bias_and_norm=False))
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        model(images()).square().sum().backward()
        optimizer.step()
    for (label, p), old in zip(model.named_parameters(), before, strict=True):
        assert not torch.equal(p, old), label
    again = getattr(torch.optim, name)(param_groups(model, 1.0, decay_bias_and_norm=False))
    again.load_state_dict(optimizer.state_dict())
    assert [group["name"] for group in again.param_groups] == [
        "linear",
        "linear_no_decay",
        "quadratic",
    ]
    assert [group["lr"] for group in again.param_groups] == [
        group["lr"] for group in optimizer.param_groups
    ]


def test_lbfgs_takes_one_group_alone():
    model = eigen_net()
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        torch.optim.LBFGS(param_groups(model, 1.0))
    (group,) = param_groups(model, 1.0, only="quadratic")
    torch.optim.LBFGS(group["params"], lr=0.1)


def _steps(optimizer: torch.optim.Optimizer, scheduler, steps: int = 4) -> list[list[float]]:
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=[1.0, 0.1], total_steps=6),
    ],
)
def test_schedulers_keep_the_ratio(make):
    optimizer = torch.optim.SGD(param_groups(eigen_net(), 1.0, quadratic_lr=0.1))
    rates = _steps(optimizer, make(optimizer))
    assert len({linear for linear, _ in rates}) > 1
    for linear, quadratic in rates:
        assert quadratic == pytest.approx(0.1 * linear)


def test_a_tensor_rate_is_given_to_each_group_apart():
    groups = param_groups(eigen_net(), torch.tensor(1.0), 0.1, decay_bias_and_norm=False)
    optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([0.5, 0.5, 0.05])
    assert len({id(g["lr"]) for g in optimizer.param_groups}) == 3


NET, FROZEN = eigen_net(), QuadraticLinear(3, 4)
FROZEN.eigenvalues.requires_grad_(False)


@refusals(
    (lambda: param_groups(NET, -1.0), ValueError, "lr must be finite and >= 0, got -1.0:"),
    (lambda: param_groups(NET, math.nan), ValueError, "lr must be finite and >= 0, got nan"),
    (lambda: param_groups(NET, "0.1"), TypeError, "lr must be a number, got '0.1'"),
    (lambda: param_groups(NET, True), TypeError, "lr must be a number, got True"),
    (lambda: param_groups(NET, 1, -0.5), ValueError, "quadratic_lr must be finite .* -0.5"),
    (lambda: param_groups(NET, 1, 1, -1), ValueError, "weight_decay must be .* got -1"),
    (
        lambda: param_groups(NET, 1, quadratic_weight_decay=math.inf),
        ValueError,
        "quadratic_weight_decay must be finite .* got inf",
    ),
    (lambda: param_groups(NET, 1, only="linear"), ValueError, "None or 'quadratic', got 'lin"),
    (
        lambda: param_groups(nn.Linear(2, 2), 0.1, only="quadratic"),
        ValueError,
        "got Linear without any: convert it with quadric",
    ),
    (
        lambda: param_groups(nn.Linear(2, 2).requires_grad_(False), 0.1),
        ValueError,
        "requires a gradient, got Linear without any: unfreeze",
    ),
    (
        lambda: param_groups(FROZEN, 0.1, only="quadratic"),
        ValueError,
        "a quadratic parameter that requires a gradient, got QuadraticLinear.*unfreeze",
    ),
    (lambda: param_groups([], 0.1), TypeError, "model must be a torch.nn.Module, got list"),
    (
        lambda: param_groups(nn.LazyLinear(3), 0.1),
        ValueError,
        "got 'weight' without a shape: run one forward pass",
    ),
)
def test_refusals(check: Check):
    check()
