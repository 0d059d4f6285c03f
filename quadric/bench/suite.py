"""The comparison by which the speed of the library is judged, in one command: `quadric bench
--suite`.

ResNet-20 on every path, with joined layers, and for inference with BatchNorm folded and activations
fused; a Transformer with and without dropout; and single convolutions on the kernels. The summary
takes each neuron in its better memory format (joined and fused: channels_last) and compares it with
the linear network in its own better one. A linear network with one bare pass over each
convolution's output stands beside them: what the squares would cost at least if all they did was to
touch the output once more. So do, for their memory, neurons that compute their linear map again
instead of keeping an output: the shared one, and in a Transformer, where little else keeps it, the
eigen one too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from quadric.bench.cases import (
    ANCHOR_SHAPES,
    BARE_PASS,
    FUSED,
    JOINED,
    Case,
    layer_cases,
    make_cases,
    make_transformer,
    network_cases,
    transformer_cases,
    with_bare_passes,
)
from quadric.conversion.convert import convert_
from quadric.errors import InputError
from quadric.models.named import build_network
from quadric.texttable import markdown_table, text_table

NEURONS = ("eigen", "shared")
RECOMPUTED = ", recompute"
"""What the name of a neuron that recomputes ends with."""
_HEADER = ["network", "path", *(f"{neuron}, training / inference" for neuron in NEURONS)]


def suite_cases(
    paths: Sequence[str] = ("plain", "kernels", "compiled"),
    network: str = "resnet20",
    batch: int | None = None,
    sentences: int | None = None,
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
) -> list[Case]:
    """All cases: the network, the Transformer, and layers.

    Args:
        paths: which paths the network is timed on.
        network: the image network.
        batch: its batch size, 128 by default.
        sentences: the Transformer's, 64 by default.
        shapes: channels, size and batch of the layers.
    """
    eager = [path for path in paths if path != "compiled"]
    if not eager:
        raise InputError(
            f"paths must hold plain or kernels beside compiled, got {', '.join(paths)}: the "
            "Transformer and the layers are timed on these"
        )
    images = network_cases(network, NEURONS, paths, batch=batch)
    fused = [f"{path}{FUSED}" for path in paths]
    images += network_cases(network, NEURONS, fused, ("channels_last",), batch=batch)
    joined = [f"{path}{JOINED}" for path in paths if path in ("kernels", "compiled")]
    if joined:
        more = network_cases(network, NEURONS, joined, ("channels_last",), batch=batch)
        images += [case for case in more if case.neuron != "linear"]  # which is there already

    def with_passes(neuron: str, options: dict[str, Any]) -> nn.Module:
        return with_bare_passes(build_network(network, "linear", None))

    def images_again(neuron: str, options: dict[str, Any]) -> nn.Module:
        model = build_network(network, "linear", None)
        convert_(model, "shared", recompute=True)
        return model

    images.append(_one_more(images, BARE_PASS, with_passes, eager[-1]))
    images.append(_one_more(images, f"shared{RECOMPUTED}", images_again, eager[-1]))
    cases = list(images)
    for dropout in (0.1, 0.0):
        sequences = transformer_cases(NEURONS, eager, batch=sentences, dropout=dropout)
        for neuron in NEURONS:
            again = functools.partial(_transformer_again, neuron=neuron, dropout=dropout)
            sequences.append(_one_more(sequences, f"{neuron}{RECOMPUTED}", again, eager[-1]))
        cases += sequences
    return cases + layer_cases(NEURONS, shapes, eager[-1:])


def _transformer_again(
    _: str, options: dict[str, Any], *, neuron: str, dropout: float
) -> nn.Module:
    return make_transformer(neuron, {"recompute": True}, dropout)


def _one_more(
    cases: Sequence[Case], name: str, build: Callable[[str, dict[str, Any]], nn.Module], path: str
) -> Case:
    """A case of another network on the inputs of these, in the format that is best on CPUs."""
    like = cases[0]
    layout = "channels_last" if like.format else ""
    (made,) = make_cases(like.group, build, like.inputs, (), (path,), (layout,), ("float32",))
    made.neuron, made.path = name, path
    return made


def summary(rows: Sequence[dict[str, Any]], markdown: bool = False) -> str:
    """One line a network and path: training / inference ratios of each neuron in its better memory
    format, with the spread over rounds behind.
    """
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        for path in dict.fromkeys(row["path"] for row in mine):
            of = {n: [r for r in mine if (r["neuron"], r["path"]) == (n, path)] for n in NEURONS}
            cells = [_cell(of[neuron]) for neuron in NEURONS]
            if any(cells):
                lines.append([group, path, *cells])
            formats = list(dict.fromkeys(r["format"] for rows in of.values() for r in rows))
            if path == "kernels" and len(formats) > 1:
                # They must be good in both formats, each beside the linear network in the same one.
                for layout in formats:
                    own = {n: [r for r in of[n] if r["format"] == layout] for n in NEURONS}
                    cells = [_cell(own[neuron], "_own") for neuron in NEURONS]
                    lines.append([group, f"{path}, both in {layout}", *cells])
        bare = [row for row in mine if row["neuron"] == BARE_PASS]
        if bare:
            lines.append([group, BARE_PASS, _cell(bare), ""])
        again = {n: [r for r in mine if r["neuron"] == f"{n}{RECOMPUTED}"] for n in NEURONS}
        for path in dict.fromkeys(row["path"] for rows in again.values() for row in rows):
            lines.append([group, f"{path}{RECOMPUTED}", *(_cell(again[n]) for n in NEURONS)])
    return (markdown_table if markdown else text_table)(_HEADER, lines, "llrr")


def _cell(rows: Sequence[dict[str, Any]], against: str = "") -> str:
    """Training and inference, each in the format that is better for it.

    Args:
        rows: of one neuron, in some formats.
        against: "_own" for ratios to the linear network in the same format.
    """
    if not rows:
        return ""
    texts = []
    for kind in (f"training{against}", f"inference{against}"):
        timed = [row for row in rows if row[kind] is not None]
        if not timed:
            texts.append("-")
            continue
        best = min(timed, key=lambda row: row[kind])
        low, high = min(best[f"{kind}_rounds"]), max(best[f"{kind}_rounds"])
        texts.append(f"{best[kind]:.2f} ({low:.2f}-{high:.2f})")
    return " / ".join(texts)


def turns_summary(rows: Sequence[dict[str, Any]], markdown: bool = False) -> str:
    """The same comparison by the medians of the ratios within one turn, training / inference."""
    lines = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in rows):
        cells = []
        for neuron in NEURONS:
            found = [
                r for r in rows if (r["group"], r["path"], r["neuron"]) == (group, path, neuron)
            ]
            ratios = [
                [row[f"{kind}_turns"] for row in found if row[f"{kind}_turns"] is not None]
                for kind in ("training", "inference")
            ]
            cells.append(" / ".join(f"{min(r):.2f}" if r else "-" for r in ratios if found))
        if any(cells):
            lines.append([group, path, *cells])
    return (markdown_table if markdown else text_table)(_HEADER, lines, "llrr")


def memory_summary(rows: Sequence[dict[str, Any]], markdown: bool = False) -> str:
    """Peak memory of a training step: each network's least, as a ratio to the linear one."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [r for r in rows if r["group"] == group and r["peak_memory_bytes"]]
        eager = [r for r in mine if not r["path"].startswith("compiled")]
        names = ("linear", *NEURONS, *(f"{n}{RECOMPUTED}" for n in NEURONS))
        for neuron, joined in itertools.product(names, (False, True)):
            own = [r for r in eager if r["neuron"] == neuron]
            found = [r for r in own if r["path"].endswith(JOINED) == joined]
            if found:
                # Of equal ratios the least memory: formats differ a little.
                best = min(found, key=lambda r: (round(r["memory"], 3), r["peak_memory_bytes"]))
                size = f"{best['peak_memory_bytes'] / 2**20:,.1f}"
                name = f"{neuron}, joined" if joined else neuron
                lines.append([group, name, size, f"{best['memory']:.3f}"])
    header = ["network", "neuron", "peak, MiB", "of linear's"]
    return (markdown_table if markdown else text_table)(header, lines, "llrr")


def rank_summary(rows: Sequence[dict[str, Any]], markdown: bool = False) -> str:
    """Cost against rank, as ratios to the linear layer: medians within one turn, because what
    counts here is small differences.
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
    return (markdown_table if markdown else text_table)(header, lines, "rrrrrrr")
