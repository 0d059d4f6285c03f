"""Intervals against scipy and against a slow formula."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy import stats

from quadric.data.intervals import mean_difference


def test_the_interval_is_scipys() -> None:
    first, second = [0.91, 0.92, 0.90, 0.95], [0.92, 0.93, 0.92, 0.94]
    found = mean_difference([b - a for a, b in zip(first, second, strict=True)])
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(expected.low)  # type: ignore[operator]
    assert found.mean + found.half_width == pytest.approx(expected.high)  # type: ignore[operator]
    assert found.pairs == 4
    assert not found.is_clear


def test_overlapping_folds_widen_the_interval() -> None:
    values = [-12.0, -10.0, -14.0, -11.0, -13.0]
    found = mean_difference(values, test_share=0.25)
    # 2.776 is the quantile for four degrees of freedom.
    half = 2.776445 * math.sqrt(statistics.variance(values) * (1 / 5 + 1 / 4))
    assert found.half_width == pytest.approx(half)
    assert found.to_dict() == {
        "mean": -12.0,
        "half_width": found.half_width,
        "pairs": 5,
        "confidence": 0.95,
        "is_clear": True,
    }


def test_a_single_pair_has_no_interval() -> None:
    found = mean_difference([2.0])
    assert (found.mean, found.half_width, found.pairs) == (2.0, None, 1)
    assert not found.is_clear


def test_few_or_equal_differences_are_never_clear() -> None:
    assert mean_difference([2.0, 2.1]).doubt == "2 of at least 3 pairs"
    assert mean_difference([2.0]).doubt == "1 of at least 3 pairs"
    assert mean_difference([2.0, 2.0, 2.0, 2.0]).doubt == "no spread at all"
    # The same difference up to rounding.
    assert mean_difference([0.94 - 0.92, 0.92 - 0.90, 0.93 - 0.91]).doubt == "no spread at all"
    assert mean_difference([0.0, 0.0, 0.0]).doubt == "no spread at all"
    assert mean_difference([2.0, 2.1, 2.2]).is_clear


def test_no_difference_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 difference, got none"):
        mean_difference([])
