"""BatchNorm and ReLU that the quadratic layer in front of them computes.

The modules stay where they are, with their parameters, statistics and names; only their class says
that they pass on what they are given. The layer holds a `Behind`, which knows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quadric import kernels
from quadric.kernels import Norm


class _Joined(nn.Module):
    """A module that passes on what it is given as long as a layer in front computes it.

    Attributes:
        behind: what that layer has of it.
    """

    behind: Behind | None = None

    def forward(self, input: Tensor) -> Tensor:
        return input if self.behind is not None else self.computed(input)

    def computed(self, input: Tensor) -> Tensor:
        """What torch's own module returns."""
        result: Tensor = super().forward(input)  # type: ignore[misc]
        return result


class JoinedBatchNorm1d(_Joined, nn.BatchNorm1d):
    """A BatchNorm that the layer in front computes."""


class JoinedBatchNorm2d(_Joined, nn.BatchNorm2d):
    """A BatchNorm that the layer in front computes."""


class JoinedBatchNorm3d(_Joined, nn.BatchNorm3d):
    """A BatchNorm that the layer in front computes."""


class JoinedReLU(_Joined, nn.ReLU):
    """A ReLU that the layer in front computes."""


JOINED: dict[type[nn.Module], type[_Joined]] = {
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
    def modules(self) -> list[Any]:
        """What the layer computes."""
        return [self.norm] if self.relu is None else [self.norm, self.relu]

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
        assert isinstance(self.norm, _Joined)
        result = self.norm.computed(out)
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
        own = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
        plain = (Tensor, nn.Parameter)
        if any(t is not None and (t.dtype != z.dtype or type(t) not in plain) for t in own):
            return False
        norm._check_input_dim(z)  # torch's own refusal
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
        if not norm.training or not norm.track_running_stats:
            return
        if norm.running_mean is None or norm.running_var is None:
            return
        factor: float | Tensor = 0.0 if norm.momentum is None else norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if norm.momentum is None:
                factor = 1.0 / norm.num_batches_tracked
        # Not as the `alpha` of the sum: torch.compile would keep the value it has in a graph.
        norm.running_mean.mul_(1 - factor).add_(mean * factor)
        norm.running_var.mul_(1 - factor).add_(var * (count / (count - 1)) * factor)
