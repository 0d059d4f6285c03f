"""What the networks of a stack minimize, row by row, and the score that is reported with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A loss with its gradient and its score.

    Attributes:
        rows: from outputs (B, N, outputs) and targets to the loss of each row, (B, N).
        gradient: from the same to the gradient of each row's loss, (B, N, outputs).
        score: from outputs, targets and weights (B, N), which sum to 1, to R^2 or accuracy, (B,);
            for the losses that are no squares, minus the loss.
    """

    rows: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor, Tensor], Tensor]


# Half the mean square over the outputs.
def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square_().mean(-1).mul_(0.5)


def _squared_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    difference = outputs - targets
    return difference if outputs.shape[-1] == 1 else difference.div_(outputs.shape[-1])


def _r2(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    weights = weights.unsqueeze(-1)
    mean = (weights * targets).sum(1, keepdim=True)
    total = (weights * (targets - mean).square()).sum(1)
    residual = (weights * (targets - outputs).square()).sum(1)
    # As scikit-learn: a constant target that is not met exactly scores 0.
    r2 = torch.where(total > 0, 1 - residual / total, torch.where(residual > 0, 0.0, 1.0))
    return r2.mean(-1)


@functools.cache  # networks of one loss share a stack: they are compared by this object
def pinball(*quantiles: float) -> Loss:
    """The loss that a quantile minimizes: too low costs q times the gap, too high 1 - q times.

    Of several quantiles each output has its own.
    """
    levels = torch.tensor(quantiles, dtype=torch.float64)

    def rows(outputs: Tensor, targets: Tensor) -> Tensor:
        above, level = targets - outputs, levels.to(outputs)
        return torch.maximum(level * above, (level - 1) * above).mean(-1)

    def gradient(outputs: Tensor, targets: Tensor) -> Tensor:
        # Where a target is met exactly the gradient is 0, the mean of its two sides.
        side = (outputs - targets).sign_().mul_(0.5)
        return side.add_((0.5 - levels.to(outputs)) * (side != 0)).div_(outputs.shape[-1])

    def score(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return -(weights * rows(outputs, targets)).sum(1)

    return Loss(rows, gradient, score)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")


def _logistic_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sigmoid().sub_(targets.unsqueeze(-1))


def _binary_accuracy(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return (weights * ((outputs.squeeze(-1) > 0) == (targets > 0.5))).sum(1)


def _softmax(outputs: Tensor, targets: Tensor) -> Tensor:
    flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def _softmax_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    probabilities = outputs.softmax(-1)
    minus_one = torch.full_like(targets.unsqueeze(-1), -1, dtype=outputs.dtype)
    return probabilities.scatter_add_(-1, targets.unsqueeze(-1), minus_one)


def _accuracy(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return (weights * (outputs.argmax(-1) == targets)).sum(1)


SQUARED = Loss(_squared, _squared_gradient, _r2)
LOGISTIC = Loss(_logistic, _logistic_gradient, _binary_accuracy)
SOFTMAX = Loss(_softmax, _softmax_gradient, _accuracy)
