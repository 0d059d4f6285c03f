"""A network of five convolutions for 32x32 pictures, flat enough for encryption.

Under encryption every activation costs two levels, and a picture between two layers must fit into
one ciphertext: 16x16, 8x8, 8x8, 4x4 and 4x4 pixels with 32, 64, 128, 128 and 256 channels are at
most 8,192 numbers. Pictures shrink by stride, so that the activation is the only nonlinearity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from quadric.models.activations import Hermite, make_activation
from quadric.models.widths import scale_channels
from quadric.support.checks import check_size

_KERNELS = ((5, 2, 2), (4, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 1))
"""Size, stride and padding of each convolution."""


def cnn5(
    num_classes: int = 10,
    in_channels: int = 3,
    width: float = 1.0,
    channels: Sequence[int] | None = None,
    activation: str | None = "relu",
) -> nn.Sequential:
    """Builds the network; "hermite" is an activation with a BatchNorm for each degree.

    Examples:
        >>> sum(p.numel() for p in cnn5().parameters())
        555050
    """
    widths = scale_channels((32, 64, 128, 128, 256), width, channels)
    return conv_stack(in_channels, widths, _KERNELS, num_classes, activation)


def conv_stack(
    in_channels: int,
    channels: Sequence[int],
    kernels: Sequence[tuple[int, int, int]],
    num_classes: int,
    activation: str | None,
) -> nn.Sequential:
    """Convolutions of (size, stride, padding) with BatchNorm, a global average, a classifier."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = check_size("in_channels", in_channels)
    for i, (count, shape) in enumerate(zip(channels, kernels, strict=True), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, count, *shape, bias=False)
        if activation == "hermite":
            layers[f"act{i}"] = Hermite(count)
        else:
            layers[f"bn{i}"] = nn.BatchNorm2d(count)
            layers[f"act{i}"] = make_activation(activation)
        before = count
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(before, check_size("num_classes", num_classes))
    return nn.Sequential(layers)
