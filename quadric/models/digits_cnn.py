"""A small convolutional network for the 8x8 digits that scikit-learn ships.

Three 3x3 convolutions with batch normalization, 16, 32 and 32 channels at 8, 4 and 4 pixels,
global average, one linear classifier: 14,458 parameters, an epoch of 1,400 digits in a fraction
of a second. It halves the picture by stride, not by maximum, so that the activation is its only
nonlinearity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from quadric.models.activations import make_activation
from quadric.models.widths import scale_channels
from quadric.support.checks import check_size


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
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = check_size("in_channels", in_channels)
    for i, count in enumerate(scale_channels((16, 32, 32), width, channels), start=1):
        stride = 2 if i == 2 else 1
        layers[f"conv{i}"] = nn.Conv2d(before, count, 3, stride, padding=1, bias=False)
        layers[f"bn{i}"] = nn.BatchNorm2d(count)
        layers[f"act{i}"] = make_activation(activation)
        before = count
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(before, check_size("num_classes", num_classes))
    return nn.Sequential(layers)
