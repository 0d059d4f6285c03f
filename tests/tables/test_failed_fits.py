"""A fit that fails, or is interrupted, leaves the estimator as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, fit_many

draw = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": draw.normal(size=120), "b": draw.normal(size=120)})
FRAME.loc[::7, "a"] = np.nan
NUMBERS = FRAME["b"].to_numpy() ** 2
LABELS = np.where(NUMBERS > 0.5, "high", "low")
OTHER = FRAME.rename(columns={"a": "c"}) * 100 + 7
"""Another table: medians, names and scaling of it differ."""


class Interrupting:
    """Targets at which the user presses Ctrl-C."""

    def __len__(self) -> int:
        return len(FRAME)

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        raise KeyboardInterrupt


def model_of(labels: bool, **options: Any) -> Any:
    kind = QuadraticClassifier if labels else QuadraticRegressor
    return kind((4,), max_iter=3, tol=0.1, random_state=0, **options)


def diverging(model: Any, targets: Any) -> None:
    model.set_params(learning_rate_init=1e30, activation="none", alpha=1e30)
    model.fit(OTHER.astype("float32"), targets)


FAILURES: dict[str, Callable[[Any, Any], Any]] = {
    "NaN": lambda model, y: model.fit(OTHER, [np.nan] * len(OTHER)),
    "too few": lambda model, y: model.fit(OTHER, y[:3]),
    "infinite": lambda model, y: model.fit(OTHER.assign(b=np.inf), y),
    "Ctrl-C": lambda model, y: model.fit(OTHER, Interrupting()),
    "an eval_set": lambda model, y: model.fit(OTHER, y, eval_set=(OTHER, y[:3])),
    "weights": lambda model, y: model.fit(OTHER, y, sample_weight=-np.ones(len(y))),
    "partial_fit": lambda model, y: model.partial_fit(FRAME, Interrupting()),
    "fit_many": lambda model, y: fit_many([model, model_of(False)], [(OTHER, y), (OTHER, ["x"])]),
    "divergence": diverging,
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("kind", "labels", "warm"),
    [
        (kind, *options)
        for kind in FAILURES
        for options in itertools.product((False, True), repeat=2)
        # Log loss, and a network that goes on, stay finite.
        if kind != "divergence" or not any(options)
    ],
)
def test_the_first_model_stays(kind: str, labels: bool, warm: bool) -> None:
    targets = LABELS if labels else NUMBERS
    model = model_of(labels, warm_start=warm).fit(FRAME, targets)
    expected, before = model.predict(FRAME), vars(model).copy()
    with pytest.raises((ValueError, TypeError, KeyboardInterrupt)):
        FAILURES[kind](model, targets)
    changed = {"learning_rate_init", "activation", "alpha"} if kind == "divergence" else set()
    now = vars(model)
    assert now.keys() == before.keys()
    assert not [key for key in before if key not in changed and now[key] is not before[key]]
    np.testing.assert_array_equal(model.predict(FRAME), expected)


@pytest.mark.parametrize("labels", [False, True], ids=["regressor", "classifier"])
def test_one_that_never_was_fitted_stays_so(labels: bool) -> None:
    model = model_of(labels)
    before = vars(model).copy()
    with pytest.raises(KeyboardInterrupt):
        model.fit(FRAME, Interrupting())
    if labels:
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(FRAME, Interrupting(), classes=["high", "low"])
    assert vars(model) == before
