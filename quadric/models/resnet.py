"""Residual networks (He et al. 2016, "Deep residual learning") for small and for large pictures.

For 32x32 pictures (section 4.2) a 3x3 stem, three stages of n blocks of two 3x3 convolutions with
16, 32 and 64 channels at 32, 16 and 8 pixels, global average, one linear classifier: 6n + 2 layers.
Where a stage halves the picture the shortcut takes every second pixel and fills the new channels
with zeros (option A, no parameters), or is a 1x1 convolution (option B).

For ImageNet the names of the parameters are torchvision's: a checkpoint of its `resnet18` or
`resnet34` loads with `load_state_dict`. One departure: without an activation the stem pools by
average instead of by maximum, so that nothing in the network is nonlinear but the layers that are
converted.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from quadric.errors import InputError
from quadric.models.activations import make_activation
from quadric.models.widths import scale_channels
from quadric.support.checks import check_size

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""Blocks of each stage of the networks for ImageNet, by depth."""


class PadShortcut(nn.Module):
    """Option A: takes every second pixel and pads the channels with zeros on both sides."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        extra = out_channels - in_channels
        self.stride = stride
        self.before = extra // 2
        self.after = extra - extra // 2

    def forward(self, x: Tensor) -> Tensor:
        """The smaller picture with more channels."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        """What the printed module shows."""
        return f"stride={self.stride}, before={self.before}, after={self.after}"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with batch normalization, added to the shortcut."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, shortcut: str, activation: str | None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.act1 = make_activation(activation)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module
        if stride == 1 and in_channels == channels:
            self.downsample = nn.Identity()
        elif shortcut == "A":
            self.downsample = PadShortcut(in_channels, channels, stride)
        else:
            convolution = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(channels))
        self.act2 = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths, after the activation."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        sum_: Tensor = self.act2(out + self.downsample(x))
        return sum_


class ResNet(nn.Module):
    """A stem, stages `layer1`, `layer2`, … of blocks, a global average and a linear classifier."""

    def __init__(
        self,
        stem: nn.Conv2d,
        pool: nn.Module,
        blocks: Sequence[int],
        channels: Sequence[int],
        num_classes: int,
        shortcut: str,
        activation: str | None,
    ) -> None:
        super().__init__()
        self.conv1 = stem
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.act1 = make_activation(activation)
        self.maxpool = pool
        before = channels[0]
        for stage, (count, width) in enumerate(zip(blocks, channels, strict=True), start=1):
            layers = []
            for block in range(count):
                stride = 2 if stage > 1 and block == 0 else 1
                layers.append(BasicBlock(before, width, stride, shortcut, activation))
                before = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, check_size("num_classes", num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for name, stage in self.named_children():
            x = stage(x) if name.startswith("layer") else x
        out: Tensor = self.fc(self.avgpool(x).flatten(1))
        return out


class CifarResNet(ResNet):
    """The network for 32x32 pictures.

    Examples:
        >>> sum(p.numel() for p in CifarResNet(20).parameters())
        269722
    """

    def __init__(
        self,
        depth: int,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        channels: Sequence[int] | None = None,
        shortcut: str = "A",
        activation: str | None = "relu",
    ) -> None:
        if check_size("depth", depth) < 8 or depth % 6 != 2:
            raise InputError(f"depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got {depth}")
        if shortcut not in ("A", "B"):
            raise InputError(f"shortcut must be 'A' (no parameters) or 'B' (1x1), got {shortcut!r}")
        stages = scale_channels((16, 32, 64), width, channels)
        if shortcut == "A" and list(stages) != sorted(stages):
            raise InputError(
                f"shortcut 'A' pads channels, so they may not become fewer, got channels={stages}: "
                "use shortcut='B'"
            )
        inputs = check_size("in_channels", in_channels)
        stem = nn.Conv2d(inputs, stages[0], 3, padding=1, bias=False)
        blocks = [(depth - 2) // 6] * 3
        super().__init__(stem, nn.Identity(), blocks, stages, num_classes, shortcut, activation)


class ImageNetResNet(ResNet):
    """The network for 224x224 pictures.

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
        if depth not in BLOCKS:
            raise InputError(f"depth must be one of {', '.join(map(str, BLOCKS))}, got {depth!r}")
        stages = scale_channels((64, 128, 256, 512), width)
        inputs = check_size("in_channels", in_channels)
        stem = nn.Conv2d(inputs, stages[0], 7, 2, padding=3, bias=False)
        pool = (nn.AvgPool2d if activation in (None, "none") else nn.MaxPool2d)(3, 2, padding=1)
        super().__init__(stem, pool, BLOCKS[depth], stages, num_classes, "B", activation)
