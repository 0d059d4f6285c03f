"""`solver="auto" | "lm" | "adam"`, and the error bars of a second-order fit."""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from quadric.errors import InputError
from quadric.sklearn import QuadraticRegressor, fit_many
from quadric.tables.comparison.plan import ComparisonPlan, parse_neurons
from quadric.tables.second_order import _is_lower

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def table(rows: int = 200, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(-1, 1, size=(rows, 2))
    return X, np.sin(3 * X[:, 0]) * X[:, 1] + noise * draw.normal(size=rows)


def small(**options: Any) -> QuadraticRegressor:
    return QuadraticRegressor(
        **{"hidden_layer_sizes": (8, 8), "members": 1, "random_state": 0, **options}
    )


@pytest.mark.parametrize(
    ("options", "solver", "words"),
    [
        ({}, "lm", "180 targets, 233 parameters"),
        ({"solver": "lm"}, "lm", "asked for"),
        ({"solver": "adam"}, "adam", "asked for"),
        ({"hidden_layer_sizes": (400, 400), "max_iter": 1}, "adam", "more than 10 s"),
        ({"loss": "absolute_error"}, "adam", "minimizes squares alone"),
        ({"scoring": "r2"}, "adam", "got scoring"),
    ],
)
def test_the_solver_and_its_reason(options: dict[str, Any], solver: str, words: str) -> None:
    model = small(**{"max_iter": 5, **options}).fit(*table())
    assert model.solver_ == solver
    assert words in model.solver_reason_


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "newton"}, "solver must be one of auto, lm, adam"),
        ({"solver": "lm", "loss": "quantile", "quantile": 0.5}, "minimizes squares alone"),
        ({"solver": "lm", "scoring": "r2"}, "got scoring"),
    ],
)
def test_what_cannot_be_solved_so_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        small(**options).fit(*table())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ["silu", "sin"])
def test_a_smooth_function_is_learned_ten_times_better(dtype: str, activation: str) -> None:
    X, y = table()
    X_new, y_new = table(seed=1)
    models = [
        small(solver=solver, activation=activation).fit(X.astype(dtype), y)
        for solver in ("adam", "lm")
    ]
    errors = [np.abs(model.predict(X_new.astype(dtype)) - y_new).mean() for model in models]
    assert errors[1] < errors[0] / 10
    assert models[1].predict(X.astype(dtype)).dtype == dtype
    assert models[1].n_iter_ == len(models[1].loss_curve_) > models[0].n_iter_
    assert models[1].best_validation_score_ > 0.999


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_a_fit_to_noise_is_not_worse_than_adam_on_the_held_out_rows(noise: float) -> None:
    X, y = table(noise=noise)
    adam, lm = (small(solver=solver, tol=1e-2).fit(X, y) for solver in ("adam", "lm"))
    assert lm.best_validation_score_ >= adam.best_validation_score_ - 1e-9
    if "Adam's is kept" in lm.solver_reason_:
        np.testing.assert_array_equal(lm.predict(X), adam.predict(X))
    else:
        assert lm.best_validation_score_ > adam.best_validation_score_


@pytest.mark.parametrize(
    ("squares", "than", "lower"),
    [
        ([1.0, 1.0, 1.0], [2.0, 2.1, 1.9], True),
        ([1.0, 1.0, 1.0], [9.0, 1.1, 1.1], True),  # lower on every row
        ([1.0, 1.0, 1.0], [3.0, 0.5, 0.0], False),  # by chance
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0], [0.9, 0.9, 0.9], False),
        ([1.0], [2.0], True),
    ],
)
def test_a_step_must_beat_adam_by_a_standard_error(
    squares: list[float], than: list[float], lower: bool
) -> None:
    assert _is_lower(torch.tensor(squares), torch.tensor(than)) == lower


@pytest.mark.parametrize(("squares", "lower"), [([3.0, 0.4, 0.0], True), ([3.0, 0.6, 0.0], False)])
def test_less_is_enough_where_the_learned_rows_agree(squares: list[float], lower: bool) -> None:
    than = torch.tensor([2.5, 0.5, 0.5])
    assert not _is_lower(torch.tensor(squares), than)
    assert _is_lower(torch.tensor(squares), than, agreed=True) == lower


