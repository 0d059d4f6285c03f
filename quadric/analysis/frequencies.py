"""Do quadratic responses hold low frequencies? The paper's claim (section IV-C), measured.

A response map is Fourier transformed without its mean. The share of its energy at low frequencies
is what lies at or below `CUTOFF` cycles per pixel, half the highest frequency along an axis. White
noise has about a fifth there. The mean is left out because a sum of squares always has one,
whatever it looks like. Shares are averaged over the neurons of a layer, picture by picture, and the
two parts are compared on the same pictures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quadric.data.intervals import mean_difference

CUTOFF = 0.25
SMALLEST = 4
"""Pixels per side of a map below which low and high frequencies cannot be told apart."""


def low_frequency_shares(maps: Tensor, spatial: int, cutoff: float = CUTOFF) -> Tensor:
    """The share of each map's energy at low frequencies, its mean aside.

    Examples:
        >>> row = torch.tensor([[1.0, 2.0, 1.0, 0.0, -1.0, -2.0, -1.0, 0.0]])  # period 8
        >>> low_frequency_shares(row, 1) > 0.99, low_frequency_shares(row[:, ::2], 1)
        (tensor([True]), tensor([1.]))
    """
    dims = tuple(range(-spatial, 0))
    size = maps.shape[-spatial:]
    maps = maps.float()
    mean = maps.mean(dims, keepdim=True)
    energy = torch.fft.fftn(maps - mean, dim=dims).abs().square()
    axes = [torch.fft.fftfreq(length, device=maps.device) for length in size]
    squared = sum(f.square() for f in torch.meshgrid(*axes, indexing="ij"))
    low = (energy * (squared <= cutoff**2 + 1e-9)).sum(dims)  # type: ignore[union-attr]
    total = energy.sum(dims)
    # What is left of a constant map after its mean is rounding.
    scale = maps.abs().amax(dims).square() * maps[(0,) * (maps.dim() - spatial)].numel() ** 2
    varies = total > scale * torch.finfo(maps.dtype).eps ** 2 * 100
    return torch.where(varies, low / torch.where(varies, total, 1), torch.nan)


class Frequencies:
    """Collects the shares of one layer's two parts, picture by picture."""

    def __init__(self, cutoff: float = CUTOFF) -> None:
        self.cutoff = cutoff
        self.linear: list[float] = []
        self.quadratic: list[float] = []
        self.reason = "the forward pass never called it"

    def see(self, layer: Any, linear: Tensor, quadratic: Tensor) -> None:
        """Adds the responses of one batch."""
        spatial = -1 - layer.linear_op.channel_dim
        if min(linear.shape[-spatial:]) < SMALLEST:
            side = " x ".join(map(str, linear.shape[-spatial:]))
            self.reason = f"its maps of {side} pixels are too small, at least {SMALLEST} are needed"
            return
        shares = [low_frequency_shares(part, spatial, self.cutoff) for part in (linear, quadratic)]
        # Only neurons that have both parts are compared; a picture without any is NaN.
        both = ~torch.isnan(shares[0]) & ~torch.isnan(shares[1])
        if not both.any():
            self.reason = "a part does not vary"
        for share, values in zip(shares, (self.linear, self.quadratic), strict=True):
            values += (torch.where(both, share, 0).sum(1) / both.sum(1)).tolist()

    @property
    def pairs(self) -> dict[int, tuple[float, float]]:
        """The shares of the linear and the quadratic part of each picture that has both."""
        both = enumerate(zip(self.linear, self.quadratic, strict=True))
        return {i: (a, b) for i, (a, b) in both if not math.isnan(a)}

    def to_dict(self) -> dict[str, Any]:
        """Means, spreads and the paired difference as plain data; or the reason for none."""
        pairs = list(self.pairs.values())
        if not pairs:
            return {"reason": self.reason}
        return {
            "linear": _summary([a for a, _ in pairs]),
            "quadratic": _summary([b for _, b in pairs]),
            "difference": mean_difference([b - a for a, b in pairs]).to_dict(),
        }


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": spread}


VERDICTS = {
    "yes": "The claim that quadratic responses hold low frequencies holds for this network",
    "no": "The claim that quadratic responses hold low frequencies does not hold for this network",
    "in part": "The claim that quadratic responses hold low frequencies holds only in part for "
    "this network",
    "unclear": "No clear difference was found between the frequencies of quadratic and linear "
    "responses of this network",
}


def verdict(layers: Mapping[str, Frequencies]) -> dict[str, Any]:
    """Whether the claim holds for a network, in numbers and in one sentence.

    It holds if the quadratic parts have clearly more of their energy at low frequencies than the
    linear ones, on average over the layers and in most of the layers. It fails if it is clearly
    less on average. If nothing is clear, neither on average nor that it is more in a layer, no
    difference was found. Otherwise it holds in part.
    """
    measured = [each.pairs for each in layers.values() if each.pairs]
    if not measured:
        reason = next((each.reason for each in layers.values()), "there is no such layer")
        sentence = (
            "The claim that quadratic responses hold low frequencies was not measured: no "
            f"convolutional layer with both parts ({reason})."
        )
        return {"holds": None, "sentence": sentence}
    gaps = [mean_difference([b - a for a, b in pairs.values()]) for pairs in measured]
    more, less = (sum(gap.is_clear and sign * gap.mean > 0 for gap in gaps) for sign in (1, -1))
    # Every picture counts once: its mean over the layers in which it has both parts.
    pictures: dict[int, list[float]] = {}
    for pairs in measured:
        for i, (linear, quadratic) in pairs.items():
            pictures.setdefault(i, []).append(quadratic - linear)
    overall = mean_difference([statistics.fmean(values) for values in pictures.values()])
    holds = "in part"
    if overall.is_clear and overall.mean < 0:
        holds = "no"
    elif overall.is_clear and 2 * more > len(measured):
        holds = "yes"
    elif not overall.is_clear and not more:
        holds = "unclear"
    linear, quadratic = (
        statistics.fmean(
            statistics.fmean(pair[part] for pair in pairs.values()) for pairs in measured
        )
        for part in (0, 1)
    )
    width = "" if overall.half_width is None else f" ± {overall.half_width:.3f}"
    sentence = (
        f"{VERDICTS[holds]}: {quadratic:.3f} of the quadratic responses' energy is at low "
        f"frequencies, {linear:.3f} of the linear ones' (difference {overall.mean:+.3f}{width}, "
        f"95 % interval over {len(pictures)} pictures); clearly more in {more} of {len(measured)} "
        f"layers, clearly less in {less}, no clear difference in {len(measured) - more - less}."
    )
    return {
        "holds": holds,
        "layers": len(measured),
        "more": more,
        "less": less,
        "pictures": len(pictures),
        "difference": overall.to_dict(),
        "sentence": sentence,
    }
