"""Is one model better than another? Paired differences over folds, with an honest interval.

The training parts of folds overlap, so their errors are not independent and a plain t interval is
too narrow. Nadeau and Bengio 2003 correct the variance by the ratio of test to training rows:
var (1/k + n_test/n_train) instead of var / k, with k - 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t  # type: ignore[import-untyped]

from quadric.errors import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and half the width of its 95 % interval.

    Attributes:
        mean: second minus first, in percent of the first (error) or in points (accuracy).
        half_width: of the interval.
        pairs: folds.
    """

    mean: float
    half_width: float
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return abs(self.mean) > self.half_width

    def to_dict(self) -> dict[str, float | int | bool]:
        """Everything, as plain values."""
        return {
            "mean": self.mean,
            "half_width": self.half_width,
            "pairs": self.pairs,
            "confidence": CONFIDENCE,
            "is_clear": self.is_clear,
        }


def corrected_difference(values: Sequence[float], test_share: float) -> Difference:
    """The mean of differences, one a fold, with its corrected interval.

    Args:
        values: one a fold.
        test_share: test rows by training rows, 1/4 for five folds.

    Examples:
        >>> found = corrected_difference([-12.0, -10.0, -14.0, -11.0, -13.0], 0.25)
        >>> round(found.mean, 1), round(found.half_width, 1), found.is_clear
        (-12.0, 2.9, True)
    """
    if len(values) < 2:
        raise InputError(f"an interval needs at least 2 folds, got {len(values)}")
    variance = statistics.variance(values) * (1 / len(values) + test_share)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Difference(statistics.fmean(values), quantile * math.sqrt(variance), len(values))
