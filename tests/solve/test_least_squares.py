"""Fits to data: what they reach, when they stop, what they leave behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.layers import make_layer
from quadric.solve import LeastSquaresFit, Progress, least_squares

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(120, 2, dtype=torch.float64, generator=GENERATOR)
Y = (X[:, 0] * X[:, 1]).sin()
NOISE = torch.randn(120, dtype=torch.float64, generator=GENERATOR)


def network(
    outputs: int = 1, neuron: str = "linear", width: int = 8, seed: int = 0
) -> nn.Sequential:
    torch.manual_seed(seed)
    hidden = make_layer(nn.Linear, 2, width, neuron=neuron)
    return nn.Sequential(hidden, nn.Tanh(), nn.Linear(width, outputs)).double()


def mean_square(model: nn.Module, y: Tensor = Y, x: Tensor = X) -> float:
    with torch.no_grad():
        return float((model(x).double().reshape(y.shape) - y).square().mean())


def test_a_linear_fit_is_that_of_lstsq() -> None:
    model = nn.Linear(2, 2).double()
    targets = torch.stack([Y, X[:, 0] ** 2], 1)
    weight = torch.linspace(0, 2, 120, dtype=torch.float64)
    fit = least_squares(model, X, targets, sample_weight=weight, regularization=None)
    table = torch.cat([X, torch.ones(120, 1, dtype=torch.float64)], 1)
    root = weight.sqrt().unsqueeze(1)
    wanted = torch.linalg.lstsq(table * root, targets * root).solution
    torch.testing.assert_close(torch.cat([model.weight.T, model.bias[None]]).detach(), wanted)
    residuals = (model(X).detach() - targets) * root
    assert fit.loss == pytest.approx(float(residuals.square().sum() / weight.sum() / 2))


@pytest.mark.parametrize("neuron", ["linear", "square", "glu"])
def test_a_network_reaches_a_function(neuron: str) -> None:
    model = network(neuron=neuron, width=16)
    fit = least_squares(model, X, Y)
    assert fit.loss == pytest.approx(mean_square(model))
    assert fit.loss < 3e-4 * float(Y.var())
    assert fit.solver == "normal"
    assert fit.steps == len(fit.history)


def test_the_solvers_take_the_same_steps() -> None:
    models = [network(width=24) for _ in range(3)]
    fits = [
        least_squares(model, X[:40], Y[:40], solver=solver, max_steps=6, regularization=0.1)
        for model, solver in zip(models, ("normal", "residual", "products"), strict=True)
    ]
    losses = [fit.loss for fit in fits]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    # Conjugate gradients do not know the diagonal, so that their damping differs.
    start = mean_square(network(width=24), Y[:40], X[:40])
    assert max(losses[0], losses[2]) < 0.5 * start


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = network(outputs=2), network(outputs=2)
    targets = torch.stack([Y, X[:, 0]], 1)
    first = least_squares(whole, X, targets, max_steps=10)
    monkeypatch.setattr("quadric.solve.problems.BLOCK", 7 * 2 * 42)
    second = least_squares(parts, X, targets, max_steps=10)
    assert second.loss == pytest.approx(first.loss, rel=1e-6)
    torch.testing.assert_close(first.std(X), second.std(X), rtol=1e-3, atol=0)


def _callback_stops(progress: Progress) -> bool:
    return progress.step == 9


def _interrupts(progress: Progress) -> None:
    if progress.step == 9:
        raise KeyboardInterrupt


STOPS: dict[str, tuple[dict[str, Any], str, int]] = {
    "steps": ({"max_steps": 9}, "max_steps = 9", 9),
    "seconds": ({"max_seconds": 0.0}, "max_seconds = 0", 1),
    "callback": ({"callback": _callback_stops}, "callback", 9),
    "Ctrl-C": ({"callback": _interrupts}, "interrupted", 9),
    "a standstill": ({"tolerance": 0.9999999}, "fell by less than", 31),
}


@pytest.mark.parametrize("name", STOPS)
def test_it_stops_and_says_why(name: str) -> None:
    options, reason, steps = STOPS[name]
    model = network()
    before = mean_square(model)
    fit = least_squares(model, X, Y, **options)
    assert reason in fit.reason
    assert fit.steps == steps
    assert mean_square(model) == pytest.approx(fit.loss)
    assert fit.loss < before or steps == 1


def test_it_stops_where_nothing_is_left() -> None:
    model = network()
    fit = least_squares(model, X[:5], Y[:5], regularization=None)
    assert "zero" in fit.reason
    assert fit.solver == "residual"
    assert mean_square(model, Y[:5], X[:5]) < 1e-25


def test_validation_keeps_the_best_step() -> None:
    noisy = Y + 0.3 * NOISE
    model = network(width=30)
    fit = least_squares(
        model, X[:60], noisy[:60], validation=(X[60:], noisy[60:]), regularization=None
    )
    assert "validation" in fit.reason
    curve = [progress.validation for progress in fit.history]
    kept = mean_square(model, noisy[60:], X[60:])
    assert kept == pytest.approx(min(value for value in curve if value is not None))
    assert fit.history[-1].loss < mean_square(model, noisy[:60], X[:60])


def test_float32_is_written_back() -> None:
    model = network().float()
    fit = least_squares(model, X.float(), Y.float())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert fit.loss == pytest.approx(mean_square(model.double()))
    half = network().to(torch.bfloat16)
    assert any("model.double()" in note for note in least_squares(half, X, Y).notes)


def test_what_is_frozen_stays() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    fit = least_squares(model, X, Y)
    torch.testing.assert_close(model[0].weight, before, rtol=0, atol=0)
    assert fit.history[0].loss > fit.loss


def test_a_fit_that_is_no_better_than_a_line_says_so() -> None:
    model = network(width=1)
    fit = least_squares(model, X, 3 * X[:, 0] - X[:, 1], regularization=1e3)
    assert any("linear fit" in note for note in fit.notes)


def test_rows_of_weight_zero_are_left_out() -> None:
    weight = torch.ones(120, dtype=torch.float64)
    weight[50:] = 0
    fit = least_squares(network(), X, Y, sample_weight=weight, max_steps=2)
    assert "50 residuals" in fit.why


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.idle = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def scaled(factor: float, offset: float = 0.0) -> tuple[nn.Module, Tensor, Tensor]:
    return network(), X, Y * factor + offset


# A model and data that are odd but right, and how much of the targets' spread may be left.
ODD: dict[str, tuple[Callable[[], tuple[nn.Module, Any, Any]], float]] = {
    "constant targets": (lambda: (network(), X, Y * 0 + 3), 1e-6),
    "zero targets": (lambda: (network(), X, Y * 0), 1e-6),
    "a constant column": (lambda: (network(), X * torch.tensor([1.0, 0.0]) + 5, X[:, 0]), 0.1),
    "one row": (lambda: (network(), X[:1], Y[:1]), 0.01),
    "fewer rows than parameters": (lambda: (network(), X[:10], Y[:10]), 0.1),
    "large targets": (lambda: scaled(1e30), 0.3),
    "small targets": (lambda: scaled(1e-30), 0.3),
    "targets far from zero": (lambda: scaled(1.0, 1e6), 0.3),
    "large columns": (lambda: (network(), X * 1000, X[:, 0]), 0.1),
    "duplicated rows": (lambda: (network(), X[:5].repeat(9, 1), Y[:5].repeat(9)), 1e-6),
    "an idle parameter": (lambda: (Idle(), X, Y), 0.3),
    "integers": (lambda: (network(), (3 * X).long(), (3 * X[:, 0]).long()), 0.1),
    "arrays": (lambda: (network(), X.numpy(), Y.numpy()), 0.3),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data_and_models_work(name: str) -> None:
    make, share = ODD[name]
    model, x, y = make()
    fit = least_squares(model, x, y, max_steps=60)
    targets = torch.as_tensor(y).double()
    spread = float(targets.std()) if len(targets) > 1 else 0.0
    spread = spread or float(targets.abs().max()) or 1.0
    assert mean_square(model, targets, torch.as_tensor(x).double()) ** 0.5 < share * spread
    assert bool(fit.std(x).isfinite().all())


def spoiled(values: Tensor, value: float = float("nan")) -> Tensor:
    values = values.clone()
    values[3] = value
    return values


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1)).double()


class Centered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def broken() -> nn.Module:
    model = network()
    nn.init.constant_(model[0].weight, float("nan"))
    return model


# The model, the arguments, and words of the error.
REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "NaN in inputs": (network, {"inputs": spoiled(X)}, "inputs must be finite, got 2"),
    "infinite targets": (network, {"targets": spoiled(Y, float("inf"))}, "targets must be finite"),
    "two columns for one": (
        network,
        {"targets": Y[:, None].repeat(1, 2)},
        r"\(120, 1\), got shape",
    ),
    "a row too few": (network, {"targets": Y[1:]}, "nothing is broadcast"),
    "no rows": (network, {"inputs": X[:0], "targets": Y[:0]}, "at least one row"),
    "a column too few": (network, {"inputs": X[:, :1]}, "must take inputs of shape"),
    "huge columns": (network, {"inputs": X * 1e30}, "size near 1, got .* column 0: standardize"),
    "tiny columns": (network, {"inputs": X * 1e-30}, "size near 1"),
    "targets beyond squares": (network, {"targets": Y * 1e200}, "scale them"),
    "negative weights": (network, {"sample_weight": -Y.abs()}, "sample_weight must be one number"),
    "BatchNorm": (lambda: with_layer(nn.BatchNorm1d(4)), {}, "BatchNorm1d '1' in training mode"),
    "dropout": (lambda: with_layer(nn.Dropout()), {}, "Dropout '1' in training mode"),
    "means over rows": (lambda: with_layer(Centered()), {}, "alone and together"),
    "nothing to train": (lambda: network().requires_grad_(False), {}, "require gradients"),
    "a broken model": (broken, {}, "'0.weight'"),
    "half precision beyond its range": (
        lambda: network().half(),
        {"targets": Y * 1e30},
        "must fit torch.float16",
    ),
    "both doors": (network, {"terms": []}, "got both"),
    "an unknown solver": (network, {"solver": "magic"}, "solver must be auto"),
    "an unknown regularization": (network, {"regularization": "bayes"}, "must be 'evidence'"),
    "a negative decay": (network, {"regularization": -1.0}, "or None, got -1.0"),
    "an infinite decay": (network, {"regularization": float("inf")}, "a finite number"),
    "half a step": (network, {"max_steps": 2.5}, "a whole number >= 1, got 2.5"),
    "steps in words": (network, {"max_steps": "many"}, "a whole number >= 1, got 'many'"),
    "a validation table": (network, {"validation": X}, "must be a pair"),
    "no validation rows": (network, {"validation": (X[:0], Y[:0])}, "must have at least one row"),
    "no steps": (network, {"max_steps": 0}, "a whole number >= 1, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fitted_is_refused(name: str) -> None:
    make, options, words = REFUSED[name]
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=words):
        least_squares(model, **{"inputs": X, "targets": Y, **options})
    after = model.state_dict()
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((network(), X), "got neither"),
        ((network(), "abc", Y), "array of numbers"),
        ((3, X, Y), "Module"),
    ],
)
def test_wrong_types_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InputTypeError, match=words):
        least_squares(*arguments)


def test_a_fit_prints_in_one_line() -> None:
    fit: LeastSquaresFit = least_squares(network(), X, Y, max_steps=2)
    assert "history" not in repr(fit)
    assert "\n" not in repr(fit)


def test_a_start_that_validates_best_is_kept() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    before = [p.clone() for p in model.parameters()]
    held = model(x).detach()
    fit = least_squares(model, x, (3 * x).sin(), validation=(x, held))
    assert fit.validation < 1e-28
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
