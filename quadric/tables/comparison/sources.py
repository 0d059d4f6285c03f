"""What can be compared on: a frame, a file, a law, a UCI table, a data set of scikit-learn."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

from quadric.data import laws, uci
from quadric.data.columns import DATE, NUMBER
from quadric.data.formula_text import Known, known_formula
from quadric.data.preparation import check_frame, date_numbers
from quadric.data.table_files import read_table
from quadric.data.user_table import UserTable, make_table
from quadric.errors import InputError
from quadric.support.texttable import text_table
from quadric.tables.comparison.splitting import GROUP, RANDOM, Split, order_note

# Those that ship inside scikit-learn, without a download: loader, task, title.
EMBEDDED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "diabetes": (datasets.load_diabetes, "regression", "progression of diabetes after one year"),
    "iris": (datasets.load_iris, "classification", "three species of iris"),
    "wine": (datasets.load_wine, "classification", "three cultivars by the chemistry of wine"),
    "breast_cancer": (datasets.load_breast_cancer, "classification", "benign or malignant"),
    "digits": (datasets.load_digits, "classification", "handwritten digits of 8x8 pixels"),
}
LAW_ROWS = 8_000


ROWS_PER_FOLD = 4
"""A fold with fewer rows says nothing about an error."""


def load_source(
    source: str | pd.DataFrame,
    *,
    target: str | None = None,
    task: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    delimiter: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    na_values: Sequence[str] = (),
    split: Split | None = None,
    seed: int = 0,
) -> UserTable:
    """Loads what a user named, or takes a frame of theirs."""
    split = split or Split()
    frame, title = None, "table"
    if isinstance(source, pd.DataFrame):
        check_frame(source)
        frame = source.head(rows).rename(columns=str) if rows else source.rename(columns=str)
    elif (formula := known_formula(source)) is not None and not Path(source).is_file():
        return _drawn(formula, target, task, rows, seed)
    elif not source.startswith(("law:", "uci:")) and (
        source not in EMBEDDED or Path(source).is_file()
    ):
        path = Path(source)
        if not path.expanduser().exists() and not path.suffix:
            raise InputError(
                f"no such file or data set: {source!r}: name a CSV or Parquet file, law:NAME, "
                "feynman:NAME, uci:NAME, a formula such as 'x*y; x=0:1; y=0:1', or one of "
                f"{', '.join(EMBEDDED)} (quadric compare --list)"
            )
        frame = read_table(source, delimiter=delimiter, rows=rows)
        title = table_name(path)
    if frame is not None:
        group = split.column if split.kind == GROUP else None
        table = make_table(
            title,
            frame,
            target,
            task=task,
            drop=drop,
            categories=categories,
            group=group,
            na_values=na_values,
        )
        warning = order_note(table) if split.kind == RANDOM else None
        return table if warning is None else replace(table, notes=[*table.notes, warning])
    assert isinstance(source, str)
    return _known_table(source, target, task, data_dir, rows, seed, {
        "--delimiter": delimiter, "--drop": drop, "--categories": categories,
        "--split": split.kind != RANDOM,
    })  # fmt: skip


def table_name(path: Path) -> str:
    """The name of a file without its type; dots inside of it stay."""
    name = re.sub(r"\.(gz|bz2|xz)$", "", path.name)
    return re.sub(r"\.(csv|tsv|txt|dat|parquet|pq|data)$", "", name, flags=re.IGNORECASE) or name


def _drawn(
    formula: Known, target: str | None, task: str | None, rows: int | None, seed: int
) -> UserTable:
    """Samples of a formula, as a table."""
    if target is not None and target != "y":
        raise InputError(
            f"--target is for files, the target of {formula.name} is 'y': leave it out"
        )
    if task not in (None, "regression"):
        raise InputError(f"{formula.name} is a regression, got --task {task}: leave it out")
    X, y = formula.sample(LAW_ROWS if rows is None else rows, seed)
    names = list(formula.ranges)
    kinds = dict.fromkeys(names, NUMBER)
    return UserTable(
        formula.name, pd.DataFrame(X, columns=names), pd.Series(y, name="y"), kinds, "regression"
    )


def _known_table(
    source: str,
    target: str | None,
    task: str | None,
    data_dir: str | os.PathLike[str] | None,
    rows: int | None,
    seed: int,
    given: dict[str, Any],
) -> UserTable:
    """A law, a UCI table, or one that ships inside scikit-learn."""
    kind, _, name = source.partition(":")
    own_task = EMBEDDED[source][1] if source in EMBEDDED else "regression"
    for option, value in {"--target": target, **given}.items():
        if value:
            raise InputError(f"{option} is for files, {source} has its own columns: leave it out")
    if rows is not None and kind != "law":
        raise InputError(f"--rows is for files and laws, {source} has its own rows: leave it out")
    if task not in (None, own_task):
        raise InputError(f"{source} is a {own_task}, got --task {task}: leave it out")
    if kind == "law":
        law = laws.get(name)
        x, y = laws.sample(law, LAW_ROWS if rows is None else rows, seed)
        names, target = [variable.name for variable in law.variables], law.target
    elif kind == "uci":
        if data_dir is None:
            raise InputError(f"{source} needs the directory of the UCI tables: --data-dir DIR")
        table = uci.load(name, data_dir, dtype=torch.float64)
        x = torch.cat([table.train_inputs, table.test_inputs])
        y = torch.cat([table.train_targets, table.test_targets])[:, 0]
        names, target = list(table.input_names), table.target_name
    else:
        bunch = EMBEDDED[source][0]()
        x, y = bunch.data, bunch.target
        if own_task == "classification":
            y = np.asarray(bunch.target_names).astype(str)[y]
        names, target = [str(name) for name in bunch.feature_names], "target"
    frame = pd.DataFrame(np.asarray(x, dtype=np.float64), columns=names)
    labels = pd.Series(np.asarray(y), name=target)
    return UserTable(source, frame, labels, dict.fromkeys(names, NUMBER), own_task)


def check_table(table: UserTable, folds: int) -> UserTable:
    """Takes out classes that are too rare, and stores numbers in float32 where that is enough."""
    if folds < 2:
        raise InputError(f"folds must be >= 2, got {folds}: 5 is usual")
    _check_rows(table, folds)
    if table.task == "classification":
        table = _without_rare_classes(table, folds)
        _check_rows(table, folds)
    return _narrow(table)


def _without_rare_classes(table: UserTable, folds: int) -> UserTable:
    counts = table.target.value_counts()
    rare = counts[counts < folds]
    if not len(rare):
        return table
    if len(counts) - len(rare) < 2:
        listed = ", ".join(f"{count} of {label!r}" for label, count in counts.head(5).items())
        more = f" and {len(counts) - 5:,} more" if len(counts) > 5 else ""
        raise InputError(
            f"the target {table.target.name!r} must have at least 2 classes with {folds} rows, one "
            f"per fold, got {listed}{more}: give more rows or fewer --folds"
        )
    kept = (~table.target.isin(rare.index)).to_numpy()
    names = ", ".join(repr(str(label)) for label in rare.index[:10])
    note = f"{rare.sum():,} rows of classes with fewer than {folds} rows are left out: {names}"
    return replace(
        table,
        inputs=table.inputs[kept].reset_index(drop=True),
        target=table.target[kept].reset_index(drop=True),
        groups=None if table.groups is None else table.groups[kept].reset_index(drop=True),
        notes=[*table.notes, note],
    )


def _check_rows(table: UserTable, folds: int) -> None:
    rows = len(table.target)
    if rows < ROWS_PER_FOLD * folds:
        raise InputError(
            f"{table.name} must have at least {ROWS_PER_FOLD} rows per fold, got {rows} rows for "
            f"{folds} folds: give more rows or fewer --folds"
        )


def _narrow(table: UserTable) -> UserTable:
    """Numbers in float32, unless the digits of a column are used up by its mean.

    An estimator computes in float32 if all numbers of a frame are.
    """
    numbers = [name for name, kind in table.kinds.items() if kind == NUMBER]
    dates = [name for name, kind in table.kinds.items() if kind == DATE]
    learned = [table.inputs[numbers].to_numpy()]
    if dates:
        learned.append(date_numbers(table.inputs[dates]))
    if table.task == "regression":
        learned.append(table.target.to_numpy()[:, None])
    values = np.column_stack(learned)
    mean, deviation = np.abs(np.nanmean(values, 0)), np.nanstd(values, 0)
    if np.nanmax(np.abs(values), initial=0) > 1e30 or (mean > 1e4 * deviation)[deviation > 0].any():
        return table
    return replace(table, inputs=table.inputs.astype(dict.fromkeys(numbers, np.float32)))


def source_facts(data_dir: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Everything but files, as plain data."""
    facts: list[dict[str, Any]] = []
    for law in map(laws.get, laws.names()):
        known = {key: getattr(law, key) for key in ("title", "number", "formula", "unit")}
        variables = [dataclasses.asdict(variable) for variable in law.variables]
        facts.append(
            {"name": f"law:{law.name}", "task": "regression", **known, "variables": variables}
        )
    facts += [
        {"name": name, "task": task, "title": title} for name, (_, task, title) in EMBEDDED.items()
    ]
    tables = uci.names() if data_dir is None else uci.available(data_dir)
    return facts + [
        {"name": f"uci:{name}", "task": "regression", "rows": uci.ROWS.get(name)} for name in tables
    ]


def list_sources(data_dir: str | os.PathLike[str] | None = None) -> str:
    """Everything but files, as a table for `quadric compare --list`."""
    cells = []
    for fact in source_facts(data_dir):
        what = fact.get("title", "with --data-dir DIR")
        size = f"{fact['rows']:,} rows" if fact.get("rows") else ""
        if "formula" in fact:
            what = f"{what}: {fact['formula']}"
            size = "; ".join(
                f"{v['name']}{'' if v['unit'] == '1' else ' (' + v['unit'] + ')'} in "
                f"{v['low']:g}-{v['high']:g}"
                for v in fact["variables"]
            )
        cells.append([fact["name"], f"{fact['task']}: {what}", size])
    return text_table(["name", "what", "ranges"], cells) + (
        "\n\nor any CSV or Parquet file: quadric compare houses.csv --target price"
    )
