"""Tables as text: aligned columns for a terminal, pipes for markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

# What a terminal obeys: control characters, and those that turn the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: object) -> str:
    r"""A text for a terminal: what would move its cursor, or do worse, is shown as it is written.

    Examples:
        >>> print(printable("a\x1b[31mb"))
        a\x1b[31mb
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], str(text))


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would compute gets an apostrophe.

    Examples:
        >>> csv_cell("=1+1"), csv_cell("-"), csv_cell("plain"), csv_cell(-1.5)
        ("'=1+1", '-', 'plain', -1.5)
    """
    computed = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
    return f"'{value}" if computed else value


def _cells(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in rows]


def text_table(header: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> str:
    """A table with aligned columns.

    Examples:
        >>> print(text_table(["name", "MACs"], [["conv1", "1,200"], ["fc", "64"]], "lr"))
        name    MACs
        -----  -----
        conv1  1,200
        fc        64
    """
    cells = _cells(rows)
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        pairs = zip(row, widths, right.ljust(len(row), "l"), strict=True)
        return "  ".join(c.rjust(w) if r == "r" else c.ljust(w) for c, w, r in pairs).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> str:
    """The same table in markdown.

    Examples:
        >>> print(markdown_table(["name", "MACs"], [["conv1", "1,200"]], "lr"))
        | name | MACs |
        |---|---:|
        | conv1 | 1,200 |
    """
    rules = ["---:" if r == "r" else "---" for r in right.ljust(len(header), "l")]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(rules) + "|"]
    for row in _cells(rows):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines)
