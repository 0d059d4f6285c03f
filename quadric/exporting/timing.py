"""Latency of exported files: runs are interleaved, so that a busy moment hits all files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from quadric.exporting.onnx_file import open_session, run_session
from quadric.extras import require


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
        inputs: what they are run on.
        threads: used by one run.
        seconds: when to stop, but every file runs at least five times.
        repeats: runs of each file after which to stop.

    Returns:
        Seconds by name.
    """
    calls = {name: _call(Path(file), inputs, threads) for name, file in files.items()}
    best = dict.fromkeys(calls, float("inf"))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for call in calls.values():
            call()
        end = time.perf_counter() + seconds
        for turn in range(repeats):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
            if turn >= 4 and time.perf_counter() > end:
                break
    finally:
        torch.set_num_threads(before)
    return best


def _call(file: Path, inputs: Sequence[Tensor], threads: int) -> Callable[[], object]:
    if file.suffix == ".pt2":
        module = torch.export.load(file).module()

        def run() -> object:
            with torch.no_grad():
                return module(*inputs)

        return run
    require("onnx", "timing an ONNX file")
    session = open_session(file, threads)
    return lambda: run_session(session, inputs)
