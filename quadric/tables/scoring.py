"""A scorer of scikit-learn as the judge of early stopping; ridge as that of a whole fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.tables.jobs import Rows

WORST = 1e30
"""What an epoch counts that a scorer cannot judge."""

PART = 2**14
FEW_ROWS = 20
CLEARLY_WORSE = 1.25
"""A network with so many times the squared error of ridge regression is worth a warning."""


class _Predicted(BaseEstimator):  # type: ignore[misc]
    """A fitted model whose predictions are known, as a scorer asks for them."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def predict(self, X: Any) -> np.ndarray:
        return self.values

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _Numbers(RegressorMixin, _Predicted):  # type: ignore[misc]
    pass


class _Classes(ClassifierMixin, _Predicted):  # type: ignore[misc]
    classes_: np.ndarray

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.values

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.classes_[self.values.argmax(1)])


class Judge:
    """Scores predictions for the rows that are held out."""

    def __init__(
        self, scoring: str, truth: np.ndarray, weights: np.ndarray, classes: np.ndarray | None
    ) -> None:
        self.scoring, self.truth, self.classes = scoring, truth, classes
        # Not every scorer takes weights.
        self.options = {} if (weights == weights[0]).all() else {"sample_weight": weights}
        self.rows = np.zeros((len(truth), 1))

    def __call__(self, predicted: np.ndarray) -> tuple[float, float]:
        """What early stopping lowers, which is never negative, and the score.

        An epoch that cannot be judged, such as a negative prediction by a logarithmic error, counts
        as a very bad one.
        """
        try:
            return self._judge(predicted)
        except ValueError:
            return WORST, -WORST

    def _judge(self, predicted: np.ndarray) -> tuple[float, float]:
        model: Any = _Numbers(predicted)
        if self.classes is not None:
            model = _Classes(predicted)
            model.classes_ = self.classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            score = float(get_scorer(self.scoring)(model, self.rows, self.truth, **self.options))
        # Errors come as negative numbers; all other scores are at most 1.
        return (-score if self.scoring.startswith("neg_") else 1 - score), score

    def check(self, predicted: np.ndarray) -> None:
        """Refuses a scorer that cannot judge such predictions, before anything is trained."""
        try:
            score = self._judge(predicted)[1]
            reason = "" if np.isfinite(score) else f"it gives {score}"
        except (ValueError, TypeError, AttributeError) as error:
            reason = str(error).splitlines()[0][:150]
        if self.scoring == "positive_likelihood_ratio":
            reason = "it has no upper limit"
        if reason:
            raise InputError(
                f"scoring={self.scoring!r} must be able to judge the {len(self.truth):,} rows that "
                f"are held out, but {reason}: choose another scorer, or other rows by eval_set"
            )


@torch.no_grad()
def worse_than_ridge(network: nn.Module, train: Rows, held: Rows | None) -> float:
    """How many times ridge's squared error a network has, on the rows that tell; 1 if not clear."""
    rows = train if held is None else held
    size = train.inputs.shape[1] + 1
    if len(rows.inputs) < FEW_ROWS or size > len(train.inputs):
        return 1.0
    penalty = 1e-3 * float(train.weights.double().sum())
    square = penalty * torch.eye(size, dtype=torch.float64, device=train.inputs.device)
    product: Any = 0.0
    for inputs, targets, weights in _parts(train):
        weighted = (inputs * weights[:, None]).T
        square += weighted @ inputs
        product = product + weighted @ targets
    line = torch.linalg.solve(square, product)
    ridge = torch.cat([(x @ line - y).square().mean(1) for x, y, _ in _parts(rows)])
    pairs = zip(rows.inputs.split(PART), rows.targets.split(PART), strict=True)
    own = torch.cat([(network(x) - y).double().square().mean(1) for x, y in pairs])
    gap = own - ridge
    clear = float(gap.mean()) > 2 * float(gap.std()) / len(gap) ** 0.5
    ratio = float(own.mean() / ridge.mean().clamp(min=1e-12))
    return ratio if clear and ratio > CLEARLY_WORSE else 1.0


def _parts(rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some rows at a time in float64, with a column of ones."""
    for inputs, targets, weights in zip(*(part.split(PART) for part in rows), strict=True):
        ones = torch.ones_like(inputs[:, :1])
        yield torch.cat([inputs, ones], 1).double(), targets.double(), weights.double()
