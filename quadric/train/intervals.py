"""Means over seeds, and how sure they are: Student's t, because there are few seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quadric.errors import InputError


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution.

    Args:
        probability: between 1/2 and 1.
        degrees: of freedom.

    Examples:
        >>> round(t_quantile(0.975, 2), 3)  # three seeds, 95 %
        4.303
    """
    if not 0.5 < probability < 1 or degrees < 1:
        raise InputError(
            f"probability must be between 1/2 and 1 and degrees >= 1, got {probability} and "
            f"{degrees}"
        )
    low, high = 0.0, 1.0
    while _t_probability(high, degrees) < probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _t_probability(middle, degrees) < probability else (low, middle)
        )
    return high


def _t_probability(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0: finite sums (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + inside) / 2


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences.

    Attributes:
        mean: second minus first.
        half_width: of the interval at `confidence`; None for a single pair.
        pairs: how many.
        confidence: 0.95 as a rule.
    """

    mean: float
    half_width: float | None
    pairs: int
    confidence: float = 0.95

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def paired_difference(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> Difference:
    """The mean difference of pairs, and its interval by Student's t.

    Args:
        first: one value a seed.
        second: of the same seeds in the same order.
        confidence: of the interval.

    Examples:
        >>> found = paired_difference([0.91, 0.92, 0.90], [0.92, 0.93, 0.92])
        >>> round(found.mean, 4), round(found.half_width, 4)
        (0.0133, 0.0143)
    """
    if len(first) != len(second) or not first:
        raise InputError(
            f"first and second must be pairs, got {len(first)} and {len(second)} values"
        )
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    mean = statistics.fmean(gaps)
    if len(gaps) < 2:
        return Difference(mean, None, 1, confidence)
    error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    half = t_quantile((1 + confidence) / 2, len(gaps) - 1) * error
    return Difference(mean, half, len(gaps), confidence)
