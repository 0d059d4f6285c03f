"""What the two kinds of residual networks have in common (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from quadric.models.widths import positive


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """A shortcut where the shape changes: a 1x1 convolution and batch normalization."""
    convolution = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


class ResNet(nn.Module):
    """Stages `layer1`, `layer2`, … of blocks, a global average and a linear classifier.

    A subclass makes the layers of its `stem` first, then calls `add_stages`, so that weights are
    drawn in order.
    """

    stem: Callable[[Tensor], Tensor]

    def add_stages(
        self,
        blocks: Sequence[int],
        channels: Sequence[int],
        num_classes: int,
        make_block: Callable[[int, int, int], nn.Module],
    ) -> None:
        """Adds everything after the stem, and draws the weights of all convolutions."""
        before = channels[0]
        for stage, (count, width) in enumerate(zip(blocks, channels, strict=True), start=1):
            layers = []
            for block in range(count):
                layers.append(make_block(before, width, 2 if stage > 1 and block == 0 else 1))
                before = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, positive("num_classes", num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.stem(x)
        for name, stage in self.named_children():
            x = stage(x) if name.startswith("layer") else x
        out: Tensor = self.fc(self.avgpool(x).flatten(1))
        return out
