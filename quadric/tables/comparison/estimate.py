"""How long a comparison will take: from what is done, and what each model costs beside others."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Estimate:
    """The time left."""

    def __init__(self, costs: Mapping[str, float], left: Mapping[str, int]) -> None:
        self.costs, self.left = dict(costs), dict(left)
        self.done = self.part = 0.0
        self.start = time.monotonic()

    def fitted(self, model: str) -> None:
        """Notes that a fit is done."""
        self.done += self.costs[model]
        self.left[model] -= 1
        # Others of its stack are about as far as it was.
        self.part = max(0.0, self.part - self.costs[model])

    def going_on(self, model: str, fits: int, fraction: float) -> None:
        """Notes how far several fits of a model are that go on together."""
        self.part = self.costs[model] * fits * min(fraction, 0.9)

    def words(self) -> str:
        """Such as "about 3 min left"; empty as long as nothing is known, and at the end."""
        known = self.done + self.part
        elapsed = time.monotonic() - self.start
        total = sum(self.costs[model] * count for model, count in self.left.items())
        if not known or not total or elapsed < 1:
            return ""
        return say_time(elapsed / known * max(0.0, total - self.part))


def say_time(seconds: float) -> str:
    """A time in round words.

    Examples:
        >>> say_time(7), say_time(48), say_time(130), say_time(9000)
        ('a few seconds left', 'about 50 s left', 'about 2 min left', 'about 2.5 hours left')
    """
    if seconds < 10:
        return "a few seconds left"
    if seconds < 100:
        return f"about {round(seconds, -1):.0f} s left"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} hours left"
