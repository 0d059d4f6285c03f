"""Simple numbers near a fitted one: 1/2, 4/3, 1/(4 pi)."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np

CHANCE = 0.2
"""How many numbers as simple may lie within reach of a number without meaning, in the mean."""
WITHIN = 3.0
"""Standard errors that a simple number may lie away."""


@functools.lru_cache(maxsize=1)
def _simple() -> tuple[np.ndarray, list[tuple[Fraction, float]], np.ndarray]:
    """Numbers > 0 (in logarithms, ordered), how to write them, and how simple they are."""
    ways = {0.0: 1, 1.0: 4, -1.0: 4, 2.0: 64, -2.0: 64, 0.5: 64, -0.5: 64}
    found: dict[float, tuple[float, Fraction, float]] = {}
    for above in range(1, 101):
        for below in range(1, 101):
            # 0.35 is simple for people, too.
            plain = above * below <= 160 or below in (10, 20, 25, 50, 100)
            if math.gcd(above, below) > 1 or not plain:
                continue
            for power, price in ways.items():
                if power and above * below > 64:
                    continue
                value = round(math.log(above / below) + power * math.log(math.pi), 12)
                entry = (float(above * below * price), Fraction(above, below), power)
                if value not in found or entry < found[value]:
                    found[value] = entry
    order = sorted(found)
    written = [(found[v][1], found[v][2]) for v in order]
    return np.array(order), written, np.array([found[v][0] for v in order])


def simple_number(value: float, error: float) -> tuple[Fraction, float] | None:
    """A fraction and a power of pi that the value may well be; None if there is no sure one.

    Examples:
        >>> simple_number(0.4999, 0.0002), simple_number(0.0797, 0.0001), simple_number(0.47, 0.2)
        ((Fraction(1, 2), 0.0), (Fraction(1, 4), -1.0), None)
    """
    if not value or not math.isfinite(value) or not math.isfinite(error):
        return None
    logs, written, price = _simple()
    spread = max(error / abs(value), 1e-9)
    if spread > 0.1:
        return None
    distance = np.abs(logs - math.log(abs(value)))
    near = np.flatnonzero(distance <= WITHIN * spread)
    if not len(near):
        return None
    best = int(near[np.argmin(price[near] * np.exp((distance[near] / spread) ** 2 / 4))])
    # Numbers at least as simple, for each unit of the logarithm, times the width of the reach.
    rivals = ((price <= price[best]) & (np.abs(logs - logs[best]) < 1.0)).sum() / 2
    if rivals * 2 * WITHIN * spread > CHANCE:
        return None
    fraction, power = written[best]
    return (fraction if value > 0 else -fraction), power


def number_sympy(sp: Any, fraction: Fraction, power: float) -> Any:
    """A simple number as an expression."""
    rational = sp.Rational(fraction.numerator, fraction.denominator)
    return rational * sp.pi ** sp.Rational(round(2 * power), 2)
