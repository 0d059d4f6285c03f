"""A DataFrame as an estimator takes it: what `fit` learns of its columns, applied to later frames.

The kinds of the columns are those of `columns.py`, the numbers made of them those of
`preparation.py`. Where every column is a number, the preparation is a small module, so that a
network can be exported with it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from quadric.data.columns import (
    CATEGORY,
    DATE,
    NUMBER,
    as_dates,
    as_labels,
    classify_column,
    first_text,
    is_day_first,
    why_useless,
)
from quadric.data.preparation import make_transformer
from quadric.data.units import strip_unit, without_unit
from quadric.errors import InputError

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer

_LISTED = 10


class NumberColumns(nn.Module):
    """Columns of numbers, without those that are dropped; holes are filled and marked."""

    kept: Tensor
    medians: Tensor
    marked: Tensor

    def __init__(self, kept: list[int], medians: np.ndarray, marked: list[int]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.tensor(kept, dtype=torch.int64))
        self.register_buffer("medians", torch.tensor(medians))
        self.register_buffer("marked", torch.tensor(marked, dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """From all columns of a table, (rows, columns), to the prepared ones."""
        return self.fill(input.index_select(-1, self.kept))

    def fill(self, numbers: Tensor) -> Tensor:
        """The prepared columns of those that are kept."""
        holes = numbers.isnan()
        filled = torch.where(holes, self.medians, numbers)
        if not len(self.marked):
            return filled
        marks = holes.index_select(-1, self.marked).to(filled.dtype)
        return torch.cat([filled, marks], -1)


class FramePreparation:
    """From the columns of a frame to numbers, as the frame of `fit` says.

    Attributes:
        names: of the prepared columns.
        dropped: the columns that nothing can be learned from, with the reason.
        numbers: the preparation where every column is a number, otherwise None.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.columns = [str(column) for column in frame.columns]
        self.kinds: dict[str, str] = {}
        self.dropped: dict[str, str] = {}
        self.day_first: dict[str, bool] = {}
        self.with_unit: set[str] = set()
        kept: dict[str, pd.Series] = {}
        for position, column in enumerate(self.columns):
            given = frame.iloc[:, position].reset_index(drop=True)
            found = strip_unit(given) if _is_text(given) else None
            if found is not None:
                given = found[0]
                self.with_unit.add(column)
            kind, series = _classified(given, column)
            reason = why_useless(series, column, kind, keep_numbers=True)
            if reason is not None:
                self.dropped[column] = reason
                continue
            self.kinds[column], kept[column] = kind, series
            if kind == DATE:
                self.day_first[column] = is_day_first(given.dropna().astype(str))
        if not kept:
            listed = ", ".join(
                f"{name!r} ({why})" for name, why in list(self.dropped.items())[:_LISTED]
            )
            raise InputError(f"X has no column to learn from: {listed}; give rows that differ")
        number_types = {frame.dtypes.iloc[self.columns.index(c)] for c in self._of(NUMBER)}
        self.dtype = np.dtype("float32" if number_types == {np.dtype("float32")} else "float64")
        self.numbers: NumberColumns | None = None
        self.transformer: ColumnTransformer | None = None
        if set(self.kinds.values()) == {NUMBER}:
            values = self._stack(kept)
            marked = [i for i, series in enumerate(kept.values()) if series.hasnans]
            positions = [self.columns.index(column) for column in kept]
            self.numbers = NumberColumns(positions, np.nanmedian(values, axis=0), marked)
            self.names = [*kept, *(f"missingindicator_{list(kept)[i]}" for i in marked)]
        else:
            inputs = pd.DataFrame(kept)
            self.transformer = make_transformer(inputs, self.kinds, fill_all=True).fit(inputs)
            self.names = _names(self.transformer)

    def exported(self) -> NumberColumns | None:
        """What stands in front of an exported network; None if it takes the columns as they are."""
        return copy.deepcopy(self.numbers)

    def transform(self, X: Any) -> np.ndarray:
        """The numbers of a frame, or of an array with the same columns."""
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).infer_objects()
        if not len(frame):
            raise InputError("X must have at least 1 row, got none")
        names = [str(column) for column in frame.columns]
        if isinstance(X, pd.DataFrame) and names != self.columns:
            raise InputError(
                f"X must have the columns of fit in their order, {self.columns[:_LISTED]}, got "
                f"{names[:_LISTED]}: put them into that order"
            )
        read = {
            column: self._read(frame.iloc[:, self.columns.index(column)], column)
            for column in self.kinds
        }
        if self.transformer is not None:
            return np.asarray(self.transformer.transform(pd.DataFrame(read)), dtype=self.dtype)
        assert self.numbers is not None
        return self.numbers.fill(torch.from_numpy(self._stack(read))).numpy()

    def _of(self, kind: str) -> list[str]:
        return [column for column, found in self.kinds.items() if found == kind]

    def _stack(self, series: dict[str, pd.Series]) -> np.ndarray:
        values = np.empty((len(next(iter(series.values()))), len(series)), dtype=self.dtype)
        for i, column in enumerate(series.values()):
            values[:, i] = column
        return values

    def _read(self, given: pd.Series, column: str) -> pd.Series:
        """A column in the type that it had in the frame of `fit`."""
        given = given.reset_index(drop=True)
        wanted = self.kinds[column]
        if wanted == CATEGORY:
            return as_labels(given)
        if wanted == DATE and not pd.api.types.is_datetime64_any_dtype(given):
            present = given.dropna().astype(str).str.strip()
            dates = as_dates(present, self.day_first[column])
            if dates is not None:
                return dates.reindex(given.index)
        if isinstance(given.dtype, pd.CategoricalDtype):
            given = given.astype(object).infer_objects()
        if column in self.with_unit and _is_text(given):
            given = without_unit(given)
        kind, series = classify_column(given, column, remedy="leave the row out")
        if series.isna().all():
            return series.astype("datetime64[ns]" if wanted == DATE else np.float64)
        if kind != wanted:
            present = given.dropna()
            row, cell = present.index[0] + 1, present.iloc[0]
            if wanted == NUMBER:
                row, cell = first_text(present)
            raise InputError(
                f"column {column!r} must hold {wanted}s as in fit, but row {row} is "
                f"{str(cell)!r}: correct it, or leave the cell empty"
            )
        return series


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


def _is_text(values: pd.Series) -> bool:
    types = pd.api.types
    return bool(types.is_object_dtype(values) or types.is_string_dtype(values))


def _classified(values: pd.Series, column: str) -> tuple[str, pd.Series]:
    remedy = f"make it a category by X[{column!r}].astype('category')"
    return classify_column(values, column, remedy=remedy)


def _names(transformer: ColumnTransformer) -> list[str]:
    """The prepared columns; unlike scikit-learn's own list, two may have one name."""
    return [
        str(name)
        for _, part, columns in transformer.transformers_
        for name in (columns if part == "passthrough" else part.get_feature_names_out(columns))
    ]
