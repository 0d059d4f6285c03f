"""The demo's numbers as a table, from the rows of a demo.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quadric.support.texttable import markdown_table, text_table

_HEAD = ("data", "activation", "solver", "neuron", "parameters", "MACs", "test result", "seconds")


def _result(row: Mapping[str, Any]) -> str:
    mean, std = row["mean"], row["std"]
    if mean is None:
        return "diverged"
    if row["metric"] == "accuracy":
        return f"{100 * mean:.1f}{'' if std is None else f' ± {100 * std:.1f}'} % right"
    return f"{mean:.2g}{'' if std is None else f' ± {std:.1g}'} error"


def demo_table(report: Mapping[str, Any], markdown: bool = False) -> str:
    """Makes the table with its caption."""
    rows = []
    for row in report["rows"]:
        neuron = row["neuron"] + ("" if row["rank"] is None else f" (rank {row['rank']})")
        counts = (f"{row['params']:,}", f"{row['macs']:,}", _result(row), f"{row['seconds']:.1f}")
        rows.append([row["task"], row["activation"], row["solver"], neuron, *counts])
    table = (markdown_table if markdown else text_table)(_HEAD, rows, "llllrrrr")
    return (
        f"{table}\n\nMean ± standard deviation over {report['seeds']} seeds, on test data. Error: "
        "root mean square error as a share\nof the target's standard deviation. MACs: "
        "multiply-accumulates for one input. Seconds: processor\ntime for training one network, on "
        "one thread.\n"
    )
