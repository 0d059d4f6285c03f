"""What an estimator is given: arrays of numbers, or frames, which are prepared first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted, validate_data

from quadric.errors import InputError

if TYPE_CHECKING:
    from quadric.data.frames import FramePreparation

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs, encoded targets and weights of rows, before they are standardized."""

LARGEST = 1e150
"""Larger numbers have no standard deviation in float64."""


class TableInput(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Abstract: an estimator that takes frames by the preparation that its first fit learned."""

    n_features_in_: int
    _preparation: FramePreparation | None = None  # pickles from before it have none

    def _read_frame(self, X: Any, first: bool) -> np.ndarray | None:
        """The numbers of a frame; None for what is no frame and needs no preparation."""
        frame = is_frame(X)
        if first:
            self._preparation = self._learn(X) if frame else None
        if self._preparation is None:
            return None
        if frame and not first:
            validate_data(self, X, skip_check_array=True, reset=False)  # checks the names
        elif not frame:
            X = validate_data(self, X, dtype=None, ensure_all_finite=False, reset=False)
        return self._preparation.transform(X)

    def _learn(self, X: Any) -> FramePreparation:
        from quadric.data.frames import FramePreparation, check_frame

        check_frame(X)
        validate_data(self, X, skip_check_array=True)  # notes the names
        return FramePreparation(X)

    def _unmasked(self, X: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
        """A frame without its rows of weight zero, from which nothing may be learned."""
        if not is_frame(X) or weights is None or np.shape(weights) != (len(X),):
            return X, y, weights
        kept = np.flatnonzero(np.asarray(weights) != 0)
        if not len(kept) or len(kept) == len(X) or len(y) != len(X):
            return X, y, weights
        return X.iloc[kept], _safe_indexing(y, kept), np.asarray(weights)[kept]

    def prepare(self, X: Any) -> np.ndarray:
        """The rows as the network takes them, in their own units.

        A number stands for itself, its hole for the median of the rows of `fit`, beside a column
        that marks it; categories are columns of 0 and 1, dates are days, month, weekday and hour.
        `prepared_names_` names the columns.

        Args:
            X: (rows, columns) as `fit` took them.

        Returns:
            (rows, prepared columns); of an array of numbers, itself.
        """
        check_is_fitted(self)
        numbers = self._read_frame(X, first=False)
        if numbers is None:
            numbers = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return np.asarray(numbers)

    @property
    def prepared_names_(self) -> list[str]:
        """The names of the columns that `prepare` gives."""
        check_is_fitted(self)
        return self._prepared_names()

    def _prepared_names(self) -> list[str]:
        if self._preparation is not None:
            return list(self._preparation.names)
        return [f"x{i}" for i in range(self.n_features_in_)]

    @property
    def dropped_columns_(self) -> dict[str, str]:
        """The columns of a frame that nothing can be learned from, with the reason."""
        check_is_fitted(self)
        return {} if self._preparation is None else dict(self._preparation.dropped)


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame of pandas, which is not imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(X, pandas.DataFrame)


def pair(eval_set: Any) -> tuple[Any, Any]:
    """The two parts of an eval_set."""
    if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
        raise InputError(
            f"eval_set must be a pair (X, y), got a {type(eval_set).__name__}: pass "
            "eval_set=(X_val, y_val)"
        )
    return eval_set[0], eval_set[1]


def weighted(rows: Arrays, class_weights: np.ndarray) -> Arrays:
    """Rows whose weights are multiplied with those of their classes."""
    X, targets, weights = rows
    return X, targets, (weights * class_weights[targets]).astype(weights.dtype)


def refuse_text(y: Any) -> None:
    """Refuses targets that are text and no numbers, by the first one."""
    values = np.asarray(y)
    if values.dtype.kind not in "OUT":
        return
    for value in (value for value in values.ravel() if isinstance(value, str)):
        try:
            float(value)
        except ValueError:
            raise InputError(
                f"y must hold numbers, got the text {str(value)!r}: turn it into numbers, as by "
                r"y.str.replace('[^0-9.-]', '', regex=True).astype(float), or use "
                "QuadraticClassifier if it is a label"
            ) from None


def plain_booleans(y: Any) -> Any:
    """Labels that are all True or False as numpy has them; other labels as they are.

    scikit-learn reads the booleans of pandas that allow holes as 0.0 and 1.0, and refuses objects.
    """
    values = np.asarray(y)
    if values.dtype == object and all(isinstance(v, bool | np.bool_) for v in values.ravel()):
        values = values.astype(bool)
    return values if values.dtype == bool else y


def refuse_large(values: np.ndarray, names: Sequence[str]) -> None:
    """Refuses numbers whose squares overflow; the names are those of the columns."""
    if max(-float(values.min()), float(values.max())) > LARGEST:
        largest = np.abs(values).max(0)
        column = int(largest.argmax())
        raise InputError(
            f"{names[column]!r} must hold numbers below {LARGEST:g}, got {largest[column]:g}: "
            "correct it, or give it in another unit"
        )


def without_zeros(
    X: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows whose weight is not zero."""
    if (weights < 0).any():
        raise InputError(f"sample_weight must not be negative, got {weights.min()}: leave rows out")
    kept = weights > 0
    if not kept.any():
        raise InputError("sample_weight must contain a non-zero number, got none: leave it out")
    if kept.all():
        return X, y, weights
    return X[kept], y[kept], weights[kept]
