"""The mean of paired differences, and how sure it is: Student's t, because there are few pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quadric.errors import InputError
from quadric.support.extras import load_extra

CONFIDENCE = 0.95
ENOUGH = 3
"""Pairs below which no difference is called clear."""


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences."""

    mean: float  # second minus first
    half_width: float | None  # half the width of its 95 % interval; None for a single pair
    pairs: int  # how many
    low: float | None = None  # the ends of an interval that is not symmetric
    high: float | None = None

    @property
    def doubt(self) -> str | None:
        """Why the difference may be none; None if there is no such reason."""
        if self.half_width is None or self.pairs < ENOUGH:
            return f"{self.pairs} of at least {ENOUGH} pairs"
        # Pairs that all differ by the same amount, up to rounding, tell nothing of the next one.
        if self.half_width <= 1e-9 * abs(self.mean):
            return "no spread at all"
        low, high = self.ends
        return "the interval holds 0" if low <= 0 <= high else None

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        half = self.half_width or 0.0
        return self.mean - half, self.mean + half

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out, and is one to rely on."""
        return self.doubt is None

    def to_dict(self) -> dict[str, float | int | bool | None]:
        """Everything, as plain values."""
        return {
            "mean": self.mean,
            "half_width": self.half_width,
            "pairs": self.pairs,
            "confidence": CONFIDENCE,
            "is_clear": self.is_clear,
        }


def mean_difference(differences: Sequence[float], test_share: float = 0.0) -> Difference:
    """The mean of differences, and its 95 % interval by Student's t.

    The training parts of folds overlap, so their errors are not independent and a plain interval
    is too narrow. With `test_share` the variance is corrected as in Nadeau and Bengio 2003:
    var (1/k + n_test/n_train) instead of var / k.

    Examples:
        >>> found = mean_difference([0.01, 0.01, 0.02])
        >>> round(found.mean, 4), round(found.half_width, 4), found.is_clear
        (0.0133, 0.0143, False)
        >>> found = mean_difference([-12.0, -10.0, -14.0, -11.0, -13.0], test_share=0.25)
        >>> round(found.mean, 1), round(found.half_width, 1), found.is_clear
        (-12.0, 2.9, True)
    """
    count = len(differences)
    if not count:
        raise InputError("a mean needs at least 1 difference, got none: give at least one pair")
    mean = statistics.fmean(differences)
    if count == 1:
        return Difference(mean, None, 1)
    # scipy comes with scikit-learn.
    student = load_extra("scipy.stats", "an interval").t
    error = math.sqrt(statistics.variance(differences) * (1 / count + test_share))
    return Difference(mean, float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * error, count)
