"""What is measured of classes, and by what models are judged."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from sklearn.svm import SVC

from quadric.tables.comparison.measures import (
    ACCURACY,
    LOG_LOSS,
    RMSE,
    choose_measure,
    guess_loss,
    is_blow_up,
    measure_classes,
)


def rows(classes: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3))
    y = (X[:, 0] + draw.normal(size=200) > 0).astype(int)
    return X, y + (X[:, 1] > 0.5) if classes == 3 else y


@pytest.mark.parametrize("classes", [2, 3])
def test_measures_are_those_of_scikit_learn(classes: int) -> None:
    X, y = rows(classes)
    model = LogisticRegression().fit(X[:120], y[:120])
    found = measure_classes(model, X[120:], y[120:])
    chances = model.predict_proba(X[120:])
    assert found["score"] == pytest.approx(model.score(X[120:], y[120:]))
    assert found["error"] == pytest.approx(1 - model.score(X[120:], y[120:]))
    assert found["loss"] == pytest.approx(log_loss(y[120:], chances))
    area = roc_auc_score(y[120:], chances[:, 1] if classes == 2 else chances, multi_class="ovr")
    assert found["auc"] == pytest.approx(area)
    balanced = balanced_accuracy_score(y[120:], model.predict(X[120:]))
    assert found["balanced"] == pytest.approx(balanced)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_without_probabilities_has_no_log_loss(classes: int) -> None:
    X, y = rows(classes)
    model = SVC().fit(X, y)
    found = measure_classes(model, X, y)
    assert found["loss"] is None
    assert found["score"] == pytest.approx(model.score(X, y), abs=0.02)
    assert 0.8 < (found["auc"] or 0) <= 1


def test_a_class_that_was_not_learned_is_wrong_and_costs() -> None:
    X, y = rows(2)
    model = LogisticRegression().fit(X, y)
    known = measure_classes(model, X, y)
    y[:20] = 2
    found = measure_classes(model, X, y)
    assert found["score"] <= 0.9  # type: ignore[operator]
    assert found["loss"] > known["loss"] + 1  # type: ignore[operator]
    assert measure_classes(model, X[:20], y[:20])["auc"] is None


def test_uneven_classes_are_judged_by_log_loss() -> None:
    assert choose_measure("regression", pd.Series([1.0, 2.0])) is RMSE
    assert choose_measure("classification", pd.Series(["a"] * 29 + ["b"] * 10)) is ACCURACY
    assert choose_measure("classification", pd.Series(["a"] * 30 + ["b"] * 10)) is LOG_LOSS
    assert guess_loss(pd.Series(["a", "b"] * 10)) == pytest.approx(np.log(2))


def test_blow_ups() -> None:
    # Ten times the usual error, but no worse than guessing: a bad model, not a blow-up.
    assert not is_blow_up(1.1, guess=1.0, usual=0.1)
    assert is_blow_up(1.6, guess=1.0, usual=0.1)
    # All models are bad, as on later rows of a table that drifts.
    assert not is_blow_up(2.5, guess=1.0, usual=2.4)
    assert is_blow_up(8.0, guess=1.0, usual=8.0)
