"""The demo's numbers as a table, from the rows of a demo.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = ("scene", "data", "activation", "neuron", "parameters", "MACs", "test result", "seconds")
_RIGHT = frozenset({"parameters", "MACs", "test result", "seconds"})


def _result(row: Mapping[str, Any]) -> str:
    mean, std = row["mean"], row["std"]
    if mean is None:
        return "diverged"
    accuracy = row["metric"] == "accuracy"
    digits, scale, unit = (1, 100, " % right") if accuracy else (4, 1, " error")
    spread = "" if std is None else f" ± {scale * std:.{digits}f}"
    return f"{scale * mean:.{digits}f}{spread}{unit}"


def demo_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table that also reads well as plain text.

    Args:
        rows: the entry `rows` of a demo.json.
    """
    cells = [_HEAD]
    for row in rows:
        neuron = row["neuron"] if row["rank"] is None else f"{row['neuron']} (rank {row['rank']})"
        cells.append(
            (
                row["scene"],
                row["task"],
                row["activation"],
                neuron,
                f"{row['params']:,}",
                f"{row['macs']:,}",
                _result(row),
                f"{row['seconds']:.1f}",
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    rule = [
        "-" * (width - 1) + (":" if title in _RIGHT else "-")
        for title, width in zip(_HEAD, widths, strict=True)
    ]
    lines = []
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for cell, width, title in zip(line, widths, _HEAD, strict=True)
        ]
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)
