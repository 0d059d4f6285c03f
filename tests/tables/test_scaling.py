"""How inputs are standardized: exactly between limits, pressed together beyond them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quadric
from quadric.models import create
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.tables.modules import LIMIT, REACH, TableRegressor, input_scaling

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def heavy(rows: int = 300, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """A column with a code for "unknown", a heavy-tailed one, a short one, flags, a constant."""
    draw = np.random.default_rng(0)
    X = np.column_stack(
        [
            np.where(draw.random(rows) < 0.02, 9999.0, draw.normal(50, 5, rows)),
            draw.standard_t(2, rows),
            draw.uniform(-1, 1, rows),
            (draw.random(rows) < 0.1).astype(float),
            np.full(rows, 7.0),
        ]
    ).astype(dtype)
    y = np.tanh(X[:, 1]) + X[:, 2] + X[:, 3]
    return X, y.astype(dtype)


def reference(X: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scaling that was learned from X, of rows, column by column in plain words."""
    out = np.empty(rows.shape)
    for j, column in enumerate(X.T.astype(np.float64)):
        ordered = np.sort(column)
        lower, median, upper = (ordered[math.ceil(q * len(ordered)) - 1] for q in (0.25, 0.5, 0.75))
        low, high = ordered[0], ordered[-1]
        if upper > lower:
            reach = LIMIT * (upper - lower) / 1.349
            low, high = max(low, median - reach), min(high, median + reach)
        kept = column.clip(low, high)
        mean, scale = kept.mean(), kept.std() or 1.0
        for i, value in enumerate(rows[:, j]):
            nearest = min(max(value, low), high)
            beyond = (value - nearest) / scale
            out[i, j] = (nearest - mean) / scale + beyond / (1 + abs(beyond) / REACH)
    return out


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-9), ("float32", 1e-4)])
def test_it_equals_the_formula(dtype: str, rtol: float) -> None:
    X, y = heavy(dtype=dtype)
    rows = np.vstack([X[:50], [[-1e6, 400, 9, 1, 7]], [[1e6, -400, -9, 0, 8]]]).astype(dtype)
    model = QuadraticRegressor((4,), members=1, early_stopping=False, max_iter=1).fit(X, y)
    found = model.module_.standardized(torch.tensor(rows))
    assert found.dtype == getattr(torch, dtype)
    np.testing.assert_allclose(found.numpy(), reference(X, rows), rtol=rtol, atol=rtol)


def test_a_column_without_outliers_is_standardized_as_ever() -> None:
    X = np.random.default_rng(0).uniform(2, 5, (200, 3))
    scaling = input_scaling(X, np.ones(200), True)
    np.testing.assert_allclose(scaling.mean, X.mean(0))
    np.testing.assert_allclose(scaling.scale, X.std(0))
    network = create("mlp", in_features=3, hidden=(4,)).double()
    module = TableRegressor(network, scaling, (torch.zeros(1), torch.ones(1)), flat=True)
    plain = (torch.tensor(X) - scaling.mean) / scaling.scale
    assert torch.equal(module.standardized(torch.tensor(X)), plain)


def test_weights_stand_for_repeated_rows() -> None:
    X, _ = heavy(100)
    weights = np.random.default_rng(1).integers(1, 4, 100)
    repeated = np.repeat(X, weights, axis=0)
    once = input_scaling(X, weights.astype(float), True)
    many = input_scaling(repeated, np.ones(len(repeated)), True)
    for a, b in zip(once, many, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_far_away_rows_get_bounded_predictions() -> None:
    X, y = heavy()
    model = QuadraticRegressor((20,), neuron="shared", members=1, random_state=0).fit(X, y)
    far = np.tile(X[:1], (4, 1))
    far[:, 1] = [1e3, 1e6, 1e9, 1e12]
    found = model.predict(far)
    assert np.abs(found).max() < 20 * np.abs(y).max()
    np.testing.assert_allclose(found[1:], found[-1], rtol=1e-2)


def test_one_outlier_does_not_spoil_a_column() -> None:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (600, 2))
    y = X[:, 0] * X[:, 1]
    X[0] = 1e4
    train, test = slice(0, 400), slice(400, 600)
    model = QuadraticRegressor((20,), members=1, max_iter=500, random_state=0).fit(
        X[train], y[train]
    )
    assert model.score(X[test], y[test]) > 0.95


def test_without_standardizing_nothing_is_pressed_together() -> None:
    X, y = heavy()
    model = QuadraticRegressor((4,), members=1, standardize=False, early_stopping=False, max_iter=1)
    model.fit(X[:, 1:], y)
    rows = torch.tensor(X[:, 1:]) * 1e3
    assert torch.equal(model.module_.standardized(rows), rows)


@pytest.mark.parametrize("kind", [QuadraticRegressor, QuadraticClassifier])
def test_onnx_presses_together_too(kind: type[Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    X, y = heavy(dtype="float32")
    model = kind((8,), max_iter=20, random_state=0)
    model.fit(X, y if kind is QuadraticRegressor else y > 0.3)
    rows = np.vstack([X, X[:5] * 1e4]).astype(np.float32)
    quadric.export_onnx(model.to_torch(), tmp_path / "model.onnx", torch.tensor(X[:4]))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: rows})
    expected = model.predict(rows) if kind is QuadraticRegressor else model.predict_proba(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rows_that_are_held_out_are_not_in_the_scaling() -> None:
    X, y = heavy(30)

    def learned(X: np.ndarray, y: np.ndarray) -> list[float]:
        model = QuadraticRegressor((2,), members=1, early_stopping=True, max_iter=1, random_state=0)
        module = model.fit(X, y).module_
        return [float(module.target_mean), *module.input_mean.tolist()]

    before, unseen = learned(X, y), 0
    for row in range(
        30
    ):  # a row that is seen moves the mean of the targets and of the third column
        one = np.arange(30) == row
        after = learned(X + one[:, None] * [0, 0, 0.1, 0, 0], y + one)
        assert (after[0] == before[0]) == (after[3] == before[3])
        unseen += after[0] == before[0]
    assert unseen == 3  # a tenth
