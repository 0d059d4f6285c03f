"""The demo's numbers as a table, from the rows of a demo.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quadric.support.texttable import markdown_table, text_table

_HEAD = ("scene", "data", "activation", "neuron", "parameters", "MACs", "test result", "seconds")
_ALIGN = "llllrrrr"


def _result(row: Mapping[str, Any]) -> str:
    mean, std = row["mean"], row["std"]
    if mean is None:
        return "diverged"
    accuracy = row["metric"] == "accuracy"
    digits, scale, unit = (1, 100, " % right") if accuracy else (4, 1, " error")
    spread = "" if std is None else f" ± {scale * std:.{digits}f}"
    return f"{scale * mean:.{digits}f}{spread}{unit}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["scene"],
        row["task"],
        row["activation"],
        row["neuron"] if row["rank"] is None else f"{row['neuron']} (rank {row['rank']})",
        f"{row['params']:,}",
        f"{row['macs']:,}",
        _result(row),
        f"{row['seconds']:.1f}",
    ]


def demo_table(report: Mapping[str, Any], markdown: bool = False) -> str:
    """Makes the table with its caption."""
    table = markdown_table if markdown else text_table
    caption = (
        f"Mean ± standard deviation over {report['seeds']} seeds, on test data. Error: root mean "
        "square error as a share\nof the target's standard deviation. MACs: multiply-accumulates "
        "for one input. Seconds: processor\ntime for training one network, on one thread."
    )
    return f"{table(_HEAD, [_cells(row) for row in report['rows']], _ALIGN)}\n\n{caption}\n"
