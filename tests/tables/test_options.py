"""Losses, weights of classes, skewed targets, early stopping by a score, and a limit of time."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score, get_scorer
from sklearn.model_selection import train_test_split

from quadric.errors import InputError
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, fit_many
from quadric.tables.modules import input_scaling
from quadric.tables.target_transforms import Log, Quantiles

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def table(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(rows, 2))
    return X, X[:, 0] + draw.exponential(size=rows)


def small(kind: type[Any] = QuadraticRegressor, **options: Any) -> Any:
    # test_linear.py has what may take the network's place.
    usual = {"hidden_layer_sizes": (8,), "members": 1, "max_iter": 40, "random_state": 0}
    options = usual | {"linear_fallback": False} | options
    if kind is QuadraticRegressor:  # test_second_order.py has the other solver
        options = {"solver": "adam", **options}
    return kind(**options)


def test_losses_predict_the_mean_the_median_and_quantiles() -> None:
    X, y = table(2000)
    options: list[dict[str, Any]] = [
        {},
        {"loss": "absolute_error"},
        {"loss": "quantile", "quantile": 0.9},
        {"loss": "quantile", "quantile": 0.1},
    ]
    models = [small(max_iter=60, **chosen) for chosen in options]
    fit_many(models, [(X, y)] * 4)
    noise = [model.predict(X) - X[:, 0] for model in models]
    # Of an exponential: mean 1, median ln 2, quantiles -ln(1 - q).
    expected = [1, np.log(2), -np.log(0.1), -np.log(0.9)]
    np.testing.assert_allclose([part.mean() for part in noise], expected, atol=0.12)
    below = [(y < model.predict(X)).mean() for model in models[1:]]
    np.testing.assert_allclose(below, [0.5, 0.9, 0.1], atol=0.04)
    # A loss is falling, and its score is minus the loss.
    assert models[2].best_validation_score_ < 0


def test_several_quantiles_never_cross_and_hold_their_shares() -> None:
    X, y = table(1000)
    levels = (0.05, 0.1, 0.5, 0.9)
    model = small(max_iter=60, loss="quantile", quantile=levels).fit(X, y)
    found = model.predict(X)
    assert found.shape == (1000, 4)
    np.testing.assert_allclose((y[:, None] < found).mean(0), levels, atol=0.04)
    assert 0 < model.score(X, y) < 1
    far = X * 20  # where nothing was learned
    assert (np.diff(model.predict(far)) >= 0).all()
    model.module_.ordered = False
    assert (np.diff(model.predict(far)) < 0).any()
    with pytest.raises(InputError, match="are of one target, got y with 2 columns"):
        model.fit(X, np.column_stack([y, y]))


def test_balanced_classes_and_mappings() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(1500, 2))
    y = np.where(X[:, 0] + draw.normal(size=1500) > 2.2, "yes", "no")
    assert 0.04 < (y == "yes").mean() < 0.12

    def score(**options: Any) -> float:
        model = small(QuadraticClassifier, **options).fit(X, y)
        return float(balanced_accuracy_score(y, model.predict(X)))

    plain, balanced = score(), score(class_weight="balanced")
    assert balanced > plain + 0.1
    # "balanced" is what the mapping and the weights of rows say (the rows that learn are others).
    shares = {label: len(y) / 2 / (y == label).sum() for label in ("no", "yes")}
    options = {"early_stopping": False, "max_iter": 3}
    weights = np.vectorize(shares.get)(y)
    models = [
        small(QuadraticClassifier, class_weight=chosen, **options).fit(X, y)
        for chosen in ("balanced", shares)
    ]
    models.append(small(QuadraticClassifier, **options).fit(X, y, weights))
    for model in models[1:]:
        np.testing.assert_allclose(
            model.predict_proba(X), models[0].predict_proba(X), rtol=1e-9, atol=1e-9
        )
    # A class that the mapping does not name weighs 1.
    half = small(QuadraticClassifier, class_weight={"yes": 1.0}, **options).fit(X, y)
    plain_model = small(QuadraticClassifier, **options).fit(X, y)
    np.testing.assert_array_equal(half.predict_proba(X), plain_model.predict_proba(X))


def test_rows_that_are_held_out_have_the_weights_of_their_classes() -> None:
    X, y = table()
    (job,) = small(QuadraticClassifier, class_weight={True: 4.0})._make_jobs(X, y > 0)
    for rows in (job.train, job.validation):
        assert torch.equal(rows.weights, 1 + 3 * rows.targets)


def test_eval_set_is_what_stops() -> None:
    X, y = table()
    X, X_held, y, y_held = train_test_split(X, y, test_size=0.1, random_state=1)
    model = small().fit(X, y, eval_set=(X_held, y_held))
    assert model.best_validation_score_ == pytest.approx(model.score(X_held, y_held))
    # All other rows are learned from: the scaling is that of X.
    scaling = input_scaling(X, np.ones(len(X)), True)
    np.testing.assert_allclose(model.module_.input_mean, scaling.mean)
    few = small().fit(X[:50], y[:50], eval_set=(X_held, y_held))
    assert few.validation_scores_ is not None
    with pytest.raises(ValueError, match="an eval_set needs early stopping"):
        small(early_stopping=False).fit(X, y, eval_set=(X_held, y_held))
    with pytest.raises(ValueError, match=r"eval_set must be a pair \(X, y\), got a ndarray"):
        small().fit(X, y, eval_set=X_held)
    classes = np.where(y > 1, "a", "b")
    with pytest.raises(ValueError, match=r"got \['c'\].*leave them out of the eval_set"):
        small(QuadraticClassifier).fit(X, classes, eval_set=(X_held, ["c"] * len(X_held)))


@pytest.mark.parametrize("name", ["neg_mean_absolute_error", "r2"])
@pytest.mark.parametrize("transform", [None, "log", "quantile"])
def test_a_scorer_judges_a_regressor_in_the_unit_of_the_target(
    name: str, transform: str | None
) -> None:
    X, y = table()
    y = np.exp(y)
    held = (X[:60], y[:60])
    model = small(scoring=name, target_transform=transform).fit(X[60:], y[60:], eval_set=held)
    assert len(model.validation_scores_) == model.n_iter_
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert model.best_validation_score_ == pytest.approx(get_scorer(name)(model, *held))


@pytest.mark.parametrize("name", ["accuracy", "roc_auc", "neg_log_loss", "balanced_accuracy"])
def test_a_scorer_judges_a_classifier(name: str) -> None:
    X, y = table(80)
    held = (X[:30], np.where(y[:30] > 1, "high", "low"))
    model = small(QuadraticClassifier, scoring=name, class_weight="balanced")
    model.fit(X[30:], np.where(y[30:] > 1, "high", "low"), eval_set=held)
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert model.best_validation_score_ == pytest.approx(get_scorer(name)(model, *held))
    # Fewer than 100 rows are held out from, too: a scorer needs some.
    model.fit(X[:80], np.where(y > 1, "high", "low"))
    assert model.validation_scores_ is not None


def test_a_scorer_that_cannot_judge_is_refused_before_training() -> None:
    X, y = table()
    with pytest.raises(ValueError, match="scoring='accuracy' must be able to judge the 30 rows"):
        small(scoring="accuracy").fit(X, y)
    with pytest.raises(ValueError, match=r"scoring='r2' needs early stopping"):
        small(scoring="r2", early_stopping=False).fit(X, y)
    one = np.where(np.arange(300) == 0, "rare", "common")
    with pytest.raises(ValueError, match=r"scoring='roc_auc' must be .*but it gives nan"):
        small(QuadraticClassifier, scoring="roc_auc").fit(X, one)
    model = small().fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="accuracy"):
        model.set_params(scoring="accuracy", warm_start=True).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["log", "quantile"])
def test_skewed_targets_are_straightened_and_restored(
    name: str, dtype: str, tmp_path: Path
) -> None:
    X, y = table(400)
    X, y = X.astype(dtype), np.exp(2 * X[:, 0] + X[:, 1]).astype(dtype)
    model = small(target_transform=name, learning_rate_init=0.02).fit(X, y)
    plain = small(learning_rate_init=0.02).fit(X, y)
    assert model.score(X, y) > max(0.9, plain.score(X, y))
    module = model.to_torch()
    transform = module.transform
    # There and back, at the targets themselves.
    restored = transform(torch.tensor(transform.straighten(y[:, None]))).numpy()[:, 0]
    np.testing.assert_allclose(restored, y, rtol=2e-3 if name == "quantile" else 1e-5)
    with torch.no_grad():
        torch.testing.assert_close(module(torch.tensor(X)), torch.tensor(model.predict(X)))
        far = module(torch.tensor(X) * 1e6)
    assert torch.isfinite(far).all()
    assert model.predict(X).dtype == dtype


def test_predictions_go_one_range_beyond_the_logarithms_that_were_learned() -> None:
    transform = Log(np.array([[1.0], [10.0]]))
    far = transform(torch.tensor([[-9.0], [1.0], [9.0]], dtype=torch.float64))
    np.testing.assert_allclose(far.numpy()[:, 0], [0.1, math.e, 100], rtol=1e-9)


def test_the_middle_is_where_the_weight_lies() -> None:
    transform = Quantiles(np.arange(5.0)[:, None], np.array([16.0, 1, 1, 1, 1]))
    assert 0 < transform(torch.zeros(1, 1)).item() < 1


def test_quantiles_follow_weights_and_ties() -> None:
    X, y = table(200)
    y = np.round(y)
    weights = np.random.default_rng(1).integers(0, 3, 200)
    both = np.column_stack([y, -(y**3)])
    model = small(target_transform="quantile", max_iter=100).fit(X, both, weights)
    assert model.score(X, both) > 0.1
    kept = both[weights > 0]
    restored = model.predict(X * 1e3)
    assert (restored >= kept.min(0) - 1e-9).all()
    assert (restored <= kept.max(0) + 1e-9).all()


def test_auto_takes_logarithms_of_skewed_positive_targets_alone() -> None:
    X, y = table()
    for target, wanted in (
        (np.exp(2 * y), True),
        (-np.exp(2 * y), False),
        (y, False),
        (np.full(300, 5.0), False),
        (np.linspace(1, 9, 300), False),
    ):
        model = small(target_transform="auto", max_iter=2).fit(X, target)
        assert hasattr(model.module_, "transform") == wanted
        assert np.isfinite(model.predict(X)).all()
    with pytest.raises(ValueError, match="target_transform='log' needs targets above 0, got -"):
        small(target_transform="log").fit(X, y)


def test_the_epoch_that_passes_the_limit_of_time_is_the_last() -> None:
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # it ended as asked
        warnings.filterwarnings(
            "ignore", "(the fit ends with|on the held-out rows)"
        )  # one epoch is no good fit
        model = small(max_time=1e-9, max_iter=50).fit(X, y)
        pair = fit_many([small(max_time=1e-9, random_state=s) for s in (1, 2)], [(X, y)] * 2)
    assert model.n_iter_ == 1
    assert [m.n_iter_ for m in pair] == [1, 1]
    assert np.isfinite(model.predict(X)).all()
    assert small(max_time=1e9, max_iter=5).fit(X, y).n_iter_ == 5


def test_one_class_and_a_class_of_one_row() -> None:
    X, _ = table(120)
    with pytest.raises(ValueError, match="y must have at least 2 classes, got 1 class, a"):
        small(QuadraticClassifier).fit(X, ["a"] * 120)
    with pytest.raises(ValueError, match="'balanced' needs all rows at once"):
        small(QuadraticClassifier, class_weight="balanced").partial_fit(X, X[:, 0] > 0, [0, 1])
    rare = np.array(["a"] * 119 + ["b"])
    for weights in (None, "balanced"):
        model = small(QuadraticClassifier, class_weight=weights, max_iter=2).fit(X, rare)
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
