"""A linear model has a part beside a network, or takes its place; files keep it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sympy import lambdify

import quadric
from quadric.analysis import to_sympy
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, load
from quadric.tables.jobs import Job, Rows, Settings
from quadric.tables.linear import (
    LOGISTIC_REGRESSION,
    RIDGE,
    SHARES,
    STRENGTHS,
    first_not_worse,
    mixed,
)
from quadric.tables.losses import SQUARED

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHORT: dict[str, Any] = {"hidden_layer_sizes": (8,), "members": 1, "max_iter": 2, "random_state": 0}
"""A network that has hardly begun to learn."""


def linear_table(rows: int = 160) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(rows, 4)) * [1, 10, 1, 1]
    return X, 100 + X @ [1, 0.1, -1, 0] + 0.3 * draw.normal(size=rows)


def fallen_back(classes: int = 0, **options: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    X, y = linear_table()
    options = SHORT | options
    if not classes:
        return QuadraticRegressor(**{"solver": "adam"} | options).fit(X, y), X, y
    y = np.digitize(y, [100, 101][: classes - 1])
    return QuadraticClassifier(**options).fit(X, y), X, y


def test_ridge_of_the_same_rows_takes_the_place_of_a_worse_network() -> None:
    X, y = linear_table()
    weights = np.where(np.arange(len(y)) % 2, 1.0, 3.0)
    alone = {"eval_set": (X[120:], y[120:])}  # so that all rows before are learned
    model = QuadraticRegressor(solver="adam", standardize="plain", **SHORT)
    model.fit(X[:120], y[:120], weights[:120], **alone)
    assert model.fallback_ == RIDGE
    assert RIDGE in model.solver_reason_
    assert (model.n_layers_, model.n_parameters_) == (2, 5)
    shares = weights[:120] / weights[:120].mean()
    mean = np.average(X[:120], axis=0, weights=shares)
    scale = np.sqrt(np.average((X[:120] - mean) ** 2, axis=0, weights=shares))
    centre = np.average(y[:120], weights=shares)
    deviation = np.sqrt(np.average((y[:120] - centre) ** 2, weights=shares))
    ridge = RidgeCV(STRENGTHS).fit((X[:120] - mean) / scale, (y[:120] - centre) / deviation, shares)
    expected = ridge.predict((X - mean) / scale) * deviation + centre
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9)
    assert model.best_validation_score_ == pytest.approx(model.score(X[120:], y[120:]))


def test_a_better_network_stays_and_so_does_one_that_nothing_may_replace() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 2))
    options = SHORT | {"max_iter": 200}
    model = QuadraticRegressor(solver="adam", **options).fit(X, X[:, 0] * X[:, 1])
    assert model.fallback_ is None
    assert "the network is kept" in model.solver_reason_
    assert len(model.module_.network) == 3
    for switch in ({"linear_fallback": False}, {"warm_start": True}, {"early_stopping": False}):
        assert fallen_back(**switch)[0].fallback_ is None


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_takes_the_place_of_a_worse_network(classes: int) -> None:
    model, X, y = fallen_back(classes)
    own = fallen_back(classes, linear_fallback=False)[0]
    assert model.fallback_ == LOGISTIC_REGRESSION
    assert own.fallback_ is None
    assert model.score(X, y) > own.score(X, y) + 0.1


@pytest.mark.parametrize(("classes", "members"), [(0, 1), (0, 2), (2, 1), (3, 2)])
def test_files_of_a_linear_model_predict_the_same(
    tmp_path: Path, classes: int, members: int
) -> None:
    model, X, _ = fallen_back(classes, members=members)
    assert model.fallback_
    assert len(model.module_.networks) == 1
    predict = model.predict_proba if classes else model.predict
    model.save(tmp_path / "model.quadric")
    again = load(tmp_path / "model.quadric")
    assert again.fallback_ == model.fallback_
    np.testing.assert_array_equal(
        again.predict_proba(X) if classes else again.predict(X), predict(X)
    )
    rows = torch.tensor(X)
    quadric.export_onnx(model.to_torch(), tmp_path / "model.onnx", rows)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: X})[0]
    np.testing.assert_allclose(found, predict(X), rtol=1e-6)


def blended(classes: int = 0, **options: Any) -> tuple[Any, np.ndarray]:
    """A fit in which network and linear model both have a part."""
    draw = np.random.default_rng(2)
    X, bent = draw.normal(size=(600, 4)), 0.6 if classes else 0.4
    y = 100 + X @ [2, 1, -1, 0] + bent * X[:, 0] * X[:, 1] + draw.normal(size=600)
    if classes:
        y = np.digitize(y, [100, 101][: classes - 1])
    made: Any = QuadraticClassifier if classes else partial(QuadraticRegressor, solver="adam")
    usual = {"hidden_layer_sizes": (8,), "max_iter": 60, "random_state": 0, "members": 2}
    return made(**usual | options).fit(X, y), X


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_prediction_of_a_blend_is_the_mean_by_shares_also_from_files(
    tmp_path: Path, classes: int
) -> None:
    model, X = blended(classes)
    share, module = model.network_share_, model.module_
    assert 0 < share < 1
    assert model.fallback_ is None
    assert f"a share of {share}" in model.solver_reason_
    rows = torch.tensor(X)
    z = module.standardized(rows)
    with torch.no_grad():
        networks = torch.stack([module.answer(network(z)) for network in module.networks]).mean(0)
        line = module.answer(module.linear(z))
    predict = model.predict_proba if classes else model.predict
    torch.testing.assert_close(torch.tensor(predict(X)), share * networks + (1 - share) * line)
    model.save(tmp_path / "model.quadric")
    again = load(tmp_path / "model.quadric")
    assert again.network_share_ == share
    found = again.predict_proba(X) if classes else again.predict(X)
    np.testing.assert_array_equal(found, predict(X))
    quadric.export_onnx(model.to_torch(), tmp_path / "model.onnx", rows)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: X})[0]
    np.testing.assert_allclose(found, predict(X), rtol=1e-6)


def test_the_formula_of_a_blend_has_all_members_and_the_linear_part() -> None:
    model, X = blended(activation="none", standardize="plain", max_iter=40)
    assert len(model.module_.networks) == 2
    assert 0 < model.network_share_ < 1
    formula = to_sympy(model)
    found = lambdify(formula.symbols, formula.outputs[0])(*X.T)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-9)


def test_the_linear_part_learned_all_rows_but_those_of_an_eval_set() -> None:
    X, y = linear_table()
    for given in ({}, {"eval_set": (X[:20], y[:20])}):
        model = QuadraticRegressor(solver="adam", standardize=False, **SHORT)
        model.fit(X, y, **given)
        assert model.fallback_
        ridge = RidgeCV(STRENGTHS).fit(X, y)
        np.testing.assert_allclose(model.predict(X), ridge.predict(X), rtol=1e-9)


def test_few_rows_must_say_clearly_that_the_network_is_better() -> None:
    draw = torch.Generator().manual_seed(1)
    truth, off, noise = torch.randn(3, 40, 1, generator=draw, dtype=torch.float64)
    line, own = truth + off, truth + 0.9 * off + 0.3 * noise

    def share(times: int) -> int:
        """Of the same rows again and again."""
        every = truth.repeat(times, 1)
        held = Rows(every, every, torch.ones(len(every), dtype=torch.float64))
        settings = Settings(40, 1, 0.0, 1, 0.0)
        job = Job(torch.nn.Sequential(), held, held, SQUARED, settings, 0.1, 0.1, 0)
        parts = [mixed(SQUARED, own, line, part).repeat(times, 1) for part in SHARES]
        return first_not_worse([job], [[part] for part in parts])

    shares = [share(times) for times in (1, 10, 10_000)]
    assert shares[0] < shares[1] < shares[2]


def test_intervals_error_bars_and_partial_fit_go_on() -> None:
    model, X, y = fallen_back(solver="lm", max_iter=1)
    assert model.fallback_ == RIDGE
    assert model.solver_ == "lm"
    low, high = model.predict_interval(X, coverage=0.8).T
    assert ((low <= y) & (y <= high)).mean() > 0.6
    std = model.predict(X, return_std=True)[1]
    np.testing.assert_allclose(std, 0.3, rtol=0.4)  # the noise
    before = model.module_.network[0].weight.clone()
    assert not torch.equal(model.partial_fit(X, y).module_.network[0].weight, before)
    assert model.fit(X, X[:, 2] * X[:, 3]) is model
    assert hasattr(model, "fallback_")


def test_a_fit_that_is_worse_than_the_mean_is_warned_of() -> None:
    X, _ = linear_table()
    y = np.random.default_rng(1).normal(size=160)
    y[120:] -= 5 * X[120:, 0]  # the opposite of what is learned
    y[:120] += 5 * X[:120, 0]
    with pytest.warns(ConvergenceWarning, match="worse than the mean"):
        QuadraticRegressor(**SHORT).fit(X[:120], y[:120], eval_set=(X[120:], y[120:]))
