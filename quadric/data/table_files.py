"""Reading a user's table: CSV with any delimiter, or Parquet, through pandas.

Delimiter, header, decimal comma and encoding are found from the first lines. A file that would not
fit into memory is refused by its size before it is read; a number of rows reads only those.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import lzma
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quadric.errors import InputError
from quadric.support.extras import load_extra

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 2**30
"""Larger files are refused unless a number of rows is given."""

_HEAD = 2**16
_COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
# What a text file is packed by, roughly; only for the question whether it fits into memory.
_PACKED = 8
_DELIMITERS = (",", ";", "\t", "|")
_BLANKS = r"\s+"
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f]")
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_KINDS = "CSV with any delimiter (also .gz, .bz2, .xz) or Parquet"


def read_table(
    path: str | Path, *, delimiter: str | None = None, rows: int | None = None
) -> pd.DataFrame:
    """Reads a table."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a table, {_KINDS}")
    if not path.exists():
        raise InputError(f"no such file: {path}: name a table, {_KINDS}")
    if rows is not None and rows < 1:
        raise InputError(f"the number of rows must be >= 1, got {rows}")
    if delimiter is not None and (not delimiter or set(delimiter) & set('"\r\n')):
        raise InputError(
            "delimiter must be what separates the cells of a line, such as ';', got "
            f"{delimiter!r}: leave it out to have it found"
        )
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty: a table needs a line of column names and rows")
    load_extra("pandas", "reading a table", "tables")
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})") from None
    if parquet or path.suffix in (".parquet", ".pq"):
        frame = _read_parquet(path, rows)
    else:
        frame = _read_text(path, size, delimiter, rows)
    if not len(frame):
        raise InputError(f"{path} has column names but no rows")
    if frame.shape[1] < 2:
        raise InputError(
            f"{path} must have at least 2 columns, got {frame.shape[1]}: name the delimiter with "
            "--delimiter if it was not found"
        )
    frame.columns = [str(name).strip() for name in frame.columns]
    _refuse_twice(path, list(frame.columns))
    return frame


def _refuse_twice(path: Path, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path} has two columns named {name!r}: rename one of them")
        seen.add(name)


def _refuse_size(path: Path, size: float) -> None:
    if size > MAX_BYTES:
        raise InputError(
            f"{path} has about {size / 2**30:.1f} GB of data, more than the "
            f"{MAX_BYTES / 2**30:.0f} GB that is read at once: read a part with --rows 200000"
        )


def _read_parquet(path: Path, rows: int | None) -> pd.DataFrame:
    parquet = load_extra("pyarrow.parquet", "reading a Parquet file", "tables")
    arrow = load_extra("pyarrow", "reading a Parquet file", "tables")
    try:
        file = parquet.ParquetFile(path)
        if rows is None:
            groups = range(file.metadata.num_row_groups)
            _refuse_size(path, sum(file.metadata.row_group(i).total_byte_size for i in groups))
            found: pd.DataFrame = file.read().to_pandas()
            return found
        batches: list[Any] = []
        for batch in file.iter_batches(batch_size=min(rows, 2**16)):
            batches.append(batch)
            if sum(len(b) for b in batches) >= rows:
                break
        table = arrow.Table.from_batches(batches, schema=file.schema_arrow)
        part: pd.DataFrame = table.slice(0, rows).to_pandas()
        return part
    except (arrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path} is not a Parquet file that can be read: {reason}") from None


