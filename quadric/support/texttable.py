"""Tables as text: aligned columns for a terminal, pipes for markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
