"""BatchNorm and ReLU that the quadratic layer in front of them computes.

The modules stay where they are, with their parameters, statistics and names; only their class says
that they pass on what they are given. The layer holds a `Behind`, which knows them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quadric import kernels
from quadric.kernels import Norm


class JoinedBatchNorm1d(nn.BatchNorm1d):
    """A BatchNorm that the layer in front computes."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class JoinedBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm that the layer in front computes."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class JoinedBatchNorm3d(nn.BatchNorm3d):
    """A BatchNorm that the layer in front computes."""

    def forward(self, input: Tensor) -> Tensor:
        return input


class JoinedReLU(nn.ReLU):
    """A ReLU that the layer in front computes."""

    def forward(self, input: Tensor) -> Tensor:
        return input


JOINED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: JoinedBatchNorm1d,
    nn.BatchNorm2d: JoinedBatchNorm2d,
    nn.BatchNorm3d: JoinedBatchNorm3d,
    nn.ReLU: JoinedReLU,
}


@dataclass
class Behind:
    """What a layer computes behind its squares.

    Attributes:
        norm: a joined BatchNorm.
        relu: a joined ReLU, or None.
    """

    norm: _BatchNorm
    relu: nn.ReLU | None = None

    @property
    def settings(self) -> Norm:
        """BatchNorm's numbers, as they are now."""
        norm = self.norm
        relu = self.relu is not None
        return Norm(norm.weight, norm.bias, norm.eps, relu, self.of_batch)

    @property
    def of_batch(self) -> bool:
        """Whether mean and variance are those of the batch."""
        return self.norm.training or self.norm.running_mean is None

    @property
    def statistics(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Mean and variance, unless they are those of the batch."""
        mean, var = self.norm.running_mean, self.norm.running_var
        return (None, None) if self.of_batch or mean is None or var is None else (mean, var)

    def follow(self, out: Tensor) -> Tensor:
        """Both by torch, behind a layer's output."""
        plain = type(self.norm).__mro__[1]
        result: Tensor = plain.forward(self.norm, out)  # type: ignore[attr-defined]
        return result if self.relu is None else result.relu()

    def takes(self, z: Tensor, channel_dim: int) -> bool:
        """Whether the two can be computed with the squares: on channels where BatchNorm has them,
        of more than one number, by kernels.

        Args:
            z: the linear map's output.
            channel_dim: its channels, counted from the end.
        """
        norm = self.norm
        if not kernels.active() or z.dtype != torch.float32 or z.device.type != "cpu":
            return False
        own = [t for t in (norm.weight, norm.bias, norm.running_mean) if t is not None]
        if any(t.dtype != torch.float32 or type(t) not in (Tensor, nn.Parameter) for t in own):
            return False
        if z.dim() + channel_dim != 1 or z.shape[1] != norm.num_features or z.numel() == 0:
            return False
        return not self.of_batch or z.numel() > z.shape[1]

    def track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Takes a batch into the running statistics, as torch does.

        Args:
            mean: of each channel.
            var: its biased variance.
            count: numbers in a channel.
        """
        norm = self.norm
        if not norm.training or norm.running_mean is None or norm.running_var is None:
            return
        factor = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if factor is None:
                factor = 1.0 / float(norm.num_batches_tracked)
        factor = 0.0 if factor is None else factor
        norm.running_mean.mul_(1 - factor).add_(mean, alpha=factor)
        norm.running_var.mul_(1 - factor).add_(var, alpha=factor * count / (count - 1))
