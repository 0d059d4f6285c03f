"""Timing on a noisy machine: all cases take turns, many times, and the best time of each counts.

Whatever else the machine does only ever makes a run slower, so the minimum over many short runs is
the steadiest estimate; taking turns spreads slow phases of the machine over all cases alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    prepare: Mapping[str, Callable[[], object]] | None = None,
    tick: Callable[[], object] = lambda: None,
    at_least: float = 0.0,
) -> dict[str, list[float]]:
    """Runs all cases in turn, `repeats` times after one round to warm up, and returns their
    seconds.

    Args:
        cases: what to time.
        repeats: how many timed rounds.
        prepare: what to call before each run of a case, outside the clock.
        tick: called after each run of these rounds, for a progress bar.
        at_least: seconds of timed runs below which more rounds follow, up to ten times as many: the
            shorter a case, the more of its runs something else falls into.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(10 * repeats + 1):
        if round_ > repeats and sum(map(sum, seconds.values())) >= at_least:
            break
        # In alternating order, so that no case always follows another.
        for name in cases if round_ % 2 == 0 else reversed(list(cases)):
            if prepare is not None:
                prepare[name]()
            start = time.perf_counter()
            cases[name]()
            elapsed = time.perf_counter() - start
            if round_ > 0:
                seconds[name].append(elapsed)
            if round_ <= repeats:
                tick()
    return seconds
