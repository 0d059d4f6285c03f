"""What a network is trained for: its loss, and what is counted to report how good it is.

A task turns each batch into a short vector of sums, starting with the number of samples. Sums of
batches, and of processes, add up; metrics are computed from them once, at the end. So nothing
waits for the device inside an epoch.

A new kind of task is a subclass of `Task`, a line in the `METRICS` of `quadric.runs`, and a
subclass of `RunData` in `data.py` that makes it. No other file asks which task it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quadric.errors import InputError
from quadric.runs.metrics import METRICS

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Progress: TypeAlias = Callable[[int, int], None]
"""Takes the batches that are done now, and how many there are."""


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


class Task:
    """What training needs to know of a task.

    Attributes:
        metric: the name of the number that a result is judged by, one of `METRICS`.
        names: of all that `metrics` gives, the metric first.
        size: how many sums there are.
        samples: what the first sum counts, as people call it.
        own_loss: a user's loss instead of the task's, or None.
    """

    metric: ClassVar[str]
    size: ClassVar[int]
    samples: ClassVar[str] = "samples"
    own_loss: Loss | None = None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is better."""
        return METRICS[self.metric].higher_is_better

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that `metrics` gives, the metric first."""
        return (self.metric, "loss")

    def zeros(self, device: torch.device) -> Tensor:
        """The sums of nothing."""
        return torch.zeros(self.size, dtype=_double(device), device=device)

    def outputs(self, network: Callable[..., Any], inputs: Any) -> Any:
        """Runs a network on the inputs of a batch."""
        return network(inputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        raise NotImplementedError

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of samples, and what is summed over them."""
        raise NotImplementedError

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """What is reported, by name."""
        raise NotImplementedError

    def finish(
        self, network: nn.Module, device: torch.device, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """What is measured once, on the trained network, by the name it has in a result."""
        return {}


def _double(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Classification(Task):
    """Cross-entropy; accuracy and, from six classes on, how often the label is among the top five.

    Attributes:
        num_classes: of the labels.
        label_smoothing: of the training loss; the reported loss is without.
        own_loss: a user's loss instead of cross-entropy, in training and in the report.
    """

    metric = "accuracy"
    size = 4

    num_classes: int
    label_smoothing: float = 0.0
    own_loss: Loss | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Accuracy, loss, and top5 where there is one."""
        return ("accuracy", "loss", "top5") if self.num_classes > 5 else ("accuracy", "loss")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        if self.own_loss is not None:
            return self.own_loss(outputs, targets)
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples, summed loss, labels that are first, labels that are among the first five."""
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        if self.own_loss is not None:
            loss = len(targets) * self.own_loss(outputs, targets)
        else:
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
        values = {"loss": loss / count, "accuracy": first / count}
        return values | ({"top5": five / count} if self.num_classes > 5 else {})


@dataclass(frozen=True)
class Regression(Task):
    """Mean squared error of standardized targets; the error in the target's own unit."""

    metric = "rmse"
    size = 3

    target_std: float = 1.0  # what one unit of the network's output is in the target's unit
    # A user's loss instead of the squared error, in training and in the report.
    own_loss: Loss | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized."""
        loss = F.mse_loss if self.own_loss is None else self.own_loss
        return loss(outputs, self._fitting(outputs, targets))

    @torch.no_grad()
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples, summed squares of errors averaged over the target's columns, summed loss."""
        kind = _double(outputs.device)
        targets = self._fitting(outputs, targets)
        errors = (outputs.to(kind) - targets.to(kind)).square().flatten(1).mean(1)
        squares = errors.sum()
        loss = squares if self.own_loss is None else len(targets) * self.loss(outputs, targets)
        return torch.stack([errors.new_tensor(len(targets)), squares, loss.to(kind)])

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """The loss of standardized targets, and the root of squared errors in the target's unit."""
        count, squares, loss = sums.tolist()
        return {"loss": loss / count, "rmse": math.sqrt(squares / count) * self.target_std}

    @staticmethod
    def _fitting(outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets in the shape of the outputs: one number for each sample is a row of one."""
        if targets.shape != outputs.shape:
            targets = targets.reshape(len(targets), -1)
        if targets.shape != outputs.shape:  # they would broadcast, and be subtracted all the same
            raise InputError(
                f"a network must give outputs of shape {tuple(targets.shape)} for these targets, "
                f"got {tuple(outputs.shape)}: change its last layer, or the targets"
            )
        return targets.to(outputs.dtype) if targets.dtype == torch.float64 else targets
