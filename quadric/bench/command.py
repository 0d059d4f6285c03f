"""`quadric bench`: from the words of the command line to cases, with a progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from quadric import kernels, zoo
from quadric.bench.cases import (
    ANCHOR_SHAPES,
    BARE,
    DTYPES,
    FORMATS,
    FUSED,
    JOINED,
    PATHS,
    layer_cases,
    network_cases,
    rank_cases,
)
from quadric.bench.run import AT_LEAST, INFERENCES, BenchReport, run
from quadric.bench.suite import suite_cases

if TYPE_CHECKING:
    from quadric.bench.onnx import LatencyReport


def _chosen(what: str, text: str, known: tuple[str, ...]) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise ValueError(f"{what} must be among {', '.join(known)}, got {word!r}")
    if not words:
        raise ValueError(f"{what} must name at least one of {', '.join(known)}, got {text!r}")
    return words


def _numbers(what: str, text: str, separator: str, count: int | None = None) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(separator))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or (count is not None and len(found) != count):
        raise ValueError(
            f"{what} must be positive whole numbers joined by {separator!r}, got {text!r}"
        )
    return found


def bench_command(
    model: str | None,
    neurons: str,
    paths: str,
    formats: str,
    dtypes: str,
    shapes: str | None,
    ranks: str | None,
    batch: int | None,
    input: str | None,
    repeats: int,
    threads: int | None,
    memory: bool,
    rounds: int = 1,
    suite: bool = False,
) -> BenchReport:
    """Runs the comparison that these words describe."""
    known = tuple(zoo.neurons())
    rows = list(known) if neurons == "all" else _chosen("neurons", neurons, known)
    ways = _chosen("paths", paths, PATHS)
    layouts = _chosen("formats", formats, tuple(FORMATS))
    types = _chosen("dtypes", dtypes, tuple(DTYPES))
    if threads is not None:
        torch.set_num_threads(threads)
    note = None
    if any(way.startswith("kernels") for way in ways):
        note = "fused kernels are on, for float32 on the CPU"
        if not kernels.use_kernels(True):
            note = f"fused kernels are off: {kernels.reason()}"
            plain = (way.replace("kernels", "plain").removesuffix(JOINED) for way in ways)
            ways = list(dict.fromkeys(plain))
    if "straightforward" in ways and (suite or ranks is not None or model is not None):
        raise ValueError("paths may hold straightforward for single layers only: leave it out")
    fused = next((way for way in ways if way.endswith((FUSED, JOINED, BARE))), None)
    if fused is not None and (suite or model is None or ranks is not None):
        rule = "for a --model only" if not suite else "not with --suite, which adds them itself"
        raise ValueError(f"paths may hold {fused} {rule}: leave it out")
    if suite and (model or shapes or ranks or input):
        raise ValueError("--suite says itself what is timed: leave out model, shapes, ranks, input")
    if suite:
        cases = suite_cases(ways, batch=batch)
    elif ranks is not None:
        with_rank = [name for name in rows if zoo.get_neuron(name).has_rank]
        path = "kernels" if "kernels" in ways else ways[0]
        cases = rank_cases(_numbers("ranks", ranks, ","), with_rank, path)
    elif model is not None:
        shape = _numbers("input", input, "x") if input is not None else None
        cases = network_cases(model, rows, ways, layouts, types, batch, shape)
    else:
        sizes: tuple[tuple[int, int, int], ...] = ANCHOR_SHAPES
        if shapes is not None:
            parsed = [_numbers("shapes", one, "x", 3) for one in shapes.split(",")]
            sizes = tuple((c, s, b) for c, s, b in parsed)
        cases = layer_cases(rows, sizes, ways, layouts, types)
    if note is not None:
        print(note, file=sys.stderr)
    trained = sum(not case.for_inference for case in cases)
    total = (len(cases) * (INFERENCES * repeats + 1) + trained * (repeats + 1)) * rounds
    with _bar(total) as tick:
        return run(cases, repeats, memory, tick, rounds, AT_LEAST)


def onnx_command(rounds: int, threads: int) -> LatencyReport:
    """Times exported networks in ONNX Runtime."""
    from quadric.bench.onnx import NETWORKS, bench_onnx

    total = rounds * sum(len(network.batches) for network in NETWORKS)
    with _bar(total) as tick:
        return bench_onnx(rounds=rounds, threads=threads, tick=tick)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], object]]:
    """A progress bar on stderr, and what moves it on."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("timing", total=total)
        yield lambda: progress.advance(task)
