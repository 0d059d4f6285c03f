"""param_groups with torch's optimizers and schedulers; quadratic_share against its definition."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from quadric.attention import QuadraticMultiheadAttention
from quadric.nn import QuadraticConv2d, QuadraticLayer, QuadraticLinear
from quadric.optim import LayerShare, QuadraticShare, param_groups, quadratic_share
from quadric.zoo import make_layer, neurons


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


def _bend_(model: nn.Module) -> None:
    """Gives every eigenvalue a value, so that there is curvature to see."""
    for layer in model.modules():
        if isinstance(layer, QuadraticLayer):
            for parameter in layer.quadratic_parameters().values():
                nn.init.normal_(parameter)


# --- param_groups ---------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"got Linear without any: convert it first with quadric"):
        param_groups(plain, 0.1, only="quadratic")
    with pytest.raises(ValueError, match=r"requires a gradient, got Linear without any: unfreeze"):
        param_groups(plain.requires_grad_(False), 0.1)
    layer = QuadraticLinear(3, 4)
    layer.eigenvalues.requires_grad_(False)
    with pytest.raises(ValueError, match=r"all are frozen: call requires_grad_"):
        param_groups(layer, 0.1, only="quadratic")
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got generator"):
        param_groups(layer.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"lazy parameter '0.weight': run one batch"):
        param_groups(lazy, 0.1, decay_bias_and_norm=False)


# --- quadratic_share ------------------------------------------------------------------------------


def _plain_share(linear: Tensor, quadratic: Tensor) -> tuple[Tensor, Tensor]:
    """By the definition, from all values at once: rows are samples, columns neurons."""
    y1, y2 = linear.detach().double(), quadratic.detach().double()
    share = y2.var(0) / (y1.var(0) + y2.var(0))
    pairs = zip(y1.T, y2.T, strict=True)
    correlation = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs])
    return share, correlation


def test_share_of_a_linear_layer_is_the_ratio_of_variances():
    layer = QuadraticLinear(5, 10, rank=4)
    _bend_(layer)
    batches = [torch.randn(n, 3, 5) for n in (4, 1, 7)]
    report = quadratic_share(layer, batches)
    assert list(report) == [""]
    linear, quadratic, _ = layer.responses(torch.cat(batches))
    share, correlation = _plain_share(linear.flatten(0, 1), quadratic.flatten(0, 1))
    result = report[""]
    assert isinstance(result, LayerShare)
    assert result.neuron == "eigen"
    assert result.num_neurons == 2
    assert result.samples == 36
    assert_close(torch.tensor(result.shares).double(), share, rtol=1e-5, atol=1e-7)
    assert_close(torch.tensor(result.correlations).double(), correlation, rtol=1e-5, atol=1e-7)
    assert result.share == pytest.approx(float(share.mean()), rel=1e-5)
    assert result.correlation == pytest.approx(float(correlation.mean()), rel=1e-5)
    assert 0 < result.share < 1


@pytest.mark.parametrize("batched", [True, False])
def test_share_of_a_convolution_counts_every_position(batched):
    layer = QuadraticConv2d(2, 6, 3, rank=1, groups=2)
    _bend_(layer)
    x = torch.randn(4, 2, 6, 5)
    report = quadratic_share(layer, [x] if batched else list(x))
    linear, quadratic, _ = layer.responses(x)
    share, _ = _plain_share(
        linear.movedim(1, -1).flatten(0, 2), quadratic.movedim(1, -1).flatten(0, 2)
    )
    assert report[""].num_neurons == 4
    assert report[""].samples == 4 * 4 * 3
    assert_close(torch.tensor(report[""].shares).double(), share, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("neuron", sorted(set(neurons()) - {"linear"}))
def test_every_neuron_has_a_share(neuron):
    layer = make_layer(nn.Conv1d, 2, 6, 2, neuron=neuron, dtype=torch.float64)
    _bend_(layer)
    x = torch.randn(5, 2, 8, dtype=torch.float64)
    report = quadratic_share(nn.Sequential(layer), [x[:2], x[2:]])["0"]
    linear, quadratic, _ = layer.responses(x)
    share, _ = _plain_share(*(part.movedim(1, -1).flatten(0, 1) for part in (linear, quadratic)))
    assert_close(torch.tensor(report.shares, dtype=torch.float64), share)
    assert report.neuron == neuron
    assert 0 < report.share <= 1


def test_projections_of_an_attention_are_seen_in_eval():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    block.self_attn = QuadraticMultiheadAttention.from_mha(block.self_attn, rank=3)
    _bend_(block)
    report = quadratic_share(block, [torch.randn(4, 5, 8)])
    assert list(report) == [f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
    assert all(layer.samples == 20 and layer.share > 0 for layer in report.values())


def test_layers_of_a_network_see_what_they_see_in_it():
    model = _model()
    _bend_(model)
    model.train()
    batches = [_images(6), _images(3)]
    report = quadratic_share(model, batches)
    assert list(report) == ["0", "4"]
    model.eval()
    with torch.no_grad():
        hidden = model[:4](torch.cat(batches))
        share, _ = _plain_share(*model[4].responses(hidden)[:2])
    assert report["4"].share == pytest.approx(float(share.mean()), rel=1e-4)
    assert report.mean == pytest.approx((report["0"].share + report["4"].share) / 2)


def test_zero_eigenvalues_give_share_zero_and_no_correlation():
    report = quadratic_share(_model(), [_images()])
    for layer in report.values():
        assert layer.share == 0.0
        assert layer.correlation is None
        assert set(layer.shares) == {0.0}
        assert set(layer.correlations) == {None}


def test_no_nan_where_nothing_varies():
    layer = QuadraticLinear(3, 4, rank=1)
    _bend_(layer)
    report = quadratic_share(layer, [torch.full((5, 3), 0.3), torch.full((2, 3), 0.3)])
    assert report[""].share == 0.0
    assert report[""].correlation is None


def test_rounding_is_not_curvature():
    layer = QuadraticLinear(1, 2, rank=1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]))
        layer.bias.copy_(torch.tensor([1.0, 100.0]))
        layer.eigenvalues.fill_(1.0)
    x = torch.tensor([[0.0], [7.7e-6]])  # the squares differ by their last digit
    _, quadratic, _ = layer.responses(x)
    assert quadratic[0] != quadratic[1]
    assert quadratic_share(layer, [x])[""].share == 0.0


def test_purely_quadratic_and_cancelling_parts():
    layer = QuadraticLinear(1, 2, rank=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]))
        layer.eigenvalues.fill_(2.0)
    x = torch.rand(64, 1) + 1
    assert quadratic_share(layer, [x])[""].share == 1.0
    assert quadratic_share(layer, [x])[""].correlation is None
    with torch.no_grad():
        layer.weight[0] = -4.0
    cancelling = quadratic_share(layer, [x])[""]
    assert cancelling.correlation is not None
    assert cancelling.correlation < -0.95
    with torch.no_grad():
        layer.weight[0] = 4.0
    assert quadratic_share(layer, [x])[""].correlation == pytest.approx(-cancelling.correlation)


def test_streaming_keeps_digits_far_from_zero():
    # A mean a million times the standard deviation: sums of squares in one pass would lose it all.
    layer = QuadraticLinear(2, 2, rank=1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        layer.eigenvalues.fill_(1.0)
    x = torch.randn(300, 2, dtype=torch.float64)
    x[:, 0] += 1e8
    x[:, 1] += 1e4
    report = quadratic_share(layer, list(x.split(7)))
    linear, quadratic, _ = layer.responses(x)
    share, correlation = _plain_share(linear, quadratic)
    assert report[""].share == pytest.approx(float(share), rel=1e-6)
    assert report[""].correlation == pytest.approx(float(correlation), rel=1e-4)


def test_order_and_size_of_batches_do_not_matter():
    model = _model()
    _bend_(model)
    x = _images(12)
    whole = quadratic_share(model, [x])
    for parts in (x.split(5), reversed(x.split(1)), [x[:0], x, x[:0]]):
        report = quadratic_share(model, parts)
        assert list(report) == ["0", "4"]
        for name, layer in report.items():
            assert layer.share == pytest.approx(whole[name].share, rel=1e-5)
            assert layer.samples == whole[name].samples


def test_half_precision():
    layer = QuadraticLinear(8, 10, rank=4)
    _bend_(layer)
    x = torch.randn(256, 8)
    expected = quadratic_share(layer, [x])[""]
    result = quadratic_share(layer.bfloat16(), [x.bfloat16()])[""]
    assert result.share == pytest.approx(expected.share, abs=0.02)


class _Scaled(nn.Module):
    """Two inputs, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = QuadraticLinear(3, 4, rank=1)

    def forward(self, x: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.layer(input=x * scale)


def test_batches_may_be_tensors_tuples_lists_or_mappings():
    layer = QuadraticLinear(3, 4, rank=1)
    _bend_(layer)
    x, target = torch.randn(9, 3), torch.zeros(9)
    expected = quadratic_share(layer, [x])[""].share
    assert quadratic_share(layer, [(x, target)])[""].share == expected
    assert quadratic_share(layer, [[x, target]])[""].share == expected
    assert quadratic_share(layer, ((x, y) for x, y in [(x, target)]))[""].share == expected
    data = torch.utils.data.TensorDataset(x, target)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    assert quadratic_share(layer, loader)[""].share == pytest.approx(expected)
    model = _Scaled()
    model.layer = layer
    scale = torch.ones(1)
    assert quadratic_share(model, [((x, scale), target)])["layer"].share == expected
    named = {"x": x, "scale": scale, "labels": target}
    assert quadratic_share(model, [named])["layer"].share == expected
    assert quadratic_share(model, [(named, target)])["layer"].share == expected


def test_model_is_left_as_it_was():
    model = nn.Sequential(_model(), nn.Dropout(0.5))
    _bend_(model)
    model.train()
    model[0][1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    batches = [_images()]
    generator = torch.random.get_rng_state()
    quadratic_share(model, batches)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(p.grad is None for p in model.parameters())
    # and after an error too
    with pytest.raises(ValueError, match="in_channels = 1"):
        quadratic_share(model, [_images(), torch.randn(2, 3, 4, 4)])
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_called_twice_and_never():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = QuadraticLinear(3, 3, rank=2)
            self.unused = QuadraticLinear(3, 3, rank=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.used(x))

    report = quadratic_share(Twice(), [torch.randn(5, 3)])
    assert list(report) == ["used"]
    assert report["used"].samples == 10
    assert report.unmeasured == {"unused": "the forward pass never called it"}
    assert "unused: not measured, the forward pass never called it" in str(report)


def test_a_diverged_layer_is_named_and_not_averaged():
    model = _model()
    _bend_(model)
    with torch.no_grad():
        model[4].weight.fill_(float("inf"))
    report = quadratic_share(model, [_images()])
    assert list(report) == ["0"]
    assert report.unmeasured == {"4": "its outputs are NaN or infinite"}
    assert report.mean == report["0"].share


def test_a_neuron_without_a_split_is_named():
    class Opaque(QuadraticLayer):
        neuron = "opaque"
        rank = None

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def quadratic_parameters(self) -> dict[str, nn.Parameter]:
            return {"scale": self.scale}

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x * x

    report = quadratic_share(nn.Sequential(Opaque()), [torch.ones(2, 2)])
    assert len(report) == 0
    assert report.mean is None
    assert report.unmeasured["0"].startswith("the neuron 'opaque' has no split")
    assert "mean over layers" not in str(report)


def test_compiled_models_are_measured_too():
    layer = QuadraticLinear(3, 4, rank=1)
    _bend_(layer)
    x = torch.randn(16, 3)
    expected = quadratic_share(layer, [x])[""].share
    compiled = torch.compile(layer, backend="eager")
    compiled(x)
    assert quadratic_share(compiled, [x])[""].share == expected
    inside = nn.Sequential(nn.Identity(), torch.compile(layer, backend="eager"))
    inside(x)
    assert [entry.share for entry in quadratic_share(inside, [x]).values()] == [expected]
    layer.compile(backend="eager")
    layer(x)
    assert quadratic_share(layer, [x])[""].share == expected


def test_report_prints_and_serializes():
    model = _model()
    _bend_(model)
    report = quadratic_share(model, [_images(16)])
    assert isinstance(report, QuadraticShare)
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "neuron", "neurons", "share", "correlation"]
    assert lines[1].split()[:3] == ["0", "eigen", "3"]
    assert lines[1].split()[3] == f"{report['0'].share:.4f}"
    assert lines[1].split()[4] == f"{report['0'].correlation:+.3f}"
    assert lines[3].split() == ["mean", "over", "layers", f"{report.mean:.4f}"]
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["4"] == {
        "neuron": "eigen",
        "num_neurons": 2,
        "share": report["4"].share,
        "correlation": report["4"].correlation,
    }


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (torch.ones(2, 3), TypeError, "iterable of batches, got one Tensor: put a single batch"),
        ({"x": torch.ones(2, 3)}, TypeError, "iterable of batches, got one dict"),
        (3, TypeError, "iterable of batches, got one int"),
        ([], ValueError, "at least one batch, got none"),
        ([()], ValueError, "a batch must hold an input, got an empty one"),
    ],
)
def test_bad_batches_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        quadratic_share(QuadraticLinear(3, 4), batches)


def test_models_without_quadratic_layers_are_refused():
    with pytest.raises(ValueError, match=r"must have a quadratic layer, got Linear .*convert_"):
        quadratic_share(nn.Linear(3, 4), [torch.ones(2, 3)])
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        quadratic_share(lambda x: x, [torch.ones(2, 3)])
