"""param_groups with torch's optimizers and schedulers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from quadric.layers import QuadraticConv2d, QuadraticLinear, make_layer, neurons
from quadric.optim import param_groups


def _model() -> nn.Sequential:
    return nn.Sequential(
        QuadraticConv2d(1, 7, 3, rank=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Flatten(),
        QuadraticLinear(28, 6, rank=3),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    )


def _images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 1, 4, 4)


def _by_name(groups: list[dict]) -> dict[str, dict]:
    assert len({group["name"] for group in groups}) == len(groups)
    return {group["name"]: group for group in groups}


def test_quadratic_parameters_are_apart_and_everything_is_there_once():
    model = _model()
    groups = _by_name(param_groups(model, lr=0.5, weight_decay=1e-2))
    assert list(groups) == ["linear", "quadratic"]
    quadratic = [model[0].eigenvalues, model[4].eigenvalues]
    assert [id(p) for p in groups["quadratic"]["params"]] == [id(p) for p in quadratic]
    everything = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    assert groups["linear"]["lr"] == 0.5
    assert groups["linear"]["weight_decay"] == 1e-2
    assert groups["quadratic"]["lr"] == pytest.approx(0.05)
    assert groups["quadratic"]["weight_decay"] == 0.0


def test_quadratic_rates_can_be_given():
    groups = _by_name(param_groups(_model(), 0.5, quadratic_lr=0.0, quadratic_weight_decay=0.25))
    assert groups["quadratic"]["lr"] == 0.0
    assert groups["quadratic"]["weight_decay"] == 0.25
    assert groups["linear"]["weight_decay"] == 0.0


def test_bias_and_norm_without_decay_if_asked():
    model = _model()
    model.append(nn.Embedding(2, 3))
    model.append(nn.MultiheadAttention(4, 2, add_bias_kv=True))
    model.append(nn.PReLU())
    model.append(nn.LayerNorm((2, 3)))
    groups = _by_name(
        param_groups(
            model,
            0.1,
            weight_decay=1e-2,
            quadratic_weight_decay=1e-3,
            decay_bias_and_norm=False,
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
    model = _model()
    model[0].requires_grad_(False)
    model[6].weight.requires_grad_(False)
    held = {id(p) for group in param_groups(model, 0.1) for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_only_quadratic_trains_nothing_else():
    model = _model()
    groups = param_groups(model, 0.1, quadratic_lr=0.3, only="quadratic")
    assert [group["name"] for group in groups] == ["quadratic"]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(groups)
    model(_images()).square().sum().backward()
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"0.eigenvalues", "4.eigenvalues"}
    assert all(p.requires_grad for p in model.parameters())


def test_model_without_quadratic_layers_has_one_group():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    groups = param_groups(model, 0.1, weight_decay=0.2)
    assert [group["name"] for group in groups] == ["linear"]
    assert len(groups[0]["params"]) == 4


def test_a_single_layer_is_a_model():
    groups = _by_name(param_groups(QuadraticLinear(3, 5, rank=2), 0.1))
    assert len(groups["linear"]["params"]) == 2
    assert len(groups["quadratic"]["params"]) == 1


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
    assert linear == {
        "bias",
        "parametrizations.weight.original",
        "parametrizations.weight.0.gain",
    }


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
    model = _model()
    optimizer = getattr(torch.optim, name)(param_groups(model, 1e-2, decay_bias_and_norm=False))
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        model(_images()).square().sum().backward()
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


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("mode", ["fused", "foreach"])
def test_fused_and_foreach_steps(name, mode):
    model, twin = _model(), _model()
    twin.load_state_dict(model.state_dict())
    x = _images()
    for net, options in ((model, {mode: True}), (twin, {})):
        optimizer = getattr(torch.optim, name)(param_groups(net, 1e-2), **options)
        net(x).square().sum().backward()
        optimizer.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(p, q)


def test_lbfgs_takes_one_group_alone():
    model = _model()
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        torch.optim.LBFGS(param_groups(model, 1.0))
    groups = param_groups(model, 1.0, only="quadratic")
    optimizer = torch.optim.LBFGS(groups[0]["params"], lr=0.1)
    model.eval()
    x = _images()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert closure() < first


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
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.5, total_iters=3),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 5),
    ],
)
def test_schedulers_keep_the_ratio(make):
    optimizer = torch.optim.SGD(param_groups(_model(), 1.0))
    rates = _steps(optimizer, make(optimizer))
    assert len({linear for linear, _ in rates}) > 1
    for linear, quadratic in rates:
        assert quadratic == pytest.approx(0.1 * linear)


def test_one_cycle_and_warm_restarts():
    groups = param_groups(_model(), 1.0, quadratic_lr=0.25)
    optimizer = torch.optim.AdamW(groups)
    peaks = [group["lr"] for group in groups]
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peaks, total_steps=6)
    rates = _steps(optimizer, scheduler, 5)
    assert max(linear for linear, _ in rates) == pytest.approx(1.0, rel=0.01)
    for linear, quadratic in rates:
        assert quadratic == pytest.approx(0.25 * linear)
    optimizer = torch.optim.SGD(param_groups(_model(), 1.0))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)
    for linear, quadratic in _steps(optimizer, scheduler):
        assert quadratic == pytest.approx(0.1 * linear)


def test_reduce_on_plateau():
    optimizer = torch.optim.SGD(param_groups(_model(), 1.0))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for _ in range(3):
        scheduler.step(1.0)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.25, 0.025])


def test_a_tensor_rate_is_given_to_each_group_apart():
    groups = param_groups(_model(), torch.tensor(1.0), decay_bias_and_norm=False)
    optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([0.5, 0.5, 0.05])
    assert len({id(g["lr"]) for g in optimizer.param_groups}) == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, r"lr must be finite and >= 0, got -1.0: give a number >= 0"),
        ({"lr": float("nan")}, ValueError, "lr must be finite and >= 0, got nan"),
        ({"lr": "0.1"}, TypeError, "lr must be a number, got '0.1'"),
        ({"lr": True}, TypeError, "lr must be a number, got True"),
        ({"lr": 1, "quadratic_lr": -0.5}, ValueError, "quadratic_lr must be finite .* got -0.5"),
        ({"lr": 1, "weight_decay": -1}, ValueError, "weight_decay must be finite .* got -1"),
        (
            {"lr": 1, "quadratic_weight_decay": float("inf")},
            ValueError,
            "quadratic_weight_decay must be finite .* got inf",
        ),
        ({"lr": 1, "only": "linear"}, ValueError, "only must be None or 'quadratic', got 'linear'"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        param_groups(_model(), **options)


def test_models_that_cannot_be_grouped_are_refused():
    plain = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"got Linear without any: convert it with quadric"):
        param_groups(plain, 0.1, only="quadratic")
    with pytest.raises(ValueError, match=r"requires a gradient, got Linear without any: unfreeze"):
        param_groups(plain.requires_grad_(False), 0.1)
    layer = QuadraticLinear(3, 4)
    layer.eigenvalues.requires_grad_(False)
    with pytest.raises(
        ValueError,
        match=r"a quadratic parameter that requires a gradient, got QuadraticLinear.*unfreeze",
    ):
        param_groups(layer, 0.1, only="quadratic")
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got generator"):
        param_groups(layer.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"got '0.weight' without a shape: run one forward pass"):
        param_groups(lazy, 0.1, decay_bias_and_norm=False)
