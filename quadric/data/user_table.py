"""A user's table: what is predicted, what is learned from, and what is said about both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.data.columns import (
    CATEGORY,
    DATE,
    NUMBER,
    Column,
    as_labels,
    column_facts,
    first_text,
    is_text,
    learn_column,
    stripped,
    why_useless,
    without_blanks,
)
from quadric.errors import InputError
from quadric.support.checks import nearest

if TYPE_CHECKING:
    import pandas as pd

TASKS = ("regression", "classification")

# A whole-number target with at most this many values, and this many rows for each, is taken for
# classes.
_FEW_CLASSES, _ROWS_A_CLASS = 10, 5
# Up to this many whole numbers could be meant as classes, too: a line says how they were taken.
_SEVERAL_CLASSES = 30
_LISTED, _MEANT = 50, 3


@dataclass
class UserTable:
    """A table to learn from.

    Attributes:
        name: for titles and directories.
        inputs: the columns that are learned from: floats, categories and dates.
        target: what is predicted: numbers, or labels.
        kinds: "number", "category" or "date", for each column of `inputs`.
        task: "regression" or "classification".
        notes: what was dropped, counted or assumed, a line each.
        groups: the group of each row, where rows are to be split by groups; not learned from.
        readers: how each column of `inputs` is read.
        facts: what was read, dropped and filled, a row for each column.
    """

    name: str
    inputs: pd.DataFrame
    target: pd.Series
    kinds: dict[str, str]
    task: str
    notes: list[str] = field(default_factory=list)
    groups: pd.Series | None = None
    readers: dict[str, Column] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)


def make_table(
    name: str,
    frame: pd.DataFrame,
    target: str | None,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    group: str | None = None,
    na_values: Sequence[str] = (),
) -> UserTable:
    """Decides what the columns of a frame are."""
    import pandas as pd

    if target is None:
        raise InputError(
            f"name the column of {name} to predict with --target (in a recipe, dataset_options: "
            f"{{target: NAME}}); the columns are {list_columns(frame)}"
        )
    _check_names(frame, target, task, drop, categories, group)
    notes: list[str] = []
    # From here on the index is the row of the file, which messages name.
    frame = frame.reset_index(drop=True)
    values = without_blanks(frame[target], [str(mark).strip().lower() for mark in na_values])
    missing = int(values.isna().sum())
    if missing:
        notes.append(f"{missing:,} rows without {target!r} are left out")
        frame, values = frame[values.notna()], values[values.notna()]
    labels, task, said, read = _target(values, target, task)
    notes += said
    if read.said and task == "regression":
        notes.append(f"the target {target!r} is read as {read.said}")
    inputs: dict[str, pd.Series] = {}
    readers: dict[str, Column] = {}
    facts: list[dict[str, Any]] = []
    for name_ in frame.columns:
        if name_ == target:
            continue
        if name_ in drop or name_ == group:
            why = "the groups" if name_ == group else "as asked"
            facts.append(column_facts(name_, None, frame[name_], why))
            continue
        column, series = learn_column(
            frame[name_],
            name_,
            as_category=name_ in categories,
            remedy=f"add --categories {name_!r} or --drop {name_!r}",
            na_values=na_values,
        )
        reason = why_useless(series, column, alone=len(frame.columns) == 2)
        facts.append(column_facts(name_, column, series, reason))
        if reason is None:
            readers[name_] = column
            inputs[name_] = series.astype("category") if column.kind == CATEGORY else series
    if not inputs:
        raise InputError(
            f"{name} has no column to learn from besides {target!r}: every other one is constant, "
            "an identifier or dropped"
        )
    learned = pd.DataFrame(inputs).reset_index(drop=True)
    groups = None if group is None else frame[group].reset_index(drop=True)
    kinds = {name: column.kind for name, column in readers.items()}
    labels = labels.rename(target).reset_index(drop=True)
    return UserTable(name, learned, labels, kinds, task, notes, groups, readers, facts)


def _check_names(
    frame: pd.DataFrame,
    target: str,
    task: str | None,
    drop: Sequence[str],
    categories: Sequence[str],
    group: str | None,
) -> None:
    groups = [] if group is None else [group]
    asked = {"target": [target], "drop": drop, "categories": categories, "split group": groups}
    for what, wanted in asked.items():
        for column in wanted:
            if column not in frame.columns:
                hint = _meant(str(column), frame) or f"the columns are {list_columns(frame)}"
                raise InputError(f"no column {column!r} for --{what}: {hint}")
    if target == group:
        raise InputError(f"the target {target!r} cannot be the group, too: name another column")
    if target in drop:
        raise InputError(f"the target {target!r} cannot be dropped: name another target")
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")


def _meant(name: str, frame: pd.DataFrame) -> str:
    """The columns that a name may stand for: those that hold it, such as with a unit, or alike."""
    names = {str(column).lower(): str(column) for column in frame.columns}
    found = [full for low, full in names.items() if name and name.lower() in low]
    found = found[:_MEANT] or [names[low] for low in nearest(name.lower(), names)]
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""


def list_columns(frame: pd.DataFrame) -> str:
    """The names of the columns, of a wide table the first ones."""
    shown = ", ".join(repr(str(column)) for column in frame.columns[:_LISTED])
    more = len(frame.columns) - _LISTED
    return shown + (f" and {more:,} more" if more > 0 else "")


def _target(
    values: pd.Series, target: str, task: str | None
) -> tuple[pd.Series, str, list[str], Column]:
    """The target of its final type, the task, what is to be said about it, and how it is read."""
    import pandas as pd

    if is_text(values):
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
    few = distinct <= min(_FEW_CLASSES, len(values) // _ROWS_A_CLASS)
    # Names of classes may well be numbers but for a few.
    mixed = (task == "classification" or (task is None and few)) and is_text(values)
    if mixed:
        mixed = bool(pd.to_numeric(stripped(values), errors="coerce").isna().any())
    column, numbers = learn_column(
        values, target, as_category=mixed, remedy="add --task classification"
    )
    kind = column.kind
    whole = kind == NUMBER and bool((numbers == numbers.round()).all())
    notes: list[str] = []
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
        if whole and values.dtype not in (np.dtype(bool), pd.BooleanDtype()):
            values = as_labels(numbers)
        return values.astype(str), task, notes, column
    if kind == DATE:
        raise InputError(
            f"the target {target!r} holds dates, got {str(values.iloc[0])!r}: turn them into "
            "numbers, or name another column"
        )
    if kind == CATEGORY:
        row, cell = first_text(values)
        raise InputError(
            f"the target {target!r} must hold numbers for a regression, but row {row} is "
            f"{cell!r}: use --task classification, or name another column"
        )
    return numbers, task, notes, column
