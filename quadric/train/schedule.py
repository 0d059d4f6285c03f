"""Learning-rate schedules as pure functions of the step: what the rate is multiplied by.

A function of the step alone has no state, so a run that is continued from any checkpoint has the
rates of one that never stopped.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

# torch's OneCycleLR: a third of the way up from 1/25 of the peak, then down to 1/10,000 of that.
RISE = 0.3
START = 1 / 25
END = START / 1e4


def make_schedule(
    kind: str,
    steps_per_epoch: int,
    epochs: int,
    *,
    milestones: list[int] | None = None,
    gamma: float = 0.1,
    warmup: float = 0.0,
    warmup_steps: int = 4000,
) -> Callable[[int], float]:
    """The factor of the learning rate at each step, counted from 0."""
    total = steps_per_epoch * epochs
    ends = [steps_per_epoch * milestone for milestone in milestones or []]
    rise = max(1.0, RISE * total - 1)

    def step(i: int) -> float:
        return gamma ** bisect.bisect_right(ends, i)

    def cosine(i: int) -> float:
        return (1 + math.cos(math.pi * min(i / total, 1.0))) / 2

    def onecycle(i: int) -> float:
        if i <= rise:
            return _between(START, 1.0, i / rise)
        # A run of very few steps has no way down.
        return _between(1.0, END, min((i - rise) / max(total - 1 - rise, 1.0), 1.0))

    def inverse_sqrt(i: int) -> float:
        return min((i + 1) / warmup_steps, math.sqrt(warmup_steps / (i + 1)))

    kinds = {"constant": lambda i: 1.0, "step": step, "cosine": cosine, "onecycle": onecycle}
    shape = (kinds | {"inverse_sqrt": inverse_sqrt})[kind]
    rising = 0.0 if kind in ("onecycle", "inverse_sqrt") else warmup * steps_per_epoch
    if not rising:
        return shape
    return lambda i: shape(i) * min(1.0, (i + 1) / rising)


def _between(start: float, end: float, way: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * way))
