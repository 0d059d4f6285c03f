"""What a network is trained for: its loss, and what is counted to report how good it is.

A task turns each batch into a short vector of sums, starting with the number of samples. Sums of
batches, and of processes, add up; metrics are computed from them once, at the end. So nothing
waits for the device inside an epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F


class Task:
    """What training needs to know of a task.

    Attributes:
        metric: the name of the number that a result is judged by.
        higher_is_better: whether a larger one is better.
        size: how many sums there are.
    """

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    size: ClassVar[int]

    def zeros(self, device: torch.device) -> Tensor:
        """The sums of nothing."""
        return torch.zeros(self.size, dtype=_double(device), device=device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        raise NotImplementedError

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of samples, and what is summed over them."""
        raise NotImplementedError

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """What is reported, by name."""
        raise NotImplementedError


def _double(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Classification(Task):
    """Cross-entropy; accuracy and, from six classes on, how often the label is among the top five.

    Attributes:
        num_classes: of the labels.
        label_smoothing: of the training loss; the reported loss is without.
    """

    metric = "accuracy"
    higher_is_better = True
    size = 4

    num_classes: int
    label_smoothing: float = 0.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples, summed loss, labels that are first, labels that are among the first five."""
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        loss = F.cross_entropy(outputs, targets, reduction="sum")
        own = outputs.gather(1, targets[:, None])
        # How many classes are ahead of the label; NaN compares as false, so
        # it is tested for: a network that outputs NaN is never right.
        ahead = (outputs > own).sum(1)
        # Equal outputs are ranked by their number, as argmax does.
        numbers = torch.arange(outputs.shape[1], device=outputs.device)
        ahead += ((outputs == own) & (numbers < targets[:, None])).sum(1)
        known = ~outputs.isnan().any(1)
        first, five = ((ahead == 0) & known).sum(), ((ahead < 5) & known).sum()
        sums = self.zeros(outputs.device)
        sums[0] = len(targets)
        sums[1], sums[2], sums[3] = loss, first, five
        return sums

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """Loss, accuracy and top-5 accuracy, 0 to 1."""
        count, loss, first, five = sums.tolist()
        found = {"loss": loss / count, "accuracy": first / count}
        return found | ({"top5": five / count} if self.num_classes > 5 else {})


@dataclass(frozen=True)
class Regression(Task):
    """Mean squared error of standardized targets; the error in the target's own unit.

    Attributes:
        target_std: what one unit of the network's output is in the target's unit.
    """

    metric = "rmse"
    higher_is_better = False
    size = 2

    target_std: float = 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        return F.mse_loss(outputs, targets)

    @torch.no_grad()
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples and summed squares of errors, the latter averaged over the target's columns."""
        kind = _double(outputs.device)
        errors = (outputs.to(kind) - targets.to(kind)).square().flatten(1).mean(1)
        return torch.stack([errors.new_tensor(len(targets)), errors.sum()])

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """The loss of standardized targets, and the root of it in the target's unit."""
        count, squares = sums.tolist()
        loss = squares / count
        return {"loss": loss, "rmse": math.sqrt(loss) * self.target_std}
