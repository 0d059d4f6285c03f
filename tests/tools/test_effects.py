"""What a comparison could have seen, against draws of such comparisons."""

from __future__ import annotations

import math

import pytest
import torch

from quadric.data.intervals import mean_difference
from tests.tools.loading import load_tool


@pytest.mark.parametrize("pairs", [3, 5, 17])
def test_what_would_be_seen_is_clear_four_times_in_five(
    monkeypatch: pytest.MonkeyPatch, pairs: int
) -> None:
    effects = load_tool("effects", monkeypatch)
    draw = torch.Generator().manual_seed(0)
    unit = torch.arange(pairs, dtype=torch.float64)
    unit = (unit - unit.mean()) / unit.std()  # a spread of exactly one
    shift = effects.visible(mean_difference((0.3 + unit).tolist()))
    drawn = torch.randn(20_000, pairs, generator=draw, dtype=torch.float64) + shift
    known = mean_difference(unit.tolist()).half_width
    assert known is not None
    half = known * drawn.std(1)
    clear = (drawn.mean(1).abs() > half).double().mean()
    assert float(clear) == pytest.approx(0.8, abs=0.012)


def test_more_pairs_see_less(monkeypatch: pytest.MonkeyPatch) -> None:
    effects = load_tool("effects", monkeypatch)
    gap = mean_difference([1.0, 2.0, 3.0])
    seen = [effects.visible(gap, pairs) for pairs in (3, 6, 24, 96)]
    assert seen == sorted(seen, reverse=True)
    # With many pairs the spread alone counts: 1.96 and 0.84 of its error.
    assert seen[-1] == pytest.approx(2.80 / math.sqrt(96), rel=0.03)
