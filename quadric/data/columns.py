"""What the columns of a user's table are: numbers, categories, dates, or nothing to learn from.

Only what can be told without looking at the target's relation to the columns happens here; filling
holes, encoding and scaling are fitted later, on the training part of each fold.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.data.units import strip_unit
from quadric.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

NUMBER, CATEGORY, DATE = "number", "category", "date"
TASKS = ("regression", "classification")

# A text column is meant as numbers if at least this share of its cells are numbers.
_MOSTLY_NUMBERS = 0.8
# A text column names rows instead of describing them if at least this share of its cells differ.
_MOSTLY_DISTINCT = 0.9
_FEW_ROWS = 20
# A whole-number target with at most this many values, and this many rows for each, is taken for
# classes.
_FEW_CLASSES = 10
_ROWS_A_CLASS = 5
# Up to this many whole numbers could be meant as classes, too: a line says how they were taken.
_SEVERAL_CLASSES = 30
_LISTED = 50
_IDENTIFIER = re.compile(
    r"(?i:(^|[ _.-])(id|index|key|uuid|row)$|^unnamed(: ?\d+)?$)|[a-z](Id|ID)$"
)
_DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?\s*")


@dataclass
class UserTable:
    """A table to learn from.

    Attributes:
        name: for titles and directories.
        inputs: the columns that are learned from, of their final type.
        target: what is predicted: numbers, or labels.
        kinds: "number", "category" or "date", for each column of `inputs`.
        task: "regression" or "classification".
        notes: what was dropped, counted or assumed, a line each.
        groups: the group of each row, where rows are to be split by groups; not learned from.
    """

    name: str
    inputs: pd.DataFrame
    target: pd.Series
    kinds: dict[str, str]
    task: str
    notes: list[str] = field(default_factory=list)
    groups: pd.Series | None = None


def make_table(
    name: str,
    frame: pd.DataFrame,
    target: str,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    group: str | None = None,
) -> UserTable:
    """Decides what the columns of a frame are."""
    asked = {"target": [target], "drop": drop, "categories": categories}
    for what, wanted in (asked | {"split group": [] if group is None else [group]}).items():
        for column in wanted:
            if column not in frame.columns:
                listed = list_columns(frame)
                raise InputError(f"no column {column!r} for --{what}: the columns are {listed}")
    if target == group:
        raise InputError(f"the target {target!r} cannot be the group, too: name another column")
    if target in drop:
        raise InputError(f"the target {target!r} cannot be dropped: name another target")
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    notes: list[str] = []
    # From here on the index is the row of the file, which messages name.
    frame = frame.reset_index(drop=True)
    values = frame[target]
    missing = int(values.isna().sum())
    if missing:
        notes.append(f"{missing:,} rows without {target!r} are left out")
        frame = frame[values.notna()]
        values = frame[target]
    units: list[str] = []
    y, task, note = _target(_unitless(values, target, units), target, task)
    notes += note
    inputs: dict[str, pd.Series] = {}
    kinds: dict[str, str] = {}
    dropped: list[str] = []
    holes: list[str] = []
    for column in frame.columns:
        if column == target:
            continue
        if column in drop:
            dropped.append(f"{column!r} (as asked)")
            continue
        if column == group:
            dropped.append(f"{column!r} (the groups)")
            continue
        as_category = column in categories
        series = frame[column] if as_category else _unitless(frame[column], column, units)
        kind, series = classify_column(series, column, as_category)
        reason = why_useless(series, column, kind)
        if reason is not None:
            dropped.append(f"{column!r} ({reason})")
            continue
        inputs[column], kinds[column] = series, kind
        count = int(series.isna().sum())
        if count:
            holes.append(f"{column!r} {count:,}")
    if units:
        notes.append("read as numbers, without their unit: " + ", ".join(units))
    if dropped:
        notes.append("dropped: " + ", ".join(dropped))
    if holes:
        notes.append(
            "missing values: "
            + ", ".join(holes)
            + " (numbers get the median of the training part and a column that marks the hole, "
            "categories one of their own)"
        )
    if not inputs:
        raise InputError(
            f"{name} has no column to learn from besides {target!r}: every other one is constant, "
            "an identifier or dropped"
        )
    import pandas as pd

    learned = pd.DataFrame(inputs).reset_index(drop=True)
    groups = None if group is None else frame[group].reset_index(drop=True)
    return UserTable(name, learned, y.reset_index(drop=True), kinds, task, notes, groups)


def _unitless(values: pd.Series, column: str, units: list[str]) -> pd.Series:
    """The column without its unit, if it has one; what was read is added to `units`."""
    values = _plain(values)
    found = strip_unit(values) if _is_text(values) else None
    if found is None:
        return values
    units.append(f"{column!r} (such as {found[1]!r})")
    return found[0]


def list_columns(frame: pd.DataFrame) -> str:
    """The names of the columns, of a wide table the first ones."""
    shown = ", ".join(repr(str(column)) for column in frame.columns[:_LISTED])
    more = len(frame.columns) - _LISTED
    return shown + (f" and {more:,} more" if more > 0 else "")


def _target(values: pd.Series, target: str, task: str | None) -> tuple[pd.Series, str, list[str]]:
    """The target of its final type, the task, and what is to be said about it."""
    values = _plain(values)
    if _is_text(values):
        values = values.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    try:
        distinct = values.nunique()
    except TypeError:  # a Parquet file may hold anything
        raise InputError(
            f"the target {target!r} must hold numbers or labels, got a "
            f"{type(values.iloc[0]).__name__}: name another column"
        ) from None
    if distinct < 2:
        value = values.iloc[0] if len(values) else None
        shown = repr(value) if isinstance(value, str) else str(value)
        got = f"only {shown}" if distinct else "no value at all"
        raise InputError(
            f"the target {target!r} must have at least 2 different values, got {got}: name another "
            "column with --target"
        )
    notes: list[str] = []
    few = distinct <= min(_FEW_CLASSES, len(values) // _ROWS_A_CLASS)
    # Names of classes may well be numbers but for a few.
    mixed = (task == "classification" or (task is None and few)) and _is_text(values)
    if mixed:
        mixed = 0 < _parse(values).isna().sum()
    kind, numbers = classify_column(values, target, mixed, is_target=True)
    whole = kind == NUMBER and bool((numbers == numbers.round()).all())
    if task is None:
        classes = kind == CATEGORY or distinct == 2 or (whole and few)
        task = "classification" if classes else "regression"
        if kind == NUMBER and classes:
            notes.append(
                f"the target {target!r} has {distinct} values and is taken for classes: "
                "--task regression predicts it as a number"
            )
        elif whole and distinct <= _SEVERAL_CLASSES:
            notes.append(
                f"the target {target!r} has {distinct} whole numbers and is taken for a number: "
                "--task classification predicts them as classes"
            )
    if task == "classification":
        if distinct > max(_FEW_CLASSES, len(values) // 2):
            remedy = "use --task regression" if kind == NUMBER else "name another column"
            raise InputError(
                f"the target {target!r} has {distinct:,} different values in {len(values):,} rows, "
                f"too many for classes: {remedy}"
            )
        labels = values
        if kind == NUMBER and whole and not _is_bool(values):
            labels = numbers.astype(np.int64)
        return labels.astype(str), task, notes
    if kind == DATE:
        raise InputError(
            f"the target {target!r} holds dates, got {str(values.iloc[0])!r}: turn them into "
            "numbers, or name another column"
        )
    if kind == CATEGORY:
        bad = first_text(values)
        raise InputError(
            f"the target {target!r} must hold numbers for a regression, but row {bad[0]} is "
            f"{bad[1]!r}: use --task classification, or name another column"
        )
    return numbers, task, notes


def _plain(values: pd.Series) -> pd.Series:
    """Columns that pandas leaves in Arrow's memory, as those it holds itself."""
    import pandas as pd

    if not isinstance(values.dtype, pd.ArrowDtype):
        return values
    return values.astype(object).where(values.notna(), None).infer_objects()


