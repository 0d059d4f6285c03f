"""What can be compared on: a file, a physical law, a UCI table, a data set of scikit-learn."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

from quadric.data import laws, uci
from quadric.data.columns import NUMBER, TASKS, UserTable, list_columns, make_table
from quadric.data.table_files import read_table
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


def load_source(
    source: str,
    *,
    target: str | None = None,
    task: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    delimiter: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    split: Split | None = None,
    seed: int = 0,
) -> UserTable:
    """Loads what a user named."""
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    kind, _, name = source.partition(":")
    if kind not in ("law", "uci") and (source not in EMBEDDED or Path(source).is_file()):
        path = Path(source)
        if not path.expanduser().exists() and not path.suffix:
            raise InputError(
                f"no such file or data set: {source!r}: name a CSV or Parquet file, law:NAME, "
                f"uci:NAME or one of {', '.join(EMBEDDED)} (quadric compare --list)"
            )
        frame = read_table(source, delimiter=delimiter, rows=rows)
        if target is None:
            raise InputError(
                f"name the column to predict with --target; the columns are {list_columns(frame)}"
            )
        name = path.name.partition(".")[0] or "table"
        split = split or Split()
        group = split.column if split.kind == GROUP else None
        read = make_table(
            name, frame, target, task=task, drop=drop, categories=categories, group=group
        )
        warning = order_note(read) if split.kind == RANDOM else None
        return read if warning is None else dataclasses.replace(read, notes=[*read.notes, warning])
    own_task = EMBEDDED[source][1] if source in EMBEDDED else "regression"
    given = {
        "--target": target, "--delimiter": delimiter, "--drop": drop, "--categories": categories,
        "--split": split is not None and split.kind != RANDOM,
    }  # fmt: skip
    for option, value in given.items():
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
        if "formula" in fact:
            what, size = f"{fact['title']}: {fact['formula']}", _ranges(fact["variables"])
        elif "title" in fact:
            what, size = f"{fact['task']}: {fact['title']}", ""
        else:
            what = "regression, with --data-dir DIR"
            size = "" if fact["rows"] is None else f"{fact['rows']:,} rows"
        cells.append([fact["name"], what, size])
    return text_table(["name", "what", "ranges"], cells) + (
        "\n\nor any CSV or Parquet file: quadric compare houses.csv --target price"
    )


def _ranges(variables: Sequence[dict[str, Any]]) -> str:
    """The variables with unit and range, those of one range together."""
    groups: dict[tuple[float, float], list[str]] = {}
    for v in variables:
        unit = "" if v["unit"] == "1" else f" ({v['unit']})"
        groups.setdefault((v["low"], v["high"]), []).append(v["name"] + unit)
    parts = [f"{', '.join(names)} in {low:g}-{high:g}" for (low, high), names in groups.items()]
    return "; ".join(parts)
