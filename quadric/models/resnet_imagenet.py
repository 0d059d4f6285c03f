"""ResNet-18 and ResNet-34 for ImageNet (He et al. 2016), with torchvision's parameter names.

A checkpoint of torchvision's `resnet18` or `resnet34` loads with `load_state_dict`. One
departure: without an activation the stem pools by average instead of by maximum, so that nothing
in the network is nonlinear but the layers that are converted.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.models.activations import is_none, make_activation
from quadric.models.residual import ResNet, projection
from quadric.models.widths import positive, scale_channels

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions added to the shortcut, a 1x1 convolution where the shape changes."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, activation: str | None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        # torchvision's name for the activation, whichever it is; it has no parameters.
        self.relu = make_activation(activation)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = projection(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths, after the activation."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        sum_: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return sum_


class ImageNetResNet(ResNet):
    """The network.

    Examples:
        >>> sum(p.numel() for p in ImageNetResNet(18).parameters())
        11689512
    """

    def __init__(
        self,
        depth: int,
        num_classes: int = 1000,
        in_channels: int = 3,
        width: float = 1.0,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        if depth not in BLOCKS:
            raise InputError(f"depth must be one of {', '.join(map(str, BLOCKS))}, got {depth!r}")
        stages = scale_channels((64, 128, 256, 512), width)
        inputs = positive("in_channels", in_channels)
        self.conv1 = nn.Conv2d(inputs, stages[0], 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stages[0])
        self.relu = make_activation(activation)
        pool = nn.AvgPool2d if is_none(activation) else nn.MaxPool2d
        self.maxpool = pool(3, 2, padding=1)
        make_block = partial(BasicBlock, activation=activation)
        self.add_stages(BLOCKS[depth], stages, num_classes, make_block)

    def stem(self, x: Tensor) -> Tensor:
        """What the first stage sees."""
        out: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return out