def _without_blanks(values: pd.Series) -> pd.Series:
    """Text of nothing but blanks is a hole."""
    if not _is_text(values):
        return values
    blank = np.array([isinstance(cell, str) and not cell.strip() for cell in values], dtype=bool)
    return values.mask(blank)


def _is_text(values: pd.Series) -> bool:
    from pandas.api import types

    return bool(types.is_object_dtype(values) or types.is_string_dtype(values))


def _parse(values: pd.Series) -> pd.Series:
    """Numbers where the text is one, holes elsewhere."""
    import pandas as pd

    parsed: pd.Series = pd.to_numeric(values.astype(str).str.strip(), errors="coerce")
    return parsed


def classify_column(
    values: pd.Series,
    column: str,
    as_category: bool = False,
    is_target: bool = False,
    remedy: str | None = None,
) -> tuple[str, pd.Series]:
    """The kind of a column, and the column in the type of its kind."""
    import pandas as pd
    from pandas.api import types

    values = _without_blanks(_plain(values))
    if as_category:
        return CATEGORY, as_labels(values)
    if types.is_complex_dtype(values):
        raise InputError(
            f"column {column!r} must hold real numbers, got complex ones: split them into two "
            "columns"
        )
    if types.is_timedelta64_dtype(values):
        values = values / pd.Timedelta(days=1)
    if types.is_bool_dtype(values):
        return NUMBER, values.astype(np.float64)
    if types.is_datetime64_any_dtype(values):
        return DATE, values.dt.tz_convert(None) if values.dt.tz is not None else values
    if types.is_numeric_dtype(values):
        numbers = values.astype(np.float64)
        _refuse_infinite(numbers, column)
        return NUMBER, numbers
    if isinstance(values.dtype, pd.CategoricalDtype):
        return CATEGORY, as_labels(values)
    present = values.dropna()
    if not len(present):
        return NUMBER, pd.Series(np.full(len(values), np.nan), index=values.index)
    if all(isinstance(cell, bool) for cell in present.head(1000)):  # booleans with holes
        return NUMBER, values.map({True: 1.0, False: 0.0}).astype(np.float64)
    text = present.astype(str).str.strip()
    parsed = _parse(present)
    share = float(parsed.notna().mean())
    if share == 1:
        numbers = parsed.reindex(values.index).astype(np.float64)
        _refuse_infinite(numbers, column)
        return NUMBER, numbers
    if share >= _MOSTLY_NUMBERS:
        place = parsed.index[parsed.isna()][0]
        others = int(parsed.isna().sum()) - 1
        more = f" (and {others:,} more)" if others else ""
        if remedy is None:
            options = f"--categories {column!r} or --drop {column!r}"
            remedy = "add " + ("--task classification" if is_target else options)
        raise InputError(
            f"column {column!r} must hold numbers, but row {int(place) + 1} is "
            f"{text.loc[place]!r}{more}: correct it, leave the cell empty, or {remedy}"
        )
    dates = as_dates(text)
    if dates is not None:
        return DATE, dates.reindex(values.index)
    return CATEGORY, as_labels(values)


