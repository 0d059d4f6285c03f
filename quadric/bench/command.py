"""`quadric bench`: from the words of the command line to cases, with a progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadric import zoo
from quadric.bench.cases import (
    ANCHOR_SHAPES,
    DTYPES,
    FORMATS,
    PATHS,
    Case,
    layer_cases,
    network_cases,
    rank_cases,
)
from quadric.bench.run import AT_LEAST, BenchReport, expected_seconds, run, timed_runs
from quadric.bench.suite import suite_cases
from quadric.errors import InputError
from quadric.models.named import build_network
from quadric.ops import native as kernels
from quadric.process import keep_freed_memory

if TYPE_CHECKING:
    from quadric.bench.onnx import LatencyReport


EXPENSIVE = 64
"""Times the MACs of linear above which a neuron is timed only if it is named."""

REPEATS = {False: 5, True: 12}
"""Timed runs by default, of a single comparison and of the suite."""


def _chosen(what: str, text: str, known: tuple[str, ...]) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise InputError(f"{what} must be among {', '.join(known)}, got {word!r}")
    if not words:
        raise InputError(f"{what} must name at least one of {', '.join(known)}, got {text!r}")
    return list(dict.fromkeys(words))


def _numbers(what: str, text: str, separator: str, count: int | None = None) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(separator))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or (count is not None and len(found) != count):
        raise InputError(
            f"{what} must be positive whole numbers joined by {separator!r}, got {text!r}"
        )
    return found


def _refuse(given: Mapping[str, object], model: str | None, ranks: str | None) -> None:
    """Refuses options that another one leaves without a meaning."""
    rules = [
        (ranks is not None, "--ranks times one convolution", ("model", "shapes", "input", "batch")),
        (model is not None, "--model is a network of its own", ("shapes",)),
        (model is None, "single layers have --shapes", ("input", "batch")),
    ]
    for applies, rule, without in rules:
        extra = next((name for name in without if applies and given[name]), None)
        if extra is not None:
            raise InputError(f"{rule}, got --{extra} with it: leave one of them out")


def _require_compiler() -> None:
    """Refuses to compile where torch finds no compiler, before anything is timed."""
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"paths may hold compiled only where torch finds a C++ compiler, got: {text[:200]}: "
            "install one, or leave compiled out"
        ) from error


def _affordable(names: Sequence[str], notes: list[str], inputs: int) -> list[str]:
    """The neurons that do not take hours where they see this many inputs; the others are noted."""
    out = [name for name in names if _layer_ratio(name, inputs) > EXPENSIVE]
    if out:
        notes.append(
            f"left out, for more than {EXPENSIVE} times the MACs of linear: {', '.join(out)}; to "
            "time them nevertheless, name them with --neurons"
        )
    return [name for name in names if name not in out]


def _layer_ratio(neuron: str, n: int) -> float:
    """The MACs of a layer whose neurons see n inputs, as a ratio to linear's."""
    outputs = 64
    return zoo.get_neuron(neuron).make_rule().num_macs(n, outputs) / (n * outputs)


def _widest(model: str) -> int:
    """The inputs of a network's widest neuron."""
    if model == "transformer":
        return 1024
    network = build_network(model, device="meta")
    weights = [getattr(module, "weight", None) for module in network.modules()]
    return max((w[0].numel() for w in weights if isinstance(w, Tensor) and w.dim() > 1), default=1)


