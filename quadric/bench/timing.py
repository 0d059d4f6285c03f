"""Timing on a noisy machine: runs of all cases are interleaved, many times.

Whatever else the machine does only makes a run slower, so the least of many short runs is a steady
estimate. Interleaving spreads slow phases of the machine over all cases.
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
    """Runs all cases in turn, after one turn to warm up.

    Args:
        cases: what to time.
        repeats: how many timed turns.
        prepare: what to call before each run of a case, outside the clock.
        tick: called after each run of these turns, for a progress bar.
        at_least: seconds of timed runs below which more turns follow, up to ten times as many: the
            shorter a case, the more its runs are disturbed.

    Returns:
        The seconds of all timed runs, by case.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(10 * repeats + 1):
        if turn > repeats and sum(map(sum, seconds.values())) >= at_least:
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
            if turn <= repeats:
                tick()
    return seconds