def as_labels(values: pd.Series) -> pd.Series:
    """Labels as text, holes kept; whole numbers have no point, however they are stored."""
    values = _without_blanks(values)
    # One kind of hole: scikit-learn cannot compare with pandas' own NA.
    labels = values.astype(object).where(values.notna(), np.nan)
    present = labels.notna()
    labels[present] = labels[present].map(_label)
    return labels


def _label(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip()


def is_day_first(text: pd.Series) -> bool:
    """Whether dates are written with the day before the month, as far as the text tells."""
    return any(
        int(re.split(r"[-/.]", cell.strip())[0]) > 12
        for cell in text.head(1000)
        if _DATE.fullmatch(cell) and not re.match(r"\s*\d{4}", cell)
    )


def as_dates(text: pd.Series, day_first: bool | None = None) -> pd.Series | None:
    """Text as dates; None if it holds something else."""
    import pandas as pd

    if not all(_DATE.fullmatch(cell) for cell in text.head(100)):
        return None
    day_first = is_day_first(text) if day_first is None else day_first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # By universal time, as zones may differ from cell to cell.
        dates = pd.to_datetime(text, errors="coerce", format="mixed", dayfirst=day_first, utc=True)
    if float(dates.notna().mean()) < 0.99:
        return None
    return dates.dt.tz_localize(None)


def _refuse_infinite(numbers: pd.Series, column: str) -> None:
    infinite = np.isinf(numbers.to_numpy())
    if infinite.any():
        place = int(numbers.index[infinite.argmax()]) + 1
        others = int(infinite.sum()) - 1
        more = f" (and {others:,} more)" if others else ""
        raise InputError(
            f"column {column!r} must hold finite numbers, but row {place} is infinite{more}: "
            "correct it or leave the cell empty"
        )


def why_useless(
    series: pd.Series, column: str, kind: str, keep_numbers: bool = False
) -> str | None:
    """Why nothing can be learned from a column; None if something can."""
    present = series.dropna()
    if not len(present):
        return "empty"
    distinct = present.nunique()
    # A column with one value may still tell by its holes.
    if distinct == 1 and len(present) == len(series):
        return "constant"
    if len(series) < _FEW_ROWS:
        return None
    if kind == CATEGORY and distinct >= _MOSTLY_DISTINCT * len(present):
        return "an identifier: nearly every value differs"
    if kind == NUMBER and not keep_numbers and distinct == len(series):
        steps = np.diff(present.to_numpy())
        counted = bool((steps == 1).all())
        whole = bool((present == present.round()).all())
        if counted or (whole and _IDENTIFIER.search(column)):
            return "an identifier: a number for each row"
    return None


def first_text(values: pd.Series) -> tuple[int, Any]:
    """Row and content of the first cell that is not a number."""
    place = int(np.flatnonzero(_parse(values).isna().to_numpy())[0])
    return int(values.index[place]) + 1, str(values.iloc[place])


def _is_bool(values: pd.Series) -> bool:
    from pandas.api import types

    return bool(types.is_bool_dtype(values))
