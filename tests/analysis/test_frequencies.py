"""Low spatial frequencies: of waves that are known, and the verdict on what is measured."""

from __future__ import annotations

import math

import pytest
import torch

from quadric.analysis.frequencies import Frequencies, low_frequency_shares, verdict
from quadric.layers import QuadraticConv2d


def wave(cycles_per_pixel: float, size: int = 16) -> torch.Tensor:
    row = torch.sin(2 * math.pi * cycles_per_pixel * torch.arange(size) + 0.3)
    return row.expand(size, size)


def test_shares_of_known_waves() -> None:
    low, high = wave(1 / 8), wave(3 / 8)
    maps = torch.stack([low, high, low + high, low + 5, 100 * low, low.T])
    shares = low_frequency_shares(maps, 2)
    torch.testing.assert_close(shares, torch.tensor([1, 0, 0.5, 1, 1, 1.0]), rtol=0, atol=1e-5)
    assert low_frequency_shares(high[None], 2, cutoff=0.4).item() == pytest.approx(1)
    diagonal = wave(3 / 16) * wave(3 / 16).T  # along both axes low, together not
    assert low_frequency_shares(diagonal[None], 2).item() == pytest.approx(0, abs=1e-5)
    assert low_frequency_shares(torch.full((1, 8, 8), 1e6), 2).isnan()
    assert low_frequency_shares(torch.zeros(1, 8), 1).isnan()


def test_white_noise_has_the_share_of_the_disk() -> None:
    shares = low_frequency_shares(torch.randn(400, 32, 32), 2)
    assert shares.mean().item() == pytest.approx(math.pi / 16, abs=0.01)


def frequencies(linear: list[float], quadratic: list[float]) -> Frequencies:
    found = Frequencies()
    found.linear, found.quadratic = linear, quadratic
    return found


LESS, MORE = [0.40, 0.41, 0.42, 0.43], [0.60, 0.62, 0.61, 0.63]


BIT_LESS, ABOUT = [0.59, 0.60, 0.60, 0.61], [0.39, 0.42, 0.41, 0.44]
CLAIM = "The claim that quadratic responses hold low frequencies "


@pytest.mark.parametrize(
    ("layers", "holds", "counts", "start", "end"),
    [
        ([(LESS, MORE)] * 3, "yes", (3, 0), CLAIM + "holds for this network: 0.615 of ",
         "clearly more in 3 of 3 layers, clearly less in 0, no clear difference in 0."),
        ([(MORE, LESS)], "no", (0, 1), CLAIM + "does not hold for this network: 0.415 of ", ""),
        ([(LESS, MORE), (MORE, BIT_LESS)], "in part", (1, 1), CLAIM + "holds only in part", ""),
        ([(LESS, ABOUT)], "unclear", (0, 0), "No clear difference was found",
         "no clear difference in 1."),
    ],
)  # fmt: skip
def test_whether_the_claim_holds(
    layers: list[tuple[list[float], list[float]]],
    holds: str,
    counts: tuple[int, int],
    start: str,
    end: str,
) -> None:
    found = verdict({str(i): frequencies(*parts) for i, parts in enumerate(layers)})
    assert (found["holds"], found["more"], found["less"]) == (holds, *counts)
    assert found["sentence"].startswith(start)
    assert found["sentence"].endswith(end)
    assert found["pictures"] == 4
    if holds == "yes":
        assert found["difference"]["mean"] == pytest.approx(0.2)


def test_a_picture_counts_where_it_has_both_parts() -> None:
    some = frequencies([0.1, math.nan, 0.3], [0.2, math.nan, 0.4])
    assert some.to_dict()["difference"]["pairs"] == 2
    found = verdict({"a": some, "b": frequencies([0.1] * 3, [0.2, 0.2, 0.2])})
    assert found["pictures"] == 3
    assert found["difference"]["mean"] == pytest.approx(0.1)


def test_what_cannot_be_measured_says_why() -> None:
    layer = QuadraticConv2d(1, 4, 1, rank=3)
    small, flat = Frequencies(), Frequencies()
    small.see(layer, torch.randn(2, 1, 3, 5), torch.randn(2, 1, 3, 5))
    assert "maps of 3 x 5 pixels are too small" in small.to_dict()["reason"]
    flat.see(layer, torch.randn(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
    assert flat.to_dict()["reason"] == "a part does not vary"
    found = verdict({"a": flat})
    assert found["holds"] is None
    assert "was not measured" in found["sentence"]
