"""quadratic_share against its definition."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from quadric.layers import QuadraticLinear, QuadraticMultiheadAttention, make_layer, neurons
from quadric.share import LayerShare, QuadraticShare, quadratic_share
from tests.networks import curve_, eigen_net, images
from tests.refusals import Check, refusals


def _plain_share(linear: Tensor, quadratic: Tensor) -> tuple[Tensor, Tensor]:
    """By the definition, from all values at once: rows are samples, columns neurons."""
    y1, y2 = linear.detach().double(), quadratic.detach().double()
    share = y2.var(0) / (y1.var(0) + y2.var(0))
    pairs = zip(y1.T, y2.T, strict=True)
    correlation = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs])
    return share, correlation


def test_share_of_a_linear_layer_is_the_ratio_of_variances():
    layer = QuadraticLinear(5, 10, rank=4)
    curve_(layer, 1.0)
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


@pytest.mark.parametrize("neuron", sorted(set(neurons()) - {"linear"}))
def test_every_neuron_has_a_share(neuron):
    layer = make_layer(nn.Conv1d, 2, 6, 2, neuron=neuron, dtype=torch.float64)
    curve_(layer, 1.0)
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
    curve_(block, 1.0)
    report = quadratic_share(block, [torch.randn(4, 5, 8)])
    assert list(report) == [f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
    assert all(layer.samples == 20 and layer.share > 0 for layer in report.values())


def test_layers_of_a_network_see_what_they_see_in_it():
    model = eigen_net()
    curve_(model, 1.0)
    model.train()
    batches = [images(6), images(3)]
    report = quadratic_share(model, batches)
    assert list(report) == ["0", "4"]
    model.eval()
    with torch.no_grad():
        hidden = model[:4](torch.cat(batches))
        share, _ = _plain_share(*model[4].responses(hidden)[:2])
    assert report["4"].share == pytest.approx(float(share.mean()), rel=1e-4)
    assert report.mean == pytest.approx((report["0"].share + report["4"].share) / 2)


def test_no_nan_where_nothing_varies():
    for layer in quadratic_share(eigen_net(), [images()]).values():  # eigenvalues of zero
        assert layer.share == 0.0
        assert layer.correlation is None
        assert set(layer.shares) == {0.0}
        assert set(layer.correlations) == {None}
    layer = QuadraticLinear(3, 4, rank=1)
    curve_(layer, 1.0)
    report = quadratic_share(layer, [torch.full((5, 3), 0.3), torch.full((2, 3), 0.3)])
    assert (report[""].share, report[""].correlation) == (0.0, None)


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


class _Scaled(nn.Module):
    """Two inputs, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = QuadraticLinear(3, 4, rank=1)

    def forward(self, x: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.layer(input=x * scale)


def test_batches_may_be_tensors_tuples_lists_or_mappings():
    layer = QuadraticLinear(3, 4, rank=1)
    curve_(layer, 1.0)
    x, target = torch.randn(9, 3), torch.zeros(9)
    expected = quadratic_share(layer, [x])[""].share
    assert quadratic_share(layer, x)[""].share == expected
    assert quadratic_share(layer, {"input": x})[""].share == expected
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
    assert quadratic_share(model, [(x, scale)])["layer"].share == expected
    assert quadratic_share(model, [[[x, scale], target]])["layer"].share == expected
    named = {"x": x, "scale": scale, "labels": target}
    assert quadratic_share(model, [named])["layer"].share == expected
    assert quadratic_share(model, [(named, target)])["layer"].share == expected


def test_model_is_left_as_it_was():
    model = nn.Sequential(eigen_net(), nn.Dropout(0.5))
    curve_(model, 1.0)
    model.train()
    model[0][1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    batches = [images()]
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
        quadratic_share(model, [images(), torch.randn(2, 3, 4, 4)])
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
    model = eigen_net()
    curve_(model, 1.0)
    with torch.no_grad():
        model[4].weight.fill_(float("inf"))
    report = quadratic_share(model, [images()])
    assert list(report) == ["0"]
    assert report.unmeasured == {"4": "its outputs are NaN or infinite"}
    assert report.mean == report["0"].share


def test_compiled_models_are_measured_too():
    layer = QuadraticLinear(3, 4, rank=1)
    curve_(layer, 1.0)
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
    model = eigen_net()
    curve_(model, 1.0)
    report = quadratic_share(model, [images(16)])
    assert isinstance(report, QuadraticShare)
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "neuron", "neurons", "share", "correlation"]
    assert lines[2].split()[:3] == ["0", "eigen", "3"]
    assert lines[2].split()[3] == f"{report['0'].share:.4f}"
    assert lines[2].split()[4] == f"{report['0'].correlation:+.3f}"
    assert lines[4].split() == ["mean", "over", "layers", f"{report.mean:.4f}"]
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["4"] == {
        "neuron": "eigen",
        "num_neurons": 2,
        "share": report["4"].share,
        "correlation": report["4"].correlation,
    }


LAYER = QuadraticLinear(3, 4)


@refusals(
    (lambda: quadratic_share(LAYER, "ab"), TypeError, "batches, got one str: give"),
    (lambda: quadratic_share(LAYER, 3), TypeError, "batches, got one int"),
    (lambda: quadratic_share(LAYER, []), ValueError, "at least one batch, got none"),
    (lambda: quadratic_share(LAYER, [()]), ValueError, "input, got an empty one"),
    (lambda: quadratic_share(nn.Linear(3, 4), []), ValueError, "quadratic layer, got Linear .*"),
    (lambda: quadratic_share(len, []), TypeError, "must be a torch.nn.Module, got builtin"),
)
def test_refusals(check: Check):
    check()