def test_the_best_of_some_starts_goes_on() -> None:
    model = small(solver="lm", hidden_layer_sizes=(4,), warm_start=True).fit(*table())
    assert "the best of 4 starts after" in model.solver_reason_
    again = small(solver="lm", hidden_layer_sizes=(4,)).fit(*table())
    np.testing.assert_array_equal(model.predict(table()[0]), again.predict(table()[0]))
    # A network that goes on learning has no other start.
    assert "starts" not in model.fit(*table()).solver_reason_


def test_two_starts_in_vain_are_enough() -> None:
    X, y = table(noise=3.0, seed=1)
    reason = small(solver="lm", hidden_layer_sizes=(4,)).fit(X, y).solver_reason_
    assert "the best of 2 starts" in reason
    assert "Adam's is kept" in reason


def test_auto_has_a_bound_in_steps() -> None:
    X, y = table(700)
    steps = {
        solver: small(solver=solver, hidden_layer_sizes=(40, 20))._make_jobs(X, y)[0].max_steps
        for solver in ("auto", "lm")
    }
    assert steps["lm"] == 500
    assert 100 <= steps["auto"] < 300


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 25), (0.0, None)])
def test_auto_ends_soon_where_nothing_is_gained(noise: float, steps: int | None) -> None:
    X, y = table(noise=noise)
    model, whole = (small(solver=solver, max_iter=150).fit(X, y) for solver in ("auto", "lm"))
    alone = small(solver="adam", max_iter=150).fit(X, y)
    assert whole.n_iter_ > alone.n_iter_ + 25
    if steps is None:  # where something is, it is the same fit
        np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    else:
        assert model.n_iter_ == alone.n_iter_ + steps
        assert "nothing was gained in the first 25 steps" in model.solver_reason_
        np.testing.assert_array_equal(model.predict(X), alone.predict(X))


def test_weights_of_rows_count() -> None:
    X, y = table(90)
    wrong = np.where(np.arange(90) < 30, 5.0, 0.0)
    weights = np.where(wrong > 0, 1e-6, 1.0)
    model = small(solver="lm").fit(X, y + wrong, sample_weight=weights)
    assert np.abs(model.predict(X) - y)[30:].max() < 0.05


def test_error_bars_grow_outside_of_the_data_and_with_the_noise() -> None:
    bars = {}
    for noise in (0.05, 0.2):
        X, y = table(noise=noise)
        model = small(solver="lm", members=2).fit(X, y)
        mean, bars[noise] = model.predict(X, return_std=True)
        np.testing.assert_array_equal(mean, model.predict(X))
        assert bars[noise].shape == y.shape
        outside = model.predict(3 * X + 3 * np.sign(X), return_std=True)[1]
        assert np.median(outside) > 3 * np.median(bars[noise])
        again = pickle.loads(pickle.dumps(model)).predict(X[:5], return_std=True)[1]
        np.testing.assert_allclose(again, bars[noise][:5], rtol=1e-9)
    assert 0.04 < np.median(bars[0.05]) < 0.08
    assert 0.17 < np.median(bars[0.2]) < 0.3


def test_each_target_has_its_own_error_bars() -> None:
    X, y = table(noise=0.2)
    both = np.stack([y, 100 * np.random.default_rng(3).normal(size=len(y))], 1)
    std = small(solver="lm").fit(X, both).predict(X, return_std=True)[1]
    assert std.shape == both.shape
    assert 50 < np.median(std[:, 1]) < 200
    assert np.median(std[:, 0]) < 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "adam"}, "needs a fit by Levenberg-Marquardt"),
        ({"target_transform": "quantile"}, "need a target as it is"),
    ],
)
def test_a_fit_without_error_bars_says_so(options: dict[str, Any], words: str) -> None:
    model = small(max_iter=5, **options).fit(*table())
    with pytest.raises(InputError, match=words):
        model.predict(table()[0], return_std=True)


