"""The registry as a table: what each neuron computes, and what it costs per output."""

from __future__ import annotations

import itertools
from typing import Any

from quadric.layers.neuron import Neuron, neurons
from quadric.support.texttable import markdown_table, text_table

HEADER = ("neuron", "source", "formula", "params", "MACs", "printed params", "printed MACs", "note")

LEGEND = (
    "Per output, over n inputs at rank k, biases aside: the exact counts of the layers here. "
    '"Printed" is what Table I of the paper says where it differs.'
)


_FACTS = ("name", "paper", "formula", "params", "macs", "printed_params", "printed_macs", "note")


def neuron_facts() -> list[dict[str, Any]]:
    """The facts of every neuron as plain values, for JSON."""
    return [
        {fact: getattr(row, fact) for fact in _FACTS}
        | {
            "rank": row.default_rank,
            "options": {k: _plain(v) for k, v in row.defaults().items()},
            "starts": list(row.starts),
            "quadratic_parameters": list(row.quadratic),
        }
        for row in neurons().values()
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | None) else repr(value)


def _printed(exact: str, printed: str | None) -> str:
    """The paper's entry where it is another."""
    same = printed is None or printed.replace(" ", "") == exact.replace(" ", "")
    return "" if same else f"O({printed})"


def _rows(code: str) -> tuple[list[list[str]], list[str]]:
    """The rows and the footnotes they refer to; formulas are put between two `code` marks."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for row in neurons().values():
        if row.note and row.note not in notes:
            notes.append(row.note)
        mark = f"[{notes.index(row.note) + 1}]" if row.note else ""
        rows.append([*_cells(row, code), mark])
    return rows, notes


def _cells(row: type[Neuron], code: str) -> list[str]:
    printed_params = _printed(row.params, row.printed_params)
    printed_macs = _printed(row.macs, row.printed_macs)
    formulas = [f"{code}{t}{code}" if t else "" for t in (row.formula, row.params, row.macs)]
    printed = [f"{code}{t}{code}" if t else "" for t in (printed_params, printed_macs)]
    return [f"{code}{row.name}{code}", row.paper, *formulas, *printed]


def neuron_table(markdown: bool = False) -> str:
    """The registry as a table with footnotes; a column that would be empty is left out."""
    rows, notes = _rows("`" if markdown else "")
    used = [any(column) for column in zip(*rows, strict=True)]
    header, *lines = ([*itertools.compress(line, used)] for line in (HEADER, *rows))
    table = (markdown_table if markdown else text_table)(header, lines)
    footnotes = [f"[{i}] {note}." for i, note in enumerate(notes, 1)]
    if markdown:
        return "\n\n".join([table, LEGEND, *footnotes])
    return "\n".join([table, "", LEGEND, *footnotes])
