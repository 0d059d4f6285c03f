"""What an estimator is given: arrays of numbers, or frames, which are prepared first."""

from __future__ import annotations

import datetime
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from quadric.errors import DroppedColumnWarning, InputError
from quadric.support.extras import load_extra

if TYPE_CHECKING:
    import pandas as pd

    from quadric.data.columns import Column
    from quadric.data.preparation import TablePreparation

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs, encoded targets and weights of rows, before they are standardized."""

LARGEST = 1e150
"""Larger numbers have no standard deviation in float64."""

_LISTED = 10


class TableInput(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Abstract: an estimator that takes frames by the preparation that its first fit learned."""

    n_features_in_: int
    na_values: Sequence[Any] = ()
    _preparation: TablePreparation | None = None
    _target_reader: Column | None = None

    def _encode(self, y: np.ndarray, dtype: np.dtype, first: bool) -> np.ndarray:
        """Targets as the loss takes them, before standardization.

        The first time it notes their form: `n_outputs_`, and the classes.
        """
        raise NotImplementedError

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool, dtype: np.dtype | None
    ) -> Arrays:
        """Rows as numbers, those of weight zero left out, and targets encoded."""
        options = {
            "dtype": [np.float64, np.float32],
            "multi_output": True,
            "y_numeric": is_regressor(self),
        }
        X, y, sample_weight = without_masked(as_pandas(X), y, sample_weight)
        if first:
            self._target_reader = None
        y = self._read_target(y)
        refuse_holes(y)
        X, prepared = self._read_inputs(X, first, usable_targets(y, is_regressor(self)))
        if prepared:
            X, y = check_X_y(X, y, estimator=self, **options)
        else:
            X, y = validate_data(self, X, y, reset=first, **options)
        refuse_large(X, self._prepared_names())
        weights = read_weights(sample_weight, len(X), X.dtype)
        X, y, weights = without_zeros(X, y, weights)
        if dtype is not None:
            X, weights = X.astype(dtype, copy=False), weights.astype(dtype, copy=False)
        return X, self._encode(y, X.dtype, first=first), weights

    def _read_target(self, y: Any) -> Any:
        """Targets as scikit-learn takes them: amounts in text as numbers, booleans as numpy's."""
        if not is_regressor(self):
            return plain_booleans(y)
        y, self._target_reader = read_numbers(y, self._target_reader)
        return y

    def _read_inputs(self, X: Any, first: bool, y: Any = None) -> tuple[Any, bool]:
        """Inputs as numbers, and whether they were prepared from a frame."""
        X = as_pandas(X)
        frame = is_frame(X)
        if first:
            if not frame:
                self._preparation = None
                return X, False
            from quadric.data.preparation import TablePreparation, check_frame

            check_frame(X)
            validate_data(self, X, skip_check_array=True)  # notes the names
            preparation = TablePreparation(na_values=self.na_values)
            numbers = preparation.fit_transform(X, y)
            self._preparation = preparation
            self._warn_of_dropped()
            return numbers, True
        if self._preparation is None:
            return X, False
        if frame:
            validate_data(self, X, skip_check_array=True, reset=False)  # checks the names
        else:
            X = validate_data(self, X, dtype=None, ensure_all_finite=False, reset=False)
        return self._preparation.transform(X), True

    def _warn_of_dropped(self) -> None:
        assert self._preparation is not None
        dropped = list(self._preparation.dropped_.items())
        if dropped:
            listed = ", ".join(f"{name!r} ({why})" for name, why in dropped[:_LISTED])
            more = f" and {len(dropped) - _LISTED} more" if len(dropped) > _LISTED else ""
            warnings.warn(
                f"nothing is learned from the columns {listed}{more}: drop them, or give them in "
                "another form; columns_ says how each column is read",
                DroppedColumnWarning,
                stacklevel=7,
            )

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
        numbers, prepared = self._read_inputs(X, first=False)
        if not prepared:
            numbers = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return np.asarray(numbers)

    @property
    def prepared_names_(self) -> list[str]:
        """The names of the columns that `prepare` gives."""
        check_is_fitted(self)
        return self._prepared_names()

    def _prepared_names(self) -> list[str]:
        if self._preparation is not None:
            return list(self._preparation.names_)
        return [f"x{i}" for i in range(self.n_features_in_)]

    @property
    def dropped_columns_(self) -> dict[str, str]:
        """The columns of a frame that nothing can be learned from, with the reason."""
        check_is_fitted(self)
        return {} if self._preparation is None else dict(self._preparation.dropped_)

    @property
    def columns_(self) -> pd.DataFrame:
        """How each column of X is read, its holes, what it becomes, and why it is dropped."""
        check_is_fitted(self)
        pandas = load_extra("pandas", "columns_", "tables")
        if self._preparation is None:
            names = getattr(self, "feature_names_in_", self._prepared_names())
            plain = {"read as": "number", "how": "", "holes": 0, "becomes": 1, "dropped": ""}
            return pandas.DataFrame([plain] * len(names), index=pandas.Index(names, name="column"))
        made = [row["column"] for row in self._preparation.describe()]
        frame = pandas.DataFrame(self._preparation.facts_).set_index("column")
        frame.insert(3, "becomes", [made.count(name) for name in frame.index])
        return frame


