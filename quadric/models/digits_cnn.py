"""A small convolutional network for the 8x8 digits that scikit-learn ships.

Three 3x3 convolutions with batch normalization, 16, 32 and 32 channels at 8, 4 and 4 pixels,
global average, one linear classifier: 14,458 parameters, an epoch of 1,400 digits in a fraction
of a second. It halves the picture by stride, not by maximum, so that the activation is its only
nonlinearity.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from quadric.models.cnn5 import conv_stack
from quadric.models.widths import scale_channels

_KERNELS = ((3, 1, 1), (3, 2, 1), (3, 1, 1))
"""Size, stride and padding of each convolution."""


def digits_cnn(
    num_classes: int = 10,
    in_channels: int = 1,
    width: float = 1.0,
    channels: Sequence[int] | None = None,
    activation: str | None = "relu",
) -> nn.Sequential:
    """Builds the digits network.

    Examples:
        >>> sum(p.numel() for p in digits_cnn().parameters())
        14458
    """
    widths = scale_channels((16, 32, 32), width, channels)
    return conv_stack(in_channels, widths, _KERNELS, num_classes, activation)
