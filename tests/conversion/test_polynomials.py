"""Activations and maxima become polynomials, fitted to what a batch shows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.errors import InputError
from quadric.layers.parabola import AveragePool, Parabola


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(54, 8), nn.GELU(), nn.Linear(8, 3),
    )  # fmt: skip
    for _ in range(20):
        model(3 * pictures())
    return model.eval()


def pictures(count: int = 200) -> Tensor:
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def test_each_parabola_is_the_best_one_for_what_it_sees() -> None:
    model, x = network(), pictures()
    before, weights = copy.deepcopy(model), [p.clone() for p in model.parameters()]
    report = quadric.convert_(model, activations="polynomial", example_inputs=x)
    assert [type(model[i]) for i in (2, 3, 6)] == [Parabola, AveragePool, Parabola]
    assert report.names == ["2", "3", "6"]
    assert not report.lossless
    assert report.params_after == report.params_before + 6
    assert "3 layers converted to polynomial" in str(report)
    kept = [p for name, p in model.named_parameters() if "coefficients" not in name]
    for old, new in zip(weights, kept, strict=True):
        assert torch.equal(old, new)
    with torch.no_grad():
        entering = model[:2](x).flatten().double()
        a, b, c = model[2].coefficients.double()
        grid = torch.linspace(float(entering.min()), float(entering.max()), 100).double()
        seen = torch.cat([entering, grid])
        weight = torch.ones(len(seen)).double()
        weight[-100:] = len(entering) / 2000
        rows = torch.stack([seen**2, seen, torch.ones_like(seen)], 1) * weight.sqrt()[:, None]
        best = torch.linalg.lstsq(rows, before[2](seen.clone()) * weight.sqrt()).solution
        torch.testing.assert_close(torch.stack([a, b, c]), best, rtol=1e-4, atol=1e-5)
        # The second is fitted to what comes behind the first.
        behind, right = model[:6](x), nn.functional.gelu(model[:6](x))
        assert (model[6](behind) - right).square().mean() < 0.02 * right.square().mean()
        assert (model(x) - before(x)).norm() < 0.6 * before(x).norm()
    assert quadric.encrypted.check(model, x).ok


def test_fine_tuning_reaches_every_number() -> None:
    model, x = network(), pictures(8)
    quadric.convert_(model, activations="polynomial", example_inputs=x)
    model.train()(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_converted_network_is_saved_and_loaded(tmp_path: Path, dtype: torch.dtype) -> None:
    model = network().to(dtype)
    x = pictures().to(dtype)
    quadric.convert_(model, activations="polynomial", example_inputs=x)
    quadric.convert_(model, "shared")
    quadric.save(model, tmp_path / "file")
    again = network().to(dtype)
    assert quadric.load_(again, tmp_path / "file") == ["0", "2", "3", "5", "6"]
    torch.testing.assert_close(again.eval()(x), model(x), rtol=0, atol=0)
    assert again[2].coefficients.dtype == dtype
    with pytest.raises(InputError, match="save the whole model instead"):
        quadric.save(model, tmp_path / "adapter", only="quadratic")


def test_names_choose() -> None:
    class Step(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sign()

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Step(), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(50, 4)
    only = copy.deepcopy(model)
    report = quadric.convert_(only, activations="polynomial", exclude=["1"], example_inputs=x)
    assert report.names == ["3"]
    assert [s.name for s in report.skipped] == ["1"]
    # A module of a user's own is an activation if the user says so.
    quadric.convert_(only, activations="polynomial", include=["2"], example_inputs=x)
    assert isinstance(only[2], Parabola)
    assert isinstance(only[1], nn.ReLU)


def test_a_module_in_two_places_is_fitted_to_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.fc = nn.ReLU(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(10 * self.act(x))

    model, x = Twice(), torch.randn(500, 4)
    quadric.convert_(model, activations="polynomial", example_inputs=x)
    curvature = float(model.act.coefficients[0].detach())
    once = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        once[0].weight.copy_(torch.eye(4))
        once[0].bias.zero_()
    quadric.convert_(once, activations="polynomial", example_inputs=x)
    assert curvature < 0.5 * float(once[1].coefficients[0].detach())


def test_torchs_fused_path_does_not_go_around_the_polynomial() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation=nn.ReLU(), batch_first=True)
    model, x = nn.Sequential(layer, nn.Linear(8, 2)).eval(), torch.randn(5, 3, 8)
    quadric.convert_(model, activations="polynomial", example_inputs=x)
    with torch.no_grad():
        fast = model(x)
    torch.testing.assert_close(fast, model.train()(x).detach())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "must see the range of the values, got no example_inputs"),
        ({"example_inputs": torch.full((4, 2, 8, 8), float("nan"))}, "must get finite values"),
        ({"example_inputs": torch.randn(4, 3)}, "must run through the model"),
        ({"example_inputs": pictures(), "rank": 3}, "got options for layers beside it"),
        ({"example_inputs": pictures(), "neuron": "shared"}, "got options for layers beside it"),
        ({"example_inputs": pictures(), "include": ["9"]}, "got '9' without any"),
        ({"example_inputs": pictures(), "include": ["5"]}, "layer '5' is no activation"),
        ({"example_inputs": pictures(), "activations": "cubic"}, 'must be "polynomial"'),
    ],
)
def test_mistakes_leave_the_model(options: dict[str, Any], message: str) -> None:
    model = network()
    kinds, state = [type(m) for m in model], copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=message):
        quadric.convert_(model, **{"activations": "polynomial"} | options)
    assert [type(m) for m in model] == kinds
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def test_what_has_no_average_in_its_place_is_named() -> None:
    model = nn.Sequential(nn.MaxPool2d(2, return_indices=True))
    with pytest.raises(InputError, match=r"neither dilation nor indices .* \(layer '0'\)"):
        quadric.convert_(model, activations="polynomial", example_inputs=torch.randn(1, 1, 4, 4))
    with pytest.raises(InputError, match="got a model without any"):
        quadric.convert_(
            nn.Sequential(nn.Linear(2, 2)),
            activations="polynomial",
            example_inputs=torch.ones(1, 2),
        )
