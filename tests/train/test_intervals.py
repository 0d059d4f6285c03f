"""Student's t against scipy, and intervals against the textbook."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from quadric.train.intervals import paired_difference, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 100])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995])
def test_quantiles_are_scipys(degrees: int, probability: float) -> None:
    expected = stats.t.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9)


def test_the_interval_is_scipys() -> None:
    first, second = [0.91, 0.92, 0.90, 0.95], [0.92, 0.93, 0.92, 0.94]
    found = paired_difference(first, second)
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(expected.low)  # type: ignore[operator]
    assert found.mean + found.half_width == pytest.approx(expected.high)  # type: ignore[operator]
    assert found.pairs == 4
    assert not found.is_clear


def test_a_single_pair_has_no_interval() -> None:
    found = paired_difference([1.0], [3.0])
    assert (found.mean, found.half_width, found.pairs) == (2.0, None, 1)
    assert not found.is_clear


def test_equal_differences_are_clear() -> None:
    assert paired_difference([1.0, 2.0], [3.0, 4.0]).is_clear


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="must be pairs, got 1 and 2"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="degrees >= 1"):
        t_quantile(0.9, 0)
    assert math.isfinite(t_quantile(0.975, 1000))
