"""The comparison that fills docs/speed.md: `quadric bench --suite`, and its tables.

ResNet-20 on every path; a Transformer, small networks and single convolutions on the paths without
torch.compile; and, for their memory, neurons that compute their linear map again in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quadric.bench.cases import (
    ANCHOR_SHAPES,
    NEURONS,
    RECOMPUTED,
    Case,
    layer_cases,
    network_cases,
    small_cases,
)
from quadric.errors import InputError
from quadric.support.texttable import markdown_table, text_table

Rows = Sequence[dict[str, Any]]


def suite_cases(
    paths: Sequence[str] = ("plain", "kernels", "compiled"),
    network: str = "resnet20",
    batch: int | None = None,
    sentences: int | None = None,
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
) -> list[Case]:
    """All cases of the suite."""
    eager = [path for path in paths if path != "compiled"]
    if not eager:
        raise InputError(
            f"paths must hold plain or kernels beside compiled, got {', '.join(paths)}: the "
            "Transformer and the layers are timed on these"
        )
    again: dict[str, Any] = {"paths": eager[-1:], "options": {"recompute": True}}
    images = network_cases(network, ("shared",), formats=("channels_last",), batch=batch, **again)
    sequences = network_cases("transformer", batch=sentences, **again)
    return [
        *network_cases(network, paths=paths, batch=batch),
        *images[1:],  # without another linear one
        *network_cases("transformer", paths=eager, batch=sentences),
        *sequences[1:],
        *small_cases(eager),
        *layer_cases(shapes=shapes, paths=eager[-1:]),
    ]


def summary(rows: Rows, markdown: bool = False) -> str:
    """The times of each network and path, as ratios to the linear network."""
    lines = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in rows):
        mine = [row for row in rows if (row["group"], row["path"]) == (group, path)]
        for suffix in ("", RECOMPUTED):
            cells = [_cell([r for r in mine if r["neuron"] == n + suffix]) for n in NEURONS]
            if any(cells):
                lines.append([group, path + suffix, *cells])
    header = ["network", "path", *(f"{neuron}, training / inference" for neuron in NEURONS)]
    return (markdown_table if markdown else text_table)(header, lines, "llrr")


def _cell(rows: Rows) -> str:
    if not rows:
        return ""
    texts = []
    for ending in ("_turns", ""):
        best = [min(row[kind + ending] for row in rows) for kind in ("training", "inference")]
        texts.append(" / ".join(f"{ratio:.2f}" for ratio in best))
    return f"{texts[0]} ({texts[1]})"
