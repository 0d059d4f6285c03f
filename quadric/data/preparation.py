"""From a user's columns to numbers: what `fit` learns of a frame, applied to later ones.

Numbers keep their unit (the networks standardize inside), so that an exported network takes the
columns as they are. Holes become the median of the learned rows, and a second column marks them;
categories become columns of 0 and 1; dates become days, month, weekday and hour. Where every column
is a number, the preparation is a small module, so that a network can be exported with it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from quadric.data.columns import CATEGORY, DATE, NUMBER, Column, learn_column, why_useless
from quadric.data.tables import NumberColumns
from quadric.errors import InputError

MAX_CATEGORIES = 30
"""Rarer categories of a column share one."""

MISSING = "(missing)"
DATE_PARTS = ("days", "month", "weekday", "hour")
_LISTED = 10


def date_numbers(frame: pd.DataFrame) -> np.ndarray:
    """Dates as numbers: days since 1970, month, weekday, hour; (rows, 4 a column), holes NaN."""
    numbers: list[pd.Series] = []
    for _, dates in frame.items():
        days = (dates - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        numbers += [days, dates.dt.month, dates.dt.day_of_week, dates.dt.hour]
    return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in numbers])


def _date_names(_: Any, columns: Any) -> list[str]:
    return [f"{column}_{part}" for column in columns for part in DATE_PARTS]


class TablePreparation(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc,call-arg]
    """A transformer of scikit-learn from a frame, as pandas reads it, to numbers.

    Attributes:
        columns_: the columns that are learned from, by name.
        dropped_: the columns that nothing can be learned from, with the reason.
        names_: of the prepared columns.
        dtype_: of the prepared columns: float32 if all numbers of the frame are, else float64.
        numbers_: the preparation where every column is a number, otherwise None.
    """

    numbers_: NumberColumns | None

    def fit(self, X: pd.DataFrame, y: Any = None) -> TablePreparation:
        """Learns how the columns become numbers."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: pd.DataFrame, y: Any = None) -> np.ndarray:
        """Learns how the columns become numbers, and gives them."""
        self.inputs_ = [str(column) for column in X.columns]
        self.columns_: dict[str, Column] = {}
        self.dropped_: dict[str, str] = {}
        kept: dict[str, pd.Series] = {}
        for position, name in enumerate(self.inputs_):
            remedy = f"make it a category by X[{name!r}].astype('category')"
            given = X.iloc[:, position].reset_index(drop=True)
            column, series = learn_column(given, name, remedy=remedy)
            reason = why_useless(series, column, keep_numbers=True)
            if reason is None:
                self.columns_[name], kept[name] = column, series
            else:
                self.dropped_[name] = reason
        if not kept:
            listed = ", ".join(f"{n!r} ({why})" for n, why in list(self.dropped_.items())[:_LISTED])
            raise InputError(f"X has no column to learn from: {listed}; give rows that differ")
        types = {X.dtypes.iloc[self.inputs_.index(name)] for name in self._of(NUMBER)}
        self.dtype_ = np.dtype("float32" if types == {np.dtype("float32")} else "float64")
        self.numbers_ = None
        marked = [name for name in self._of(NUMBER) if kept[name].hasnans]
        if len(self._of(NUMBER)) == len(kept):
            values = self._stack(kept)
            self.numbers_ = NumberColumns(
                torch.tensor([self.inputs_.index(name) for name in kept]),
                torch.from_numpy(np.nanmedian(values, axis=0)),
                torch.tensor([list(kept).index(name) for name in marked], dtype=torch.int64),
            )
            self.names_ = [*kept, *(f"missingindicator_{name}" for name in marked)]
            return self._filled(values)
        self.transformer_ = self._transformer(marked)
        prepared = self.transformer_.fit_transform(pd.DataFrame(kept))
        # Unlike in scikit-learn's own list, two columns may have one name.
        self.names_ = [
            str(name)
            for _, part, columns in self.transformer_.transformers_
            for name in part.get_feature_names_out(columns)
        ]
        return np.asarray(prepared, dtype=self.dtype_)

    def transform(self, X: Any) -> np.ndarray:
        """The numbers of a frame, or of an array with the same columns."""
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).infer_objects()
        if not len(frame):
            raise InputError("X must have at least 1 row, got none")
        names = [str(column) for column in frame.columns]
        if isinstance(X, pd.DataFrame) and names != self.inputs_:
            raise InputError(
                f"X must have the columns of fit in their order, {self.inputs_[:_LISTED]}, got "
                f"{names[:_LISTED]}: put them into that order"
            )
        read = {
            name: column.read(frame.iloc[:, self.inputs_.index(name)])
            for name, column in self.columns_.items()
        }
        if self.numbers_ is not None:
            return self._filled(self._stack(read))
        return np.asarray(self.transformer_.transform(pd.DataFrame(read)), dtype=self.dtype_)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the prepared columns."""
        return np.asarray(self.names_, dtype=object)

    def exported(self) -> NumberColumns | None:
        """What stands in front of an exported network; None if it takes prepared columns."""
        return copy.deepcopy(self.numbers_)

    def describe(self) -> list[dict[str, Any]]:
        """What each prepared column is made of, in order, as plain data."""
        if self.numbers_ is not None:
            marked = self.names_[len(self.columns_) :]
            medians = zip(self.columns_, self.numbers_.medians.tolist(), strict=True)
            return [_filled_column(name, "number", median) for name, median in medians] + [
                _mark(name.removeprefix("missingindicator_")) for name in marked
            ]
        made: list[dict[str, Any]] = []
        for part, transformer, columns in self.transformer_.transformers_:
            if part == "holes":
                made += [_mark(column) for column in columns]
            elif part == "categories":
                encoder = transformer.named_steps["encode"]
                labels = zip(encoder.categories_, encoder.infrequent_categories_, strict=True)
                for column, (every, some) in zip(columns, labels, strict=True):
                    rare = [] if some is None else list(map(str, some))
                    common = [label for label in map(str, every) if label not in rare]
                    made += [{"column": column, "kind": f"1 if {c!r}, else 0"} for c in common]
                    if rare:
                        kind = "1 if rare or new, else 0"
                        made.append({"column": column, "kind": kind, "rare": rare})
            else:
                kinds = [f"date: {what}" for what in DATE_PARTS] if part == "dates" else ["number"]
                fill = transformer.named_steps["fill"] if part == "dates" else transformer
                names = [column for column in columns for _ in kinds]
                filled = zip(names, kinds * len(columns), fill.statistics_, strict=True)
                made += [_filled_column(name, kind, float(m)) for name, kind, m in filled]
        return made

    def _of(self, kind: str) -> list[str]:
        return [name for name, column in self.columns_.items() if column.kind == kind]

    def _stack(self, series: dict[str, pd.Series]) -> np.ndarray:
        values = np.empty((len(next(iter(series.values()))), len(series)), dtype=self.dtype_)
        for i, column in enumerate(series.values()):
            values[:, i] = column
        return values

    def _filled(self, values: np.ndarray) -> np.ndarray:
        assert self.numbers_ is not None
        return self.numbers_.fill(torch.from_numpy(values)).numpy()

    def _transformer(self, marked: list[str]) -> ColumnTransformer:
        """What fills, marks and encodes columns of several kinds, not fitted."""
        median = SimpleImputer(strategy="median")
        fill = SimpleImputer(strategy="constant", fill_value=MISSING, missing_values=np.nan)
        encode = OneHotEncoder(
            max_categories=MAX_CATEGORIES,
            handle_unknown="infrequent_if_exist",
            sparse_output=False,
        )
        numbers = FunctionTransformer(date_numbers, feature_names_out=_date_names)
        parts = [
            ("numbers", median, self._of(NUMBER)),
            ("holes", MissingIndicator(features="all"), marked),
            ("categories", Pipeline([("fill", fill), ("encode", encode)]), self._of(CATEGORY)),
            ("dates", Pipeline([("numbers", numbers), ("fill", median)]), self._of(DATE)),
        ]
        transformer = ColumnTransformer(
            [part for part in parts if part[2]], verbose_feature_names_out=False
        )
        return transformer.set_output(transform="default")  # whatever the user's own setting is


def _filled_column(column: str, kind: str, median: float) -> dict[str, Any]:
    return {"column": column, "kind": kind, "if_missing": median}


def _mark(column: str) -> dict[str, Any]:
    return {"column": column, "kind": "1 if missing, else 0"}


def check_frame(frame: pd.DataFrame) -> None:
    """Refuses a frame without rows or columns, or whose names are not clear."""
    for what, number in zip(("row", "column"), frame.shape, strict=True):
        if not number:
            raise InputError(f"X must have at least 1 {what}, got a frame of shape {frame.shape}")
    names = frame.columns
    if names.nlevels > 1 or len({isinstance(name, str) for name in names}) > 1:
        raise InputError(
            f"the columns of X must have names that are all text, or all numbers, got "
            f"{list(names[:_LISTED])}: set X.columns"
        )
    twice = names[names.map(str).duplicated()]
    if len(twice):
        raise InputError(f"two columns of X have the name {twice[0]!r}: rename one of them")