@pytest.mark.slow
@pytest.mark.parametrize("neuron", ["linear", "shared"])
def test_intervals_of_90_percent_hold_87_to_93(neuron: str) -> None:
    inside = []
    for seed in range(10):
        X, y = table(400, noise=0.2, seed=seed)
        model = small(solver="lm", neuron=neuron, random_state=seed).fit(X, y)
        X_new, y_new = table(2000, noise=0.2, seed=100 + seed)
        mean, std = model.predict(X_new, return_std=True)
        inside.append(np.mean(np.abs(y_new - mean) < 1.645 * std))
    assert 0.87 < np.mean(inside) < 0.93


ODD: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "constant target": (table()[0], np.full(200, 7.0)),
    "constant column": (np.hstack([table()[0], np.full((200, 1), 100.3)]), table()[1]),
    "one row": (table(1)[0], table(1)[1]),
    "fewer rows than parameters": table(20),
    "the same rows again": (np.repeat(table(10)[0], 12, 0), np.repeat(table(10)[1], 12)),
    "huge": (1e30 * table()[0], 1e30 * table()[1]),
    "tiny": (1e-30 * table()[0], 1e-30 * table()[1]),
    "far from zero": (table()[0] + 1e6, table()[1] - 1e6),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_fit(name: str) -> None:
    X, y = ODD[name]
    model = small(solver="lm", max_iter=60).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert np.abs(mean - y).max() <= max(np.ptp(y), 1e-6 * abs(y[0]))


class Interrupting(io.StringIO):
    """A screen that stands for Ctrl-C as soon as a certain line is printed."""

    def write(self, text: str) -> int:
        if "Levenberg-Marquardt step 40" in text:
            raise KeyboardInterrupt
        return super().write(text)


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    adam = small(solver="adam").fit(X, y)
    model = small(solver="lm", verbose=True)
    monkeypatch.setattr(sys, "stdout", Interrupting())
    with pytest.warns(ConvergenceWarning, match="interrupted: the best so far is kept"):
        model.fit(X, y)
    assert "interrupted" in model.solver_reason_
    assert np.abs(model.predict(X) - y).mean() < np.abs(adam.predict(X) - y).mean()
    with pytest.raises(KeyboardInterrupt):  # several fits end as a whole
        fit_many([small(solver="lm", verbose=True)], [(X, y)])


def test_max_time_ends_the_second_part() -> None:
    X, y = table()
    model = small(solver="lm", max_time=1e-3).fit(X, y)
    assert "max_time was over" in model.solver_reason_


def test_a_fit_that_does_not_converge_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="Maximum iterations"):
        small(solver="lm", max_iter=3).fit(*table())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(solver="lm", neuron="linear", hidden_layer_sizes=(2,)).fit(*table(noise=1.0))


@pytest.mark.parametrize(
    ("task", "wanted", "rows", "solver"),
    [
        ("regression", "auto", 125, "auto"),
        ("regression", "auto", 124, "adam"),  # one fold would learn from 99 rows
        ("regression", "auto", 20_000, "adam"),
        ("regression", "lm", 20_000, "lm"),
        ("regression", "adam", 100, "adam"),
        ("classification", "auto", 100, "adam"),
    ],
)
def test_a_comparison_has_one_solver(task: str, wanted: str, rows: int, solver: str) -> None:
    plan = ComparisonPlan(task, parse_neurons("eigen")).with_solver(wanted, rows, 5, 1)
    assert plan.solver == solver
    estimators = [plan.estimator(network, 5, 1, rows, 0) for network in plan.networks]
    if task == "regression":
        assert {estimator.solver for estimator in estimators} == {solver}
        name = "Adam" if solver == "adam" else "Levenberg-Marquardt after Adam"
        assert any(f"trained by {name} (" in note for note in plan.notes(rows))
    else:
        with pytest.raises(InputError, match="is for regression"):
            plan.with_solver("lm", rows, 5, 1)


def test_a_fit_that_ends_worse_than_ridge_is_said() -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = X @ [1.0, 2.0, 3.0] + 0.1 * np.random.default_rng(1).normal(size=300)
    stuck = QuadraticRegressor((2,), members=1, learning_rate_init=1e-6, max_iter=40, solver="adam")
    stuck.set_params(n_iter_no_change=3, tol=0.5, random_state=0, linear_fallback=False)
    with pytest.warns(ConvergenceWarning, match="times the squared error of ridge regression: try"):
        stuck.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QuadraticRegressor((8,), random_state=0).fit(X, y)