def as_pandas(X: Any) -> Any:
    """A frame of polars, or a table of pyarrow, as one of pandas; anything else as it is."""
    if is_frame(X) or isinstance(X, np.ndarray) or not hasattr(X, "to_pandas"):
        return X
    load_extra("pyarrow", f"a {type(X).__module__.partition('.')[0]} frame", "tables")
    return X.to_pandas()


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame of pandas, which is not imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(X, pandas.DataFrame)


def without_masked(X: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """A frame without its rows of weight zero, from which nothing may be learned."""
    if not is_frame(X) or weights is None or np.shape(weights) != (len(X),):
        return X, y, weights
    kept = np.flatnonzero(np.asarray(weights) != 0)
    if not len(kept) or len(kept) == len(X) or len(y) != len(X):
        return X, y, weights
    y = y.iloc[kept] if hasattr(y, "iloc") else np.asarray(y)[kept]
    return X.iloc[kept], y, np.asarray(weights)[kept]


def read_weights(weights: Any, rows: int, dtype: np.dtype) -> np.ndarray:
    """The weights of rows as an array; a number is the weight of each."""
    if weights is None or np.isscalar(weights):
        return np.full(rows, 1.0 if weights is None else weights, dtype=dtype)
    read = check_array(weights, ensure_2d=False, dtype=dtype, input_name="sample_weight")
    if read.shape != (rows,):
        raise InputError(
            f"sample_weight must have one number for each of the {rows} rows, got shape "
            f"{read.shape}"
        )
    return np.asarray(read)


def pair(eval_set: Any) -> tuple[Any, Any]:
    """The two parts of an eval_set."""
    if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
        raise InputError(
            f"eval_set must be a pair (X, y), got a {type(eval_set).__name__}: pass "
            "eval_set=(X_val, y_val)"
        )
    return eval_set[0], eval_set[1]


def split_rows(
    rows: Arrays, part: float, seed: int, same: np.ndarray | None
) -> tuple[Arrays, Arrays]:
    """The rows to learn from and those that are held out, both with the same shares of `same`."""
    if len(rows[0]) < 2:
        raise InputError(
            f"early stopping needs at least 2 samples, got n_samples = {len(rows[0])}: set "
            "early_stopping=False"
        )
    parts = train_test_split(*rows, test_size=part, random_state=seed, stratify=same)
    return (parts[0], parts[2], parts[4]), (parts[1], parts[3], parts[5])


def weighted(rows: Arrays, class_weights: np.ndarray) -> Arrays:
    """Rows whose weights are multiplied with those of their classes."""
    X, targets, weights = rows
    return X, targets, (weights * class_weights[targets]).astype(weights.dtype)


def read_numbers(y: Any, reader: Column | None) -> tuple[Any, Column | None]:
    """Targets that are amounts written as text, as numbers, and how they are read."""
    values = np.asarray(y)
    dates = [v for v in values.ravel()[:1] if isinstance(v, datetime.date | datetime.timedelta)]
    if values.dtype.kind in "mM" or dates:
        raise InputError(
            f"y must hold numbers, got the date or time {values.ravel()[0]}: give what you want "
            "to predict as a number, such as days since the first date"
        )
    if values.dtype.kind not in "OUT":
        return y, reader
    text = next((value for value in values.ravel() if isinstance(value, str)), None)
    if text is None:
        return y, reader
    if values.size == len(values):
        pandas = load_extra("pandas", "a target of text", "tables")
        from quadric.data.cells import ANSWER
        from quadric.data.columns import NUMBER, learn_column

        series = pandas.Series(values.ravel(), name="y")
        if reader is not None:
            return reader.read(series).to_numpy(), reader
        remedy = "use QuadraticClassifier if it is a label"
        reader, numbers = learn_column(series, "y", remedy=remedy)
        if reader.kind == NUMBER and (reader.form is None or reader.form.kind != ANSWER):
            return numbers.to_numpy(), reader
    raise InputError(
        f"y must hold numbers, got the text {str(text)!r}: turn it into numbers, or use "
        "QuadraticClassifier if it is a label"
    )


def usable_targets(y: Any, numbers: bool) -> np.ndarray | None:
    """Targets by which categories become means; None if they cannot be used so."""
    values = np.asarray(y)
    if not numbers:
        return values if values.ndim == 1 and not _holes(values).any() else None
    try:
        values = values.astype(np.float64)
    except (ValueError, TypeError):
        return None  # they are refused when they are read
    return values if np.isfinite(values).all() else None


def refuse_holes(y: Any) -> None:
    """Refuses rows without a target."""
    holes = _holes(np.asarray(y))
    if holes.any():
        more = f" (and {holes.sum() - 1:,} more)" if holes.sum() > 1 else ""
        raise InputError(
            f"Input y contains NaN: row {holes.argmax() + 1} has no target{more}: leave such rows "
            "out, as by X[y.notna()] and y[y.notna()]"
        )


def _holes(values: np.ndarray) -> np.ndarray:
    """Which rows have no target."""
    if not values.ndim or not values.size:
        return np.zeros(1, dtype=bool)
    rows = values.reshape(len(values), -1)
    if values.dtype.kind != "O":
        return np.isnan(rows).any(1) if values.dtype.kind == "f" else np.zeros(len(rows), bool)
    return np.array([any(map(_is_hole, row)) for row in rows.tolist()], dtype=bool)


def _is_hole(value: Any) -> bool:
    no = value is None or (isinstance(value, float) and value != value)
    return no or type(value).__name__ in ("NAType", "NaTType")


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
