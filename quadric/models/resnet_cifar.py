"""Residual networks for 32x32 pictures (He et al. 2016, "Deep residual learning", section 4.2).

A 3x3 stem, three stages of n blocks of two 3x3 convolutions with 16, 32 and 64 channels at 32, 16
and 8 pixels, global average, one linear classifier: 6n + 2 layers. Where a stage halves the
picture the shortcut takes every second pixel and fills the new channels with zeros (option A, no
parameters), or is a 1x1 convolution (option B).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from quadric.errors import InputError
from quadric.models.activations import make_activation
from quadric.models.residual import ResNet, projection
from quadric.models.widths import positive, scale_channels


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
        self.shortcut: nn.Module
        if stride == 1 and in_channels == channels:
            self.shortcut = nn.Identity()
        elif shortcut == "A":
            self.shortcut = PadShortcut(in_channels, channels, stride)
        else:
            self.shortcut = projection(in_channels, channels, stride)
        self.act2 = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths, after the activation."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        sum_: Tensor = self.act2(out + self.shortcut(x))
        return sum_


class CifarResNet(ResNet):
    """The network.

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
        super().__init__()
        if positive("depth", depth) < 8 or depth % 6 != 2:
            raise InputError(f"depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got {depth}")
        if shortcut not in ("A", "B"):
            raise InputError(f"shortcut must be 'A' (no parameters) or 'B' (1x1), got {shortcut!r}")
        stages = scale_channels((16, 32, 64), width, channels)
        if shortcut == "A" and list(stages) != sorted(stages):
            raise InputError(
                f"shortcut 'A' pads channels, so they may not become fewer, got channels={stages}: "
                "use shortcut='B'"
            )
        inputs = positive("in_channels", in_channels)
        self.conv1 = nn.Conv2d(inputs, stages[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stages[0])
        self.act1 = make_activation(activation)
        make_block = partial(BasicBlock, shortcut=shortcut, activation=activation)
        self.add_stages([(depth - 2) // 6] * 3, stages, num_classes, make_block)

    def stem(self, x: Tensor) -> Tensor:
        """What the first stage sees."""
        out: Tensor = self.act1(self.bn1(self.conv1(x)))
        return out
