"""The corrected interval of paired differences."""

from __future__ import annotations

import math

import pytest

from quadric.sklearn.comparison.differences import mean_difference


def test_by_hand() -> None:
    found = mean_difference([1.0, 2.0, 3.0], test_share=0.5)
    # variance 1, so the standard error is sqrt(1/3 + 1/2); t(0.975, 2) = 4.3027
    assert found.mean == 2
    assert found.half_width == pytest.approx(4.30265 * math.sqrt(1 / 3 + 1 / 2), rel=1e-5)
    assert not found.is_clear
    assert found.to_dict()["is_clear"] is False


def test_a_clear_difference() -> None:
    assert mean_difference([-5.0, -5.1, -4.9, -5.0, -5.0], 0.25).is_clear


def test_one_fold_has_no_interval() -> None:
    found = mean_difference([1.0])
    assert (found.mean, found.half_width, found.is_clear) == (1.0, None, False)
    with pytest.raises(ValueError, match="at least 1 difference"):
        mean_difference([])
