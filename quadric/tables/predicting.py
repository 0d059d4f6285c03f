"""Predictions for a file of any size: some rows at a time, from a saved estimator."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from quadric.data.table_files import CHUNK, read_chunks
from quadric.errors import InputError
from quadric.support.extras import load_extra
from quadric.support.writing import check_writable, whole_file

_PARQUET = (".parquet", ".pq")
_LISTED = 10


def predict_file(
    model: Any,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    coverage: float | None = None,
    delimiter: str | None = None,
    rows: int = CHUNK,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Writes a table with the predictions of a fitted estimator beside its columns.

    Args:
        model: the estimator.
        source: CSV or Parquet, of any size.
        out: CSV, or Parquet by its name; it appears when it is complete.
        coverage: also intervals that hold this share of new targets, of a regressor that held rows
            out; None: intervals of 0.9 where it can give them.
        delimiter: the sign between the columns of a CSV file; None finds it.
        rows: read at once.
        progress: called with the number of rows that were added.

    Returns:
        The number of rows.
    """
    path, done = Path(out), 0
    share = 0.9 if coverage is None else coverage
    check_writable("--out", path)
    reader = model._preparation
    text = [] if reader is None else [n for n, e in reader.encodings_.items() if e.column.text]
    intervals = _has_intervals(model, coverage)
    with whole_file(path) as place:
        write, close = _writer(place, path.suffix in _PARQUET)
        try:
            for part in read_chunks(source, text, delimiter=delimiter, rows=rows):
                write(with_predictions(model, part, share, intervals))
                done += len(part)
                if progress is not None:
                    progress(len(part))
        finally:
            close()
    return done


def _has_intervals(model: Any, coverage: float | None) -> bool:
    """Whether intervals are wanted and can be given; those that are asked for must be."""
    if not hasattr(model, "predict_interval"):
        if coverage is not None:
            raise InputError("intervals are for numbers, got a model of classes: leave --coverage")
        return False
    try:
        model._interval_width(0.9 if coverage is None else coverage)
    except InputError:
        if coverage is not None:
            raise
        return False
    return True


def with_predictions(
    model: Any, frame: pd.DataFrame, coverage: float, intervals: bool
) -> pd.DataFrame:
    """A frame with the predictions beside its columns."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            f"the table must have the columns of fit, but lacks {missing[:_LISTED]}: it has "
            f"{list(frame.columns[:_LISTED])}"
        )
    X: Any = frame[names] if names else frame.to_numpy()
    if names:
        X.attrs = dict(frame.attrs)
    target = str(getattr(model, "target_name_", None) or "target")
    made: dict[str, Any] = {}
    classes = getattr(model, "classes_", None)
    if classes is not None:
        shares = model.predict_proba(X)
        made[f"{target}_predicted"] = classes[shares.argmax(1)]
        made |= {f"p({label})": shares[:, i] for i, label in enumerate(classes)}
    else:
        predicted = model.predict(X)
        columns = predicted.reshape(len(predicted), -1).T
        several = [f"_{i}" for i in range(len(columns))] if len(columns) > 1 else [""]
        if len(columns) > 1 and model._levels():
            several = [f"_{level:g}" for level in model._levels()]
        made |= {f"{target}_predicted{s}": c for s, c in zip(several, columns, strict=True)}
        if intervals:
            width = model._interval_width(coverage).reshape(-1)
            for end, sign in (("low", -1), ("high", 1)):
                made |= {
                    f"{target}_{end}{s}": c + sign * w
                    for s, c, w in zip(several, columns, width, strict=True)
                }
    twice = [name for name in made if name in frame.columns]
    if twice:
        raise InputError(f"the table has a column {twice[0]!r} already: rename it, or leave it out")
    return pd.concat([frame, pd.DataFrame(made, index=frame.index)], axis=1)


def _writer(
    place: Path, parquet: bool
) -> tuple[Callable[[pd.DataFrame], object], Callable[[], object]]:
    """What writes one more part, and what ends the file."""
    if not parquet:
        file = place.open("w", encoding="utf-8", newline="")

        def write(part: pd.DataFrame) -> None:
            part.to_csv(file, index=False, header=file.tell() == 0, lineterminator="\n")

        return write, file.close
    arrow = load_extra("pyarrow", "writing a Parquet file", "tables")
    module = load_extra("pyarrow.parquet", "writing a Parquet file", "tables")
    writers: list[Any] = []

    def write_table(part: pd.DataFrame) -> None:
        schema = writers[0].schema if writers else None
        table = arrow.Table.from_pandas(part, schema=schema, preserve_index=False)
        if not writers:
            writers.append(module.ParquetWriter(place, table.schema))
        writers[0].write_table(table)

    return write_table, lambda: [writer.close() for writer in writers]
