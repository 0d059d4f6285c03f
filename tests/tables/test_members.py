"""Several networks as one estimator: `members=k`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.tables.training import train

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
KINDS = [QuadraticRegressor, QuadraticClassifier]


def table(kind: type[Any], rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(rows, 3))
    y = X[:, 0] * X[:, 1] + 0.3 * X[:, 2]
    return X, y if kind is QuadraticRegressor else np.digitize(y, [-0.5, 0.5])


def answer(model: Any, X: np.ndarray) -> np.ndarray:
    regressor = isinstance(model, QuadraticRegressor)
    return np.asarray(model.predict(X) if regressor else model.predict_proba(X))


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_the_mean_of_the_members(kind: type[Any], tmp_path: Path) -> None:
    X, y = table(kind)
    options = {"max_iter": 30, "random_state": 0, "linear_fallback": False}
    model = kind((6,), members=3, **options).fit(X, y)
    one = kind((6,), members=1, **options).fit(X, y)
    assert model.n_parameters_ == 3 * one.n_parameters_
    module = model.module_
    assert len(module.networks) == 3
    with torch.no_grad():
        z = module.standardized(torch.tensor(X))
        each = np.stack([module.answer(network(z)).numpy() for network in module.networks])
    np.testing.assert_allclose(answer(model, X), each.mean(0), rtol=1e-9)
    # The first member is the network of a single fit; the others differ from it.
    np.testing.assert_allclose(each[0], answer(one, X), rtol=1e-6)
    assert np.abs(each[1] - each[0]).max() > 1e-3
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(answer(again, X), answer(model, X))
    np.testing.assert_allclose(answer(clone(model).fit(X, y), X), answer(model, X), rtol=1e-9)


def test_members_hold_different_rows_out_unless_they_are_given() -> None:
    X, y = table(QuadraticRegressor)
    model = QuadraticRegressor((4,), members=2)
    first, second = model._make_jobs(X, y)
    assert not torch.equal(first.validation.targets, second.validation.targets)
    assert first.seed != second.seed
    assert not torch.equal(*(next(job.network.parameters()) for job in (first, second)))
    first, second = model._make_jobs(X, y, eval_set=(X[:20], y[:20]))
    assert torch.equal(first.validation.targets, second.validation.targets)


def test_the_curves_are_means_over_the_members_that_still_learn() -> None:
    X, y = table(QuadraticRegressor)
    options = {"n_iter_no_change": 2, "learning_rate_init": 0.03, "solver": "adam"}
    model = QuadraticRegressor((6,), members=3, random_state=0, **options)
    model.fit(X, y)
    records = train(clone(model)._make_jobs(X, y))
    lengths = [len(record.losses) for record in records]
    assert len(set(lengths)) > 1
    assert model.n_iter_ == max(lengths)
    assert model.loss_curve_[0] == pytest.approx(np.mean([o.losses[0] for o in records]))
    longest = max(records, key=lambda record: len(record.losses))
    assert model.loss_curve_[-1] == pytest.approx(longest.losses[-1])
    best = np.mean([record.best_score for record in records])
    assert model.best_validation_score_ == pytest.approx(best)


def test_they_go_on_learning_each_by_itself() -> None:
    X, y = table(QuadraticRegressor)
    model = QuadraticRegressor((6,), members=2, random_state=0)
    for _ in range(3):
        model.partial_fit(X, y)
    assert [state.steps for state in model._optimizer] == [3, 3]
    assert model.n_iter_ == 3
    model.set_params(members=3)
    with pytest.raises(ValueError, match=r"3-6-1 \(2 members\) of shared"):
        model.partial_fit(X, y)
