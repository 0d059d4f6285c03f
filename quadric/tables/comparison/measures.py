"""What is measured on test rows, and by what models are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score, roc_auc_score, root_mean_squared_error

UNEVEN = 3.0
"""Classes are uneven if the largest has this many times the rows of the smallest."""

# Below it a probability counts as this: what float32 still tells from 0 and 1.
_LEAST = 1e-7


@dataclass(frozen=True)
class Measure:
    """What models are judged by.

    Attributes:
        name: in tables.
        word: in sentences.
        field: of a fit, the lower the better.
        relative: whether differences are percent of the linear network's value, else points of the
            accuracy.
    """

    name: str
    word: str
    field: str
    relative: bool

    def shown(self, value: float) -> float:
        """The number that people read: accuracy instead of the share of wrong classes."""
        return value if self.relative else 1 - value


RMSE = Measure("RMSE", "error", "error", True)
ACCURACY = Measure("accuracy", "accuracy", "error", False)
LOG_LOSS = Measure("log loss", "log loss", "loss", True)


def choose_measure(task: str, target: pd.Series) -> Measure:
    """By what models of a task are judged: by log loss where classes are uneven."""
    if task == "regression":
        return RMSE
    counts = target.value_counts()
    return LOG_LOSS if counts.max() >= UNEVEN * counts.min() else ACCURACY


def measure_numbers(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float | None]:
    """Root mean square error, and R²."""
    return {
        "error": float(root_mean_squared_error(truth, predicted)),
        "score": float(r2_score(truth, predicted)),
    }


def measure_classes(model: Any, X: Any, truth: np.ndarray) -> dict[str, float | None]:
    """Share of wrong classes, accuracy, balanced accuracy, log loss and AUC of one against rest."""
    loss: float | None = None
    if hasattr(model, "predict_proba"):
        scores = np.asarray(model.predict_proba(X), dtype=np.float64)
        predicted = scores.argmax(1)
        known = truth < scores.shape[1]
        right = np.zeros(len(truth))
        right[known] = scores[known, truth[known]]
        loss = -float(np.log(right.clip(_LEAST, 1 - _LEAST)).mean())
    else:  # a support vector machine has distances instead
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        scores = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
        predicted = scores.argmax(1)
    accuracy = float((truth == predicted).mean())
    recalls = [float((predicted[truth == label] == label).mean()) for label in np.unique(truth)]
    return {
        "error": 1 - accuracy,
        "score": accuracy,
        "balanced": sum(recalls) / len(recalls),
        "loss": loss,
        "auc": _area(truth, scores),
    }


def _area(truth: np.ndarray, scores: np.ndarray) -> float | None:
    """The area under the curve of each class against the rest, averaged; None if it has none."""
    columns = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = []
    for label in columns:
        inside = truth == label
        if 0 < inside.sum() < len(truth) and np.isfinite(scores[:, label]).all():
            areas.append(float(roc_auc_score(inside, scores[:, label])))
    return sum(areas) / len(areas) if areas else None


def is_blow_up(value: float, guess: float, usual: float) -> bool:
    """Whether a fit went wrong so far that a mean over fits says nothing.

    Examples:
        >>> is_blow_up(0.9, guess=1.0, usual=0.1), is_blow_up(8.6, guess=1.0, usual=0.5)
        (False, True)
    """
    return value > 1.5 * guess and (value > 3 * usual or value > 3 * guess)


def guess_loss(target: pd.Series) -> float:
    """The log loss of a model that always says the shares of the classes."""
    shares = target.value_counts(normalize=True).to_numpy()
    return -float((shares * np.log(shares)).sum())
