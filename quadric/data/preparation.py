"""From a user's columns to numbers: what `fit` learns of a frame, applied to later ones.

Numbers keep their unit (the networks standardize inside), so that an exported network takes the
columns as they are. Holes become the median of the learned rows, and a second column marks them;
categories become columns of 0 and 1, and means of the target where they are many; dates become
days, month, weekday and hour. Where every column is a number, the preparation is a small module, so
that a network can be exported with it. All that is learned is plain data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.model_selection import KFold
from sklearn.preprocessing import TargetEncoder

from quadric.data.cells import Form
from quadric.data.columns import (
    CATEGORY,
    DATE,
    FACTS,
    NUMBER,
    Column,
    column_facts,
    learn_column,
    why_useless,
)
from quadric.data.tables import NumberColumns
from quadric.errors import InputError

MAX_CATEGORIES = 30
"""Rarer categories of a column share one."""

MISSING = "(missing)"
DATE_PARTS = ("days", "month", "weekday", "hour")

FEW_VALUES = range(8, 32)
"""A column with so many whole numbers, such as the hour of a day, is a category, too."""
ROWS_A_VALUE = 50

ROWS_A_LABEL = 2
"""With fewer rows for a category the mean of its targets says little."""

MAX_OUTPUTS = 10
"""Categories become means of the target where it has at most as many numbers or classes."""

_LISTED = 10
_FOLDS = 5


def date_numbers(frame: pd.DataFrame) -> np.ndarray:
    """Dates as numbers: days since 1970, month, weekday, hour; (rows, 4 a column), holes NaN."""
    numbers: list[pd.Series] = []
    for _, dates in frame.items():
        days = (dates - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        numbers += [days, dates.dt.month, dates.dt.day_of_week, dates.dt.hour]
    return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in numbers])


@dataclass
class Encoding:
    """How a column becomes numbers.

    Attributes:
        column: how it is read.
        medians: what its holes become: of a number, or of the four parts of a date.
        marked: whether a second column marks its holes.
        levels: the numbers or labels that have a column of 0 and 1 each.
        rare: the labels that share one; None if it has none.
        means: of the target by label, and that of all labels, for each output.
    """

    column: Column
    medians: list[float] = field(default_factory=list)
    marked: bool = False
    levels: list[Any] = field(default_factory=list)
    rare: list[str] | None = None
    means: list[tuple[dict[str, float], float]] = field(default_factory=list)

    def describe(self, block: str) -> list[dict[str, Any]]:
        """The prepared columns of a block, with what they are made of, as plain data."""
        name = self.column.name
        if block == "marks":
            return [_made(f"missingindicator_{name}", name, "1 if missing, else 0")]
        if block == "levels":
            return [_made(f"{name}_{v:g}", name, f"1 if {v:g}, else 0") for v in self.levels]
        if block == "categories":
            rows = [_made(f"{name}_{v}", name, f"1 if {v!r}, else 0") for v in self.levels]
            if self.rare is not None:
                rare = _made(f"{name}_(rare)", name, "1 if rare or new, else 0")
                rows.append({**rare, "rare": self.rare})
            return rows
        if block == "means":
            count = len(self.means)
            names = [f"{name}_mean" + (f"_{i}" if count > 1 else "") for i in range(count)]
            return [
                {**_made(made, name, "mean of the target"), "means": means, "if_new": mean}
                for made, (means, mean) in zip(names, self.means, strict=True)
            ]
        if block == "dates":
            return [
                {**_made(f"{name}_{part}", name, f"date: {part}"), "if_missing": median}
                for part, median in zip(DATE_PARTS, self.medians, strict=True)
            ]
        return [{**_made(name, name, "number"), "if_missing": self.medians[0]}]

    def numbers(self, block: str, series: pd.Series) -> np.ndarray:
        """The prepared columns of a block, (rows, columns) or (rows,)."""
        if block == "numbers":
            return series.fillna(self.medians[0]).to_numpy()
        if block == "marks":
            return series.isna().to_numpy()
        if block == "levels":
            return np.equal.outer(series.to_numpy(), np.asarray(self.levels, dtype=np.float64))
        if block == "dates":
            values = date_numbers(series.to_frame())
            return np.where(np.isnan(values), self.medians, values)
        labels = filled_labels(series)
        if block == "means":
            means = [labels.map(means).fillna(mean) for means, mean in self.means]
            return np.column_stack([mean.to_numpy(dtype=np.float64) for mean in means])
        codes = pd.Index(self.levels, dtype=object).get_indexer(labels)
        hot = np.equal.outer(codes, np.arange(len(self.levels)))
        return hot if self.rare is None else np.column_stack([hot, codes < 0])


def _made(name: str, column: str, kind: str) -> dict[str, Any]:
    return {"name": name, "column": column, "kind": kind}


def filled_labels(series: pd.Series) -> pd.Series:
    """Labels with a word for holes."""
    return series.astype(object).where(series.notna(), MISSING)


def _learn(column: Column, series: pd.Series, outputs: np.ndarray | None) -> Encoding:
    """What is learned of a column, whose cells have the type of its kind."""
    if column.kind == DATE:
        return Encoding(column, np.nanmedian(date_numbers(series.to_frame()), axis=0).tolist())
    if column.kind == NUMBER:
        values = series.to_numpy()
        median = float(np.nanmedian(values))
        levels = np.unique(values[~np.isnan(values)])
        few = len(levels) in FEW_VALUES and len(values) >= ROWS_A_VALUE * len(levels)
        whole = few and bool((levels == levels.round()).all())
        return Encoding(column, [median], bool(series.hasnans), levels.tolist() if whole else [])
    labels = filled_labels(series)
    found = [(str(label), int(count)) for label, count in labels.value_counts().items()]
    counts = sorted(found, key=lambda pair: (-pair[1], pair[0]))
    if len(counts) <= MAX_CATEGORIES:
        return Encoding(column, levels=sorted(label for label, _ in counts))
    kept = sorted(label for label, _ in counts[: MAX_CATEGORIES - 1])
    rare = sorted(label for label, _ in counts[MAX_CATEGORIES - 1 :])
    told = outputs is not None and len(labels) >= ROWS_A_LABEL * len(counts)
    means = [_means(labels, output) for output in outputs.T] if told else []  # type: ignore[union-attr]
    return Encoding(column, levels=kept, rare=rare, means=means)


def _means(labels: pd.Series, output: np.ndarray) -> tuple[dict[str, float], float]:
    """The mean of the target by label, drawn to that of all where a label has few rows."""
    encoder = TargetEncoder(target_type="continuous").fit(labels.to_numpy()[:, None], output)
    known = zip(encoder.categories_[0].tolist(), encoder.encodings_[0].tolist(), strict=True)
    return dict(known), float(encoder.target_mean_)


def _outputs(y: Any) -> np.ndarray | None:
    """Targets as numbers, (rows, outputs): a number, or 1 for each class; None if they are many."""
    if y is None:
        return None
    values = np.asarray(y)
    if values.dtype.kind == "f":
        outputs = values.reshape(len(values), -1)
    else:
        codes, classes = pd.factorize(values.ravel(), sort=False)
        first = 1 if len(classes) == 2 else 0
        outputs = np.equal.outer(codes, np.arange(first, len(classes)))
    return outputs.astype(np.float64) if outputs.shape[1] <= MAX_OUTPUTS else None


class TablePreparation(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc,call-arg]
    """A transformer of scikit-learn from a frame, as pandas reads it, to numbers.

    Attributes:
        encodings_: how each column that is learned from is read and becomes numbers, by name.
        facts_: what was read, dropped and filled, a row for each column.
        names_: of the prepared columns.
        dtype_: of the prepared columns: float32 if all numbers of the frame are, else float64.
    """

    def __init__(self, na_values: Sequence[Any] = ()) -> None:
        self.na_values = na_values

    def fit(self, X: pd.DataFrame, y: Any = None) -> TablePreparation:
        """Learns how the columns become numbers."""
        self._learn(X, y)
        return self

    def fit_transform(self, X: pd.DataFrame, y: Any = None) -> np.ndarray:
        """Learns how the columns become numbers, and gives them.

        The mean of the target of a row's label is that of other rows, so that it tells nothing of
        the row's own target.
        """
        kept, outputs = self._learn(X, y)
        prepared = self._encode(kept)
        start = 0
        for block, encoding in self._blocks():
            stop = start + len(encoding.describe(block))
            if block == "means" and outputs is not None:
                labels = filled_labels(kept[encoding.column.name])
                parts = KFold(min(_FOLDS, len(labels)), shuffle=True, random_state=0).split(labels)
                for rest, part in parts:
                    means = [_means(labels.iloc[rest], output[rest]) for output in outputs.T]
                    apart = Encoding(encoding.column, means=means)
                    prepared[part, start:stop] = apart.numbers(block, labels.iloc[part])
            start = stop
        return prepared

    def _learn(self, X: pd.DataFrame, y: Any) -> tuple[dict[str, pd.Series], np.ndarray | None]:
        self.inputs_ = [str(column) for column in X.columns]
        self.facts_: list[dict[str, Any]] = []
        columns: dict[str, Column] = {}
        kept: dict[str, pd.Series] = {}
        for position, name in enumerate(self.inputs_):
            remedy = f"make it a category by X[{name!r}].astype('category')"
            given = X.iloc[:, position].reset_index(drop=True)
            column, series = learn_column(given, name, remedy=remedy, na_values=self.na_values)
            reason = why_useless(series, column, alone=len(self.inputs_) == 1)
            self.facts_.append(column_facts(name, column, series, reason))
            if reason is None:
                columns[name], kept[name] = column, series
        if not kept:
            dropped = list(self.dropped_.items())[:_LISTED]
            listed = ", ".join(f"{name!r} ({why})" for name, why in dropped)
            raise InputError(f"X has no column to learn from: {listed}; give rows that differ")
        numbers = [name for name, column in columns.items() if column.kind == NUMBER]
        types = {X.dtypes.iloc[self.inputs_.index(name)] for name in numbers}
        self.dtype_ = np.dtype("float32" if types == {np.dtype("float32")} else "float64")
        outputs = _outputs(y)
        if outputs is not None and len(outputs) != len(X):  # refused by who asks
            outputs = None
        self.encodings_ = {
            name: _learn(column, kept[name], outputs) for name, column in columns.items()
        }
        self.names_ = [row["name"] for row in self._described()]
        return kept, outputs

    @property
    def dropped_(self) -> dict[str, str]:
        """The columns that nothing can be learned from, with the reason."""
        return {fact["column"]: fact["dropped"] for fact in self.facts_ if fact["dropped"]}

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
        first = int(frame.attrs.get("first_row", 0))  # of a part of a file
        return self._encode(
            {
                name: encoding.column.read(frame.iloc[:, self.inputs_.index(name)], first)
                for name, encoding in self.encodings_.items()
            }
        )

    def _encode(self, columns: Mapping[str, pd.Series]) -> np.ndarray:
        rows = len(next(iter(columns.values())))
        prepared = np.empty((rows, len(self.names_)), dtype=self.dtype_)
        start = 0
        for block, encoding in self._blocks():
            stop = start + len(encoding.describe(block))
            made = encoding.numbers(block, columns[encoding.column.name])
            prepared[:, start:stop] = made.reshape(rows, -1)
            start = stop
        return prepared

    def _blocks(self) -> Iterator[tuple[str, Encoding]]:
        """The parts of the prepared columns in their order."""
        every = self.encodings_.values()
        numbers = [encoding for encoding in every if encoding.column.kind == NUMBER]
        yield from (("numbers", encoding) for encoding in numbers)
        yield from (("marks", encoding) for encoding in numbers if encoding.marked)
        yield from (("levels", encoding) for encoding in numbers if encoding.levels)
        categories = [encoding for encoding in every if encoding.column.kind == CATEGORY]
        yield from (("categories", encoding) for encoding in categories)
        yield from (("means", encoding) for encoding in categories if encoding.means)
        yield from (("dates", encoding) for encoding in every if encoding.column.kind == DATE)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the prepared columns."""
        return np.asarray(self.names_, dtype=object)

    def exported(self) -> NumberColumns | None:
        """What stands in front of an exported network; None if it takes prepared columns."""
        encodings = list(self.encodings_.values())
        if any(e.column.kind != NUMBER or e.column.levels for e in encodings):
            return None
        pairs = [(i, level) for i, e in enumerate(encodings) for level in e.levels]
        dtype = getattr(torch, self.dtype_.name)
        return NumberColumns(
            torch.tensor([self.inputs_.index(name) for name in self.encodings_]),
            torch.tensor([e.medians[0] for e in encodings], dtype=dtype),
            torch.tensor([i for i, e in enumerate(encodings) if e.marked], dtype=torch.int64),
            torch.tensor([i for i, _ in pairs], dtype=torch.int64),
            torch.tensor([level for _, level in pairs], dtype=dtype),
        )

    def _described(self) -> list[dict[str, Any]]:
        return [row for block, encoding in self._blocks() for row in encoding.describe(block)]

    def describe(self) -> list[dict[str, Any]]:
        """What each prepared column is made of, in order, as plain data."""
        return [{key: row[key] for key in row if key != "name"} for row in self._described()]

    def to_dict(self) -> dict[str, Any]:
        """All that was learned, as plain data."""
        return {
            "inputs": self.inputs_,
            "facts": self.facts_,
            "dtype": self.dtype_.name,
            "encodings": [asdict(encoding) for encoding in self.encodings_.values()],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> TablePreparation:
        """The preparation whose `to_dict` this is."""
        made = cls()
        made.inputs_, made.facts_ = list(state["inputs"]), []
        for fact in state["facts"]:
            made.facts_.append({key: fact[key] for key in FACTS})
        made.dtype_ = np.dtype(state["dtype"])
        encodings = [
            _whole(Encoding, {**entry, "column": column_from_dict(entry["column"])})
            for entry in state["encodings"]
        ]
        made.encodings_ = {encoding.column.name: encoding for encoding in encodings}
        made.names_ = [row["name"] for row in made._described()]
        return made


def column_from_dict(state: Mapping[str, Any]) -> Column:
    """The column whose fields these are, as JSON keeps them."""
    form = None if state["form"] is None else _whole(Form, state["form"])
    tuples = {key: tuple(state[key]) for key in ("levels", "na_values")}
    return _whole(Column, {**state, "form": form, **tuples})


def _whole(kind: Any, state: Mapping[str, Any]) -> Any:
    """An object with all its fields; none may be left to its default."""
    return kind(**{each.name: state[each.name] for each in fields(kind)})


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
