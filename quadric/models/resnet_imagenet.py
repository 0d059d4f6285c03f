"""ResNet-18 and ResNet-34 for ImageNet (He et al. 2016), with torchvision's parameter names.

A checkpoint of torchvision's `resnet18` or `resnet34` loads with `load_state_dict`. One
departure: without an activation the stem pools by average instead of by maximum, so that nothing
in the network is nonlinear but the layers that are converted.
"""

from __future__ import annotations

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.models.activations import is_none, make_activation
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
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ImageNetResNet(nn.Module):
    """The network; `resnet_imagenet` checks the arguments and makes it."""

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self,
        blocks: tuple[int, ...],
        channels: tuple[int, ...],
        num_classes: int,
        in_channels: int,
        activation: str | None,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels[0], 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = make_activation(activation)
        self.maxpool: nn.Module = (
            nn.AvgPool2d(3, 2, padding=1) if is_none(activation) else nn.MaxPool2d(3, 2, padding=1)
        )
        before = channels[0]
        for stage, (count, width) in enumerate(zip(blocks, channels, strict=True), start=1):
            layers = []
            for block in range(count):
                stride = 2 if stage > 1 and block == 0 else 1
                layers.append(BasicBlock(before, width, stride, activation))
                before = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet_imagenet(
    depth: int,
    num_classes: int = 1000,
    in_channels: int = 3,
    width: float = 1.0,
    activation: str | None = "relu",
) -> ImageNetResNet:
    """Builds an ImageNet residual network.

    Args:
        depth: 18 or 34.
        num_classes: outputs of the classifier.
        in_channels: channels of the picture.
        width: multiplies the 64, 128, 256 and 512 channels of the stages.
        activation: a name of `quadric.models.activations.ACTIVATIONS`, or None for no activation.

    Examples:
        >>> sum(p.numel() for p in resnet_imagenet(18).parameters())
        11689512
    """
    if depth not in BLOCKS:
        raise InputError(f"depth must be one of {', '.join(map(str, BLOCKS))}, got {depth!r}")
    return ImageNetResNet(
        BLOCKS[depth],
        scale_channels((64, 128, 256, 512), width),
        positive("num_classes", num_classes),
        positive("in_channels", in_channels),
        activation,
    )