def bench_command(
    model: str | None,
    neurons: str,
    paths: str,
    formats: str,
    dtypes: str,
    shapes: str | None,
    ranks: str | None,
    batch: int | None,
    input: Sequence[str] | None,
    repeats: int | None,
    threads: int | None,
    memory: bool,
    rounds: int = 1,
    suite: bool = False,
) -> BenchReport:
    """Runs the comparison that these words describe, with notes and a progress bar on stderr.

    Args:
        model: a network, or None for single layers.
        neurons: names joined by commas, or "all".
        paths: of `PATHS`, joined by commas.
        formats: of `FORMATS`, joined by commas.
        dtypes: of `DTYPES`, joined by commas.
        shapes: of single layers, such as "20x32x128,40x16x128".
        ranks: numbers joined by commas, for cost against rank.
        batch: the batch size of a network.
        input: shapes of one input of a network.
        repeats: timed runs of each case; None for a few.
        threads: of torch, or None for its own choice.
        memory: whether to measure peak memory.
        rounds: how often to make the whole comparison.
        suite: whether to run the suite instead.

    Returns:
        The report.

    Raises:
        InputError: if a word is unknown, or options exclude each other.
    """
    ways = _chosen("paths", paths, PATHS)
    if threads is not None:
        torch.set_num_threads(threads)
    if "straightforward" in ways and (suite or ranks is not None or model is not None):
        raise InputError("paths may hold straightforward for single layers only: leave it out")
    if not suite:
        given = {"model": model, "shapes": shapes, "input": input, "batch": batch}
        _refuse(given, model, ranks)
    notes = []
    if "compiled" in ways:
        _require_compiler()
    if "kernels" in ways or "compiled" in ways:
        notes = ["fused kernels are on, for float32 on the CPU"]
        if not kernels.use_kernels(True):
            notes = [f"fused kernels are off: {kernels.reason()}"]
            ways = list(dict.fromkeys(way.replace("kernels", "plain") for way in ways))
    if suite:
        cases = suite_cases(ways, batch=batch)
    else:
        cases = _cases(model, neurons, ways, formats, dtypes, shapes, ranks, batch, input, notes)
    repeats = repeats or REPEATS[suite]
    keeps = keep_freed_memory()
    minutes = expected_seconds(cases, repeats, rounds) / 60
    about = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    for note in [*notes, f"this takes about {about}"]:
        print(note, file=sys.stderr)
    with _bar(timed_runs(cases, repeats, rounds)) as tick:
        report = run(cases, repeats, memory, tick, rounds, AT_LEAST)
    return replace(report, keeps_memory=keeps)


def _cases(
    model: str | None,
    neurons: str,
    ways: Sequence[str],
    formats: str,
    dtypes: str,
    shapes: str | None,
    ranks: str | None,
    batch: int | None,
    input: Sequence[str] | None,
    notes: list[str],
) -> list[Case]:
    known = tuple(zoo.neurons())
    rows = list(known) if neurons == "all" else _chosen("neurons", neurons, known)
    layouts = _chosen("formats", formats, tuple(FORMATS))
    types = _chosen("dtypes", dtypes, tuple(DTYPES))
    if ranks is not None:
        with_rank = [name for name in rows if zoo.get_neuron(name).has_rank]
        if not with_rank:
            raise InputError(f"--ranks needs neurons that have a rank, got {neurons}")
        path = "kernels" if "kernels" in ways else ways[0]
        return rank_cases(tuple(dict.fromkeys(_numbers("ranks", ranks, ","))), with_rank, path)
    if model is not None:
        if neurons == "all":
            rows = _affordable(rows, notes, _widest(model))
        return network_cases(model, rows, ways, layouts, types, batch, input)
    sizes: Sequence[tuple[int, ...]] = ANCHOR_SHAPES
    if shapes is not None:
        sizes = list(dict.fromkeys(_numbers("shapes", one, "x", 3) for one in shapes.split(",")))
    if neurons == "all":
        rows = _affordable(rows, notes, 9 * max(size[0] for size in sizes))
    return layer_cases(rows, [(c, s, b) for c, s, b in sizes], ways, layouts, types)


def onnx_command(rounds: int, threads: int) -> LatencyReport:
    """Times exported networks in ONNX Runtime.

    Args:
        rounds: how often to measure everything.
        threads: of one run.

    Returns:
        The report.
    """
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
