"""What can be compared on: a file, a physical law, a UCI table, a data set of scikit-learn."""

from __future__ import annotations

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
from quadric.texttable import text_table

# Those that ship inside scikit-learn: no download.
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
    data_dir: str | Path | None = None,
    rows: int | None = None,
    delimiter: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    seed: int = 0,
) -> UserTable:
    """Loads what a user named.

    Args:
        source: a file, `law:NAME`, `uci:NAME`, or a name of `EMBEDDED`.
        target: the column to predict; only a file needs it.
        task: "regression" or "classification"; None finds it.
        data_dir: where UCI tables are.
        rows: of a file the first so many, of a law so many samples.
        delimiter: of a file.
        drop: columns of a file to leave out.
        categories: columns of a file to take as categories.
        seed: of a law's samples.
    """
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    kind, _, name = source.partition(":")
    known = kind in ("law", "uci") or (source in EMBEDDED and not Path(source).is_file())
    if known:
        given = {"--target": target, "--delimiter": delimiter, "--drop": drop,
                 "--categories": categories}  # fmt: skip
        for option, value in given.items():
            if value:
                raise InputError(f"{option} is for files, {source} has its own columns: leave it")
        if rows is not None and kind != "law":
            raise InputError(f"--rows is for files and laws, {source} has its own rows: leave it")
        own_task = EMBEDDED[source][1] if source in EMBEDDED else "regression"
        if task not in (None, own_task):
            raise InputError(f"{source} is a {own_task}, got --task {task}: leave it out")
    if kind == "law":
        x, y = laws.sample(name, LAW_ROWS if rows is None else rows, seed)
        columns = [variable.name for variable in laws.get(name).variables]
        return _numbers(source, x.numpy(), y.numpy(), columns, laws.get(name).target)
    if kind == "uci":
        if data_dir is None:
            raise InputError(f"{source} needs the directory of the UCI tables: --data-dir DIR")
        table = uci.load(name, data_dir, dtype=torch.float64)
        x = torch.cat([table.train_inputs, table.test_inputs])
        y = torch.cat([table.train_targets, table.test_targets])[:, 0]
        names = list(table.input_names)
        return _numbers(source, x.numpy(), y.numpy(), names, table.target_name)
    if known:
        load = EMBEDDED[source][0]
        bunch = load()
        y = bunch.target
        if own_task == "classification":
            y = np.asarray(bunch.target_names).astype(str)[y]
        names = [str(name) for name in bunch.feature_names]
        return _numbers(source, bunch.data, y, names, "target", own_task)
    if not Path(source).expanduser().exists() and not Path(source).suffix:
        raise InputError(
            f"no such file or data set: {source!r}: name a CSV or Parquet file, law:NAME, uci:NAME "
            f"or one of {', '.join(EMBEDDED)} (quadric compare --list)"
        )
    frame = read_table(source, delimiter=delimiter, rows=rows)
    if target is None:
        raise InputError(
            f"name the column to predict with --target; the columns are {list_columns(frame)}"
        )
    return make_table(
        Path(source).name.partition(".")[0] or "table",
        frame,
        target,
        task=task,
        drop=drop,
        categories=categories,
    )


def _numbers(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    columns: list[str],
    target: str,
    task: str = "regression",
) -> UserTable:
    """A table of numbers that needs no inspection."""
    frame = pd.DataFrame(np.asarray(x, dtype=np.float64), columns=columns)
    return UserTable(
        name,
        frame,
        pd.Series(y, name=target),
        dict.fromkeys(columns, NUMBER),
        task,
    )


def list_sources(data_dir: str | Path | None = None) -> str:
    """A table of everything but files, for `quadric compare --list`."""
    law_rows = [
        (f"law:{law.name}", f"{law.title}: {law.formula}", _ranges(law))
        for law in map(laws.get, laws.names())
    ]
    embedded = [(name, f"{task}: {text}", "") for name, (_, task, text) in EMBEDDED.items()]
    names = uci.names() if data_dir is None else uci.available(data_dir)
    tables = [
        (f"uci:{name}", "regression, with --data-dir DIR", f"{uci.ROWS[name]:,} rows")
        if name in uci.ROWS
        else (f"uci:{name}", "regression", "")
        for name in names
    ]
    header = ["name", "what", "ranges"]
    return text_table(header, [*law_rows, *embedded, *tables]) + (
        "\n\nor any CSV or Parquet file: quadric compare houses.csv --target price"
    )


def _ranges(law: laws.Law) -> str:
    """The variables with unit and range, those of one range together."""
    groups: dict[tuple[float, float], list[str]] = {}
    for v in law.variables:
        unit = "" if v.unit == "1" else f" ({v.unit})"
        groups.setdefault((v.low, v.high), []).append(v.name + unit)
    parts = [f"{', '.join(names)} in {low:g}-{high:g}" for (low, high), names in groups.items()]
    return "; ".join(parts)


def source_facts() -> list[dict[str, Any]]:
    """The same, as plain data."""
    facts: list[dict[str, Any]] = [
        {
            "name": f"law:{law.name}",
            "task": "regression",
            "title": law.title,
            "number": law.number,
            "formula": law.formula,
            "unit": law.unit,
            "variables": [
                {"name": v.name, "unit": v.unit, "low": v.low, "high": v.high, "meaning": v.meaning}
                for v in law.variables
            ],
        }
        for law in map(laws.get, laws.names())
    ]
    facts += [
        {"name": name, "task": task, "title": text} for name, (_, task, text) in EMBEDDED.items()
    ]
    facts += [{"name": f"uci:{name}", "task": "regression", "rows": uci.ROWS[name]}
              for name in uci.names()]  # fmt: skip
    return facts
