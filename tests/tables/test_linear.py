"""A linear model takes a network's place where the held-out rows say so; files keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV

import quadric
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, load
from quadric.tables.linear import LOGISTIC_REGRESSION, RIDGE, STRENGTHS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHORT: dict[str, Any] = {"hidden_layer_sizes": (8,), "max_iter": 2, "random_state": 0}
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
    assert len(model.module_.networks) == members
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
