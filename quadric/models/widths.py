"""Channel counts of a network: the multiplier `width`, or explicit numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quadric.errors import InputError, InputTypeError
from quadric.support.checks import check_size


def scaled(widths: Sequence[int], factor: float) -> tuple[int, ...]:
    """The widths times a factor, rounded, and at least 1."""
    return tuple(max(1, round(width * factor)) for width in widths)


def scale_channels(
    default: tuple[int, ...], width: float, channels: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Returns the channels of each stage."""
    if isinstance(width, bool) or not isinstance(width, (int, float)):
        raise InputTypeError(f"width must be a number, got {width!r}")
    if not math.isfinite(width) or width <= 0:
        raise InputError(f"width must be a number > 0, got {width}")
    if channels is None:
        return scaled(default, width)
    if width != 1:
        raise InputError(
            f"width and channels exclude each other, got width={width} and "
            f"channels={tuple(channels)}: give one of them"
        )
    if isinstance(channels, (str, bytes)) or not isinstance(channels, Sequence):
        raise InputTypeError(f"channels must be a sequence of integers, got {channels!r}")
    if len(channels) != len(default):
        raise InputError(
            f"channels must have {len(default)} entries, one per stage, got {tuple(channels)}"
        )
    return tuple(check_size("channels", c) for c in channels)