def _read_text(path: Path, size: int, delimiter: str | None, rows: int | None) -> pd.DataFrame:
    import pandas as pd

    if rows is None:
        _refuse_size(path, size * (_PACKED if path.suffix in _COMPRESSED else 1))
    head, encoding = _head(path)
    lines = [line for line in head if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty: a table needs a line of column names and rows")
    if delimiter is None:
        delimiter = _find_delimiter(lines)
        if delimiter is None:
            raise InputError(
                f"{path} is not a table: its lines do not split into the same number of cells; "
                f"give {_KINDS}, or name the delimiter with --delimiter"
            )
    first = _cells(lines[0], delimiter)
    named = not all(_is_number(cell) for cell in first)
    if named:  # pandas would rename the second one
        _refuse_twice(path, [cell.strip() for cell in first if cell.strip()])
    options: dict[str, Any] = {
        "sep": delimiter,
        "header": 0 if named else None,
        # Else pandas takes the first cells of rows that are too long for an index, and shifts all.
        "index_col": False,
        "nrows": rows,
        "encoding": encoding,
        "skipinitialspace": True,
        "low_memory": False,
    }
    if delimiter != "," and _has_decimal_commas(lines[1:], delimiter):
        options["decimal"] = ","
    if len(delimiter) > 1 and delimiter != _BLANKS:
        options |= {"sep": re.escape(delimiter), "engine": "python"}
        del options["low_memory"]
    try:
        with warnings.catch_warnings():
            # Rows that are all too long: pandas would cut them off.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, **options)
    except (
        pd.errors.ParserError,
        pd.errors.ParserWarning,
        pd.errors.EmptyDataError,
        UnicodeError,
        EOFError,
    ) as error:
        _refuse_long_row(path, encoding, delimiter, len(first), named)
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path} is not a table: {reason}") from None
    except (OSError, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"cannot read {path} ({reason})") from None
    if options["header"] is None:
        frame.columns = [f"column {i}" for i in range(frame.shape[1])]
    return frame


def _head(path: Path) -> tuple[list[str], str]:
    """The first lines, and the encoding they are written in."""
    opened = _COMPRESSED.get(path.suffix, open)
    try:
        with opened(path, "rb") as file:
            data = file.read(_HEAD)
            whole = len(data) < _HEAD
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"cannot read {path} ({error}): name a table, {_KINDS}") from None
    lines = data.split(b"\n")
    lines = lines if whole or len(lines) == 1 else lines[:-1]
    joined = b"\n".join(lines)
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            text = joined.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not _NOT_TEXT.search(text):
            return text.splitlines(), encoding
    raise InputError(f"{path} is not a table but a binary file: give {_KINDS}")


def _refuse_long_row(path: Path, encoding: str, delimiter: str, columns: int, named: bool) -> None:
    """Names the first row with more cells than there are columns, if there is one."""
    opened = _COMPRESSED.get(path.suffix, open)
    row = 0 if named else 1
    with (
        # What cannot be split is refused without a row.
        contextlib.suppress(csv.Error, OSError, EOFError, lzma.LZMAError),
        opened(path, "rt", encoding=encoding, errors="replace", newline="") as file,
    ):
        for cells in _split(file, delimiter):
            if not any(cell.strip() for cell in cells):
                continue
            # A delimiter at the end of a line makes no cell.
            count = len(cells) if cells[-1].strip() else len(cells) - 1
            if count > columns:
                raise InputError(
                    f"{path} is not a table: row {row} has {count} cells, but there are {columns} "
                    "columns: correct it, or put text that holds the delimiter into quotes"
                )
            row += 1


def _split(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The cells of each row; quoted ones may hold delimiters and ends of lines."""
    if len(delimiter) == 1:
        yield from csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        return
    for line in lines:
        yield _cells(line.rstrip("\r\n"), delimiter)


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == _BLANKS:
        return line.split()
    if len(delimiter) > 1:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))


def _find_delimiter(lines: list[str]) -> str | None:
    """The delimiter that splits most lines into the same number of cells, more than one."""
    sample = lines[:50]
    found: list[tuple[float, int, str]] = []
    for delimiter in (*_DELIMITERS, _BLANKS):
        counts = [len(_cells(line, delimiter)) for line in sample]
        common = max(set(counts), key=counts.count)
        share = counts.count(common) / len(counts)
        if common > 1 and share >= 0.9:
            found.append((share, common, delimiter))
    # Blanks are everywhere: only if nothing else splits the lines.
    marks = [entry for entry in found if entry[2] != _BLANKS] or found
    return max(marks)[2] if marks else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _has_decimal_commas(lines: list[str], delimiter: str) -> bool:
    cells = [cell for line in lines[:50] for cell in _cells(line, delimiter)]
    return any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
