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
import os
import re
import warnings
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quadric.errors import InputError, QuadricError, in_one_line
from quadric.support.checks import check_size
from quadric.support.extras import load_extra

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 2**30
"""Larger files are refused unless a number of rows is given."""

CHUNK = 2**16
"""Rows read at once of a table that may be larger than memory."""

_HEAD = 2**16
_PACKERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# A text file is looked into this far for the question whether it fits into memory. No table is
# packed more than so many times.
_LOOK, _PACKED = 2**24, 300
_BLANKS = r"\s+"
_DELIMITERS = (",", ";", "\t", "|", _BLANKS)
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f]")
_NUMBER = re.compile(r"\s*([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf(inity)?)\s*", re.I)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_KINDS = "CSV with any delimiter (also .gz, .bz2, .xz) or Parquet"


def read_table(
    path: str | Path, *, delimiter: str | None = None, rows: int | None = None
) -> pd.DataFrame:
    """Reads a table."""
    path = Path(path).expanduser()
    if not path.is_file():
        what = f"{path} is a directory" if path.is_dir() else f"no such file: {path}"
        raise InputError(f"{what}: name a table, {_KINDS}")
    if rows is not None:
        check_size("rows", rows)
    if delimiter is not None and (not delimiter or set(delimiter) & set('"\r\n')):
        raise InputError(
            "delimiter must be what separates the cells of a line, such as ';', got "
            f"{delimiter!r}: leave it out to have it found"
        )
    with _explained(path) as parquet:
        frame = _read_parquet(path, rows) if parquet else _read_text(path, delimiter, rows)
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


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[bool]:
    """Whether a file is Parquet; within it, what cannot be read is one clear error."""
    pandas = load_extra("pandas", "reading a table", "tables")
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1" or path.suffix in (".parquet", ".pq")
        yield parquet
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, QuadricError):
            raise
        raise InputError(
            f"cannot read {path} ({in_one_line(error)}): name a table, {_KINDS}"
        ) from None
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, UnicodeError) as error:
        raise InputError(f"{path} is not a table: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """What pandas says of a row that is too long, in words that help."""
    remedy = "correct it, or put text that holds the delimiter into quotes"
    fields = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if fields is not None:
        columns, line, cells = fields.groups()
        return f"line {line} has {cells} cells, but there are {columns} columns: {remedy}"
    if "Length of header" in str(error):
        return f"its first rows have more cells than there are columns: {remedy}"
    return in_one_line(error)


def _refuse_twice(path: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError(f"{path} has two columns named {name!r}: rename one of them")


def _refuse_size(path: Path, size: float) -> None:
    if size > MAX_BYTES:
        raise InputError(
            f"{path} has about {size / 2**30:.1f} GB of data, more than the "
            f"{MAX_BYTES / 2**30:.0f} GB that is read at once: read a part with --rows 200000"
        )


def _read_parquet(path: Path, rows: int | None) -> pd.DataFrame:
    arrow = load_extra("pyarrow", "reading a Parquet file", "tables")
    parquet = load_extra("pyarrow.parquet", "reading a Parquet file", "tables")
    try:
        file = parquet.ParquetFile(path)
        if rows is None:
            groups = range(file.metadata.num_row_groups)
            _refuse_size(path, sum(file.metadata.row_group(i).total_byte_size for i in groups))
            table = file.read()
        else:
            batches: list[Any] = []
            for batch in file.iter_batches(batch_size=min(rows, 2**16)):
                batches.append(batch)
                if sum(map(len, batches)) >= rows:
                    break
            table = arrow.Table.from_batches(batches, schema=file.schema_arrow).slice(0, rows)
        frame: pd.DataFrame = table.to_pandas()
    except arrow.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file: {in_one_line(error)}") from None
    return frame


def _text_options(path: Path, delimiter: str | None) -> dict[str, Any]:
    """What pandas is to be told of a text file."""
    lines, encoding = _head(path)
    delimiter = delimiter or _find_delimiter(lines)
    if delimiter is None:
        raise InputError(
            f"{path} is not a table: its lines do not split into the same number of cells; "
            f"give {_KINDS}, or name the delimiter with --delimiter"
        )
    first = _cells(lines[0], delimiter)
    named = not all(map(_NUMBER.fullmatch, first))
    if named:  # pandas would rename the second one
        _refuse_twice(path, [cell.strip() for cell in first if cell.strip()])
    cells = [cell for line in lines[1:50] for cell in _cells(line, delimiter)]
    options: dict[str, Any] = {"sep": delimiter, "low_memory": False}
    if len(delimiter) > 1 and delimiter != _BLANKS:
        options = {"sep": re.escape(delimiter), "engine": "python"}
    if delimiter != "," and any(map(_DECIMAL_COMMA.fullmatch, cells)):
        options["decimal"] = ","
    return options | {
        "header": 0 if named else None,
        "index_col": False,  # else pandas takes the first cells of rows that are too long for it
        "encoding": encoding,
        "skipinitialspace": True,
    }


def _named(frame: pd.DataFrame, options: dict[str, Any]) -> pd.DataFrame:
    if options["header"] is None:
        frame.columns = [f"column {i}" for i in range(frame.shape[1])]
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def _read_text(path: Path, delimiter: str | None, rows: int | None) -> pd.DataFrame:
    import pandas as pd

    if rows is None:
        _refuse_size(path, path.stat().st_size * _packed(path))
    options = _text_options(path, delimiter)
    with warnings.catch_warnings():
        # Rows that are all too long: pandas would cut them off.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return _named(pd.read_csv(path, nrows=rows, **options), options)


def read_chunks(
    path: str | os.PathLike[str],
    text: Collection[str],
    *,
    delimiter: str | None = None,
    rows: int = CHUNK,
) -> Iterator[pd.DataFrame]:
    """Reads a table of any size, some rows at a time; the columns named by `text` stay text.

    Each part notes its first row in `attrs`, for messages.
    """
    path = Path(path).expanduser()
    start = 0
    with _explained(path) as parquet:
        parts = _parquet_parts(path, rows) if parquet else _text_parts(path, text, delimiter, rows)
        for part in parts:
            part.attrs["first_row"] = start
            start += len(part)
            yield part
    if not start:
        raise InputError(f"{path} has column names but no rows")


def _parquet_parts(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    parquet = load_extra("pyarrow.parquet", "reading a Parquet file", "tables")
    arrow = load_extra("pyarrow", "reading a Parquet file", "tables")
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=rows):
            yield batch.to_pandas()
    except arrow.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file: {in_one_line(error)}") from None


def _text_parts(
    path: Path, text: Collection[str], delimiter: str | None, rows: int
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    _packed(path)  # refuses a bomb
    options = _text_options(path, delimiter)
    if options["header"] is None:
        types: dict[Any, Any] = {i: str for i in range(10**4) if f"column {i}" in text}
    else:
        names = pd.read_csv(path, nrows=0, **options).columns
        types = {name: str for name in names if str(name).strip() in text}
    with pd.read_csv(path, chunksize=rows, dtype=types, **options) as parts:
        for part in parts:
            yield _named(part, options)


def _packed(path: Path) -> float:
    """How many times smaller a file is than its text."""
    if path.suffix not in _PACKERS:
        return 1
    with path.open("rb") as packed, _PACKERS[path.suffix](packed) as text:
        length = 0
        while length < _LOOK and (block := text.read(2**20)):
            length += len(block)
        ratio = length / max(1, packed.tell())
    if ratio > _PACKED:
        raise InputError(
            f"{path} unpacks to more than {_PACKED} times its size, which no table does: unpack it "
            "yourself if it is one"
        )
    return ratio


def _head(path: Path) -> tuple[list[str], str]:
    """The first lines that are not blank, and the encoding they are written in."""
    with _PACKERS.get(path.suffix, open)(path, "rb") as file:
        data = file.read(_HEAD)
    if len(data) == _HEAD and b"\n" in data:  # the last line may be cut off
        data = data[: data.rindex(b"\n")]
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not _NOT_TEXT.search(text):
            lines = [line for line in text.splitlines() if line.strip()]
            if not lines:
                break
            return lines, encoding
    else:
        raise InputError(f"{path} is not a table but a binary file: give {_KINDS}")
    raise InputError(f"{path} is empty: a table needs a line of column names and rows")


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == _BLANKS:
        return line.split()
    if len(delimiter) > 1:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))


def _find_delimiter(lines: list[str]) -> str | None:
    """The delimiter that splits most lines into the same number of cells, more than one.

    Unlike `csv.Sniffer` it takes ';' where commas are in the numbers, and is never a letter.
    """
    votes: list[tuple[bool, float, int, str]] = []
    for delimiter in _DELIMITERS:
        counts = [len(_cells(line, delimiter)) for line in lines[:50]]
        common = max(set(counts), key=counts.count)
        share = counts.count(common) / len(counts)
        if common > 1 and share >= 0.9:  # blanks are everywhere: only if nothing else splits
            votes.append((delimiter != _BLANKS, share, common, delimiter))
    return max(votes)[3] if votes else None
