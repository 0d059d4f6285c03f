"""Timing on a noisy machine: runs of all cases are interleaved, many times.

Whatever else the machine does only makes a run slower, so the least of many short runs is a steady
estimate. Interleaving spreads slow phases of the machine over all cases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from quadric.exporting.onnx_file import open_session, run_session
from quadric.support.extras import require


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    prepare: Mapping[str, Callable[[], object]] | None = None,
    tick: Callable[[], object] = lambda: None,
    at_least: float = 0.0,
    most: int | None = None,
) -> dict[str, list[float]]:
    """Runs all cases in turn, after one turn to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    total = 0.0
    for turn in range((most or 10 * repeats) + 1):
        if turn > repeats and total >= at_least:
            break
        # In alternating order, so that no case always follows another.
        for name in cases if turn % 2 == 0 else reversed(list(cases)):
            if prepare is not None:
                prepare[name]()
            start = time.perf_counter()
            cases[name]()
            elapsed = time.perf_counter() - start
            if turn > 0:
                seconds[name].append(elapsed)
                total += elapsed
            if turn <= repeats:
                tick()
    return seconds


def latencies(
    files: Mapping[str, Path],
    inputs: Sequence[Tensor],
    *,
    threads: int = 1,
    seconds: float = 1.0,
    repeats: int = 200,
) -> dict[str, float]:
    """The shortest time of one run of each file, in seconds.

    Args:
        files: ONNX files or torch.export programs, by name.
        inputs: the tensors that they are run on.
        threads: used by one run.
        seconds: when to stop, but every file runs at least five times.
        repeats: runs of each file after which to stop.

    Returns:
        Seconds by name.
    """
    calls = {name: _call(Path(file), inputs, threads) for name, file in files.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = interleaved(calls, 5, at_least=seconds, most=repeats)
    finally:
        torch.set_num_threads(before)
    return {name: min(runs) for name, runs in times.items()}


def _call(file: Path, inputs: Sequence[Tensor], threads: int) -> Callable[[], object]:
    if file.suffix == ".pt2":
        module = torch.export.load(file).module()
        return torch.no_grad()(lambda: module(*inputs))
    require("onnx", "timing an ONNX file")
    session = open_session(file, threads)
    return lambda: run_session(session, inputs)
