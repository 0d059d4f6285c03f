"""Timing on a noisy machine: all cases take turns, many times, and the best time of each counts.

Whatever else the machine does only ever makes a run slower, so the minimum over many short runs is
the steadiest estimate; taking turns spreads slow phases of the machine over all cases alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    prepare: Mapping[str, Callable[[], object]] | None = None,
    tick: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Runs all cases in turn, `repeats` times after one round to warm up, and returns their
    seconds.

    Args:
        cases: what to time.
        repeats: how many timed rounds.
        prepare: what to call before each run of a case, outside the clock.
        tick: called after each run, for a progress bar.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for name, round_ in _rounds(list(cases), repeats + 1):
        if prepare is not None:
            prepare[name]()
        start = time.perf_counter()
        cases[name]()
        elapsed = time.perf_counter() - start
        if round_ > 0:
            seconds[name].append(elapsed)
        tick()
    return seconds


def _rounds(names: Sequence[str], rounds: int) -> Iterator[tuple[str, int]]:
    """Every name in every round, in alternating order, so that no case always follows another."""
    for round_ in range(rounds):
        for name in names if round_ % 2 == 0 else reversed(names):
            yield name, round_
