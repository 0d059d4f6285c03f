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
    PATHS,
    RECOMPUTED,
    Case,
    layer_cases,
    network_cases,
    small_cases,
)
from quadric.errors import InputError
from quadric.texttable import markdown_table, text_table

Rows = Sequence[dict[str, Any]]


def suite_cases(
    paths: Sequence[str] = ("plain", "kernels", "compiled"),
    network: str = "resnet20",
    batch: int | None = None,
    sentences: int | None = None,
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
) -> list[Case]:
    """All cases of the suite.

    Args:
        paths: which paths the network is timed on.
        network: the image network.
        batch: its batch size, 128 by default.
        sentences: the batch size of the Transformer, 64 by default.
        shapes: channels, size and batch of the layers.

    Returns:
        The cases.

    Raises:
        InputError: if there is no path besides compiled.
    """
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


def _table(header: Sequence[str], lines: Sequence[Sequence[object]], right: str, md: bool) -> str:
    return (markdown_table if md else text_table)(header, lines, right)


def current(rows: Rows) -> list[dict[str, Any]]:
    """The rows of paths that exist; older files have others.

    Args:
        rows: of a report.

    Returns:
        Those of `PATHS`.
    """
    return [row for row in rows if row["path"] in PATHS]


def summary(rows: Rows, markdown: bool = False) -> str:
    """The times of each network and path, as ratios to the linear network.

    Args:
        rows: of a report.
        markdown: whether the table is for a page.

    Returns:
        Per neuron training / inference: medians of the ratios within one turn, and in brackets the
        ratios of the best times, each in the better memory format.
    """
    lines = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in current(rows)):
        mine = [row for row in rows if (row["group"], row["path"]) == (group, path)]
        for suffix in ("", RECOMPUTED):
            cells = [_cell([r for r in mine if r["neuron"] == n + suffix]) for n in NEURONS]
            if any(cells):
                lines.append([group, path + suffix, *cells])
    header = ["network", "path", *(f"{neuron}, training / inference" for neuron in NEURONS)]
    return _table(header, lines, "llrr", markdown)


def _cell(rows: Rows) -> str:
    if not rows:
        return ""
    texts = []
    for ending in ("_turns", ""):
        best = [min(row[kind + ending] for row in rows) for kind in ("training", "inference")]
        texts.append(" / ".join(f"{ratio:.2f}" for ratio in best))
    return f"{texts[0]} ({texts[1]})"


def memory_summary(rows: Rows, markdown: bool = False) -> str:
    """The peak memory of a training step: each network's least.

    Args:
        rows: of a report.
        markdown: whether the table is for a page.

    Returns:
        The peak, and its ratio to the linear network's.
    """
    lines = []
    known = [r for r in current(rows) if r["peak_memory_bytes"] and r["path"] != "compiled"]
    names = ("linear", *NEURONS, *(n + RECOMPUTED for n in NEURONS))
    for group in dict.fromkeys(row["group"] for row in known):
        for neuron in names:
            found = [r for r in known if (r["group"], r["neuron"]) == (group, neuron)]
            if found:
                # Of equal ratios the least memory: formats differ a little.
                best = min(found, key=lambda r: (round(r["memory"], 3), r["peak_memory_bytes"]))
                size = f"{best['peak_memory_bytes'] / 2**20:,.1f}"
                lines.append([group, neuron, size, f"{best['memory']:.3f}"])
    return _table(["network", "neuron", "peak, MiB", "of linear's"], lines, "llrr", markdown)


def rank_summary(rows: Rows, markdown: bool = False) -> str:
    """Cost against rank, as ratios to the linear layer; times are medians within one turn.

    Args:
        rows: of a report of `rank_cases`.
        markdown: whether the table is for a page.

    Returns:
        Training, inference and memory of each neuron by rank.
    """
    lines = []
    for rank in dict.fromkeys(row["rank"] for row in rows if row["rank"] is not None):
        cells: list[object] = [rank]
        for neuron in NEURONS:
            row = next(r for r in rows if (r["neuron"], r["rank"]) == (neuron, rank))
            cells += [f"{row[k]:.2f}" for k in ("training_turns", "inference_turns", "memory")]
        lines.append(cells)
    kinds = ("training", "inference", "memory")
    header = ["rank", *(f"{neuron}: {kind}" for neuron in NEURONS for kind in kinds)]
    return _table(header, lines, "r" * len(header), markdown)
