"""What a fitter takes and gives: rows, settings, one job for each network, and its record.

A fitter trains the networks of jobs in place and returns a record for each: `training.train` does
it with Adam, `second_order.fit_jobs` goes on to second order where a job says so. The estimators
only make jobs and read records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from torch import Tensor, nn

from quadric.tables.losses import Loss

# If an operation has at most this number of MACs, stacks run side by side on one thread each.
# Threads within an operation wait for each other, on a busy machine most of the time.
SMALL_MACS = 2**26


class Rows(NamedTuple):
    """Rows to learn from or to validate on; those of a stack have a first dimension more.

    Attributes:
        inputs: (N, columns).
        targets: (N,) or (N, outputs).
        weights: (N,).
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor

    def take(self, index: Tensor) -> Rows:
        """Some networks of a stack."""
        return Rows(*(tensor[index] for tensor in self))


@dataclass(frozen=True)
class Settings:
    """What all networks of a stack have in common.

    Attributes:
        batch_size: rows of a minibatch.
        max_iter: the most epochs to train.
        tol: what counts as an improvement: a loss lower by this fraction of the best one.
        patience: epochs without improvement after which a network stops.
        alpha: the L2 penalty of weights, as in scikit-learn divided by the rows of a minibatch.
        adaptive: instead of stopping, lower the learning rate to a fifth, three times.
        verbose: print the loss of each epoch.
        rate: what the learning rate is multiplied with at each step, counted from 0; None: by 1.
        shrinkage: how strongly the columns of the first layer are pulled to zero at first; with
            each step less.
        max_time: seconds after which the epoch is the last one; None: no limit.
    """

    batch_size: int
    max_iter: int
    tol: float
    patience: int
    alpha: float
    adaptive: bool = False
    verbose: bool = False
    rate: Callable[[int], float] | None = None
    max_time: float | None = None
    shrinkage: float = 0.0


@dataclass
class AdamState:
    """Where an optimizer stopped: its two averages by parameter, and its number of steps."""

    average: dict[str, Tensor]
    square: dict[str, Tensor]
    steps: int


@dataclass
class Job:
    """One network and what it learns.

    Attributes:
        network: trained in place.
        train: the rows to learn from.
        validation: the rows to stop by; None: by the training loss.
        loss: what is minimized.
        settings: how.
        lr: learning rate.
        quadratic_lr: learning rate of the quadratic parameters.
        seed: of the order of the rows.
        optimizer: where an earlier training stopped; None starts a new one.
        judge: from the outputs for the validation rows to what early stopping lowers instead of
            the loss, a positive number, and the score that is noted; None: the loss.
        solver: "adam" or "lm".
        reason: why that one.
        max_steps: steps to second order at most, of all starts together.
        first_steps: steps after which second order ends if nothing is gained; 0: it goes on.
        held_out: whether the validation rows are a part of the table, not rows given apart.
        fresh: whether the network starts from random weights, not where an earlier fit ended.
    """

    network: nn.Sequential
    train: Rows
    validation: Rows | None
    loss: Loss
    settings: Settings
    lr: float
    quadratic_lr: float
    seed: int
    optimizer: AdamState | None = None
    judge: Callable[[Tensor], tuple[float, float]] | None = None
    solver: str = "adam"
    reason: str = ""
    max_steps: int = 0
    first_steps: int = 0
    held_out: bool = True
    fresh: bool = True

    def steps(self) -> int:
        """Minibatches of an epoch."""
        return -(-len(self.train.inputs) // self.settings.batch_size)

    def penalty(self) -> float:
        """The L2 penalty of a weight: scikit-learn divides alpha by the weight of a minibatch."""
        weights = self.train.weights
        rows = min(self.settings.batch_size, len(weights))
        return self.settings.alpha / (rows * float(weights.mean()))

    def shape_key(self) -> tuple[object, ...]:
        """Jobs with the same key can share a stack."""
        first = next(self.network.parameters())
        earlier = self.optimizer.steps if self.optimizer is not None else 0
        return (
            repr(self.network), first.dtype, first.device, self.steps(), self.validation is None,
            earlier, self.loss, self.settings,
        )  # fmt: skip

    def is_small(self) -> bool:
        """Whether threads within an operation would wait longer than they compute."""
        parameters = list(self.network.parameters())
        largest = max(parameter.numel() for parameter in parameters)
        on_cpu = parameters[0].device.type == "cpu"
        return on_cpu and largest * self.settings.batch_size <= SMALL_MACS


@dataclass
class FitRecord:
    """How the training of one network went.

    Attributes:
        losses: mean training loss of each epoch.
        scores: validation score of each epoch, where there is a validation part.
        best_score: the score of the epoch whose parameters were kept.
        best_loss: the lowest training loss.
        stopped: whether it stopped by itself, before the epochs were used up.
        diverged_at: the epoch whose loss was not finite, counted from 1; None if all were.
        usable: whether the network's parameters are finite ones of a trained epoch.
        seconds: of this network alone, on one core: the time of its stack, shared among the
            networks in it.
        optimizer: where the optimizer stopped.
        solver: "adam" or "lm".
        reason: why that one, and how it went.
        interrupted: whether Ctrl-C ended it; the best so far is kept.
    """

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best_score: float | None = None
    best_loss: float = math.inf
    stopped: bool = False
    diverged_at: int | None = None
    usable: bool = True
    seconds: float = 0.0
    optimizer: AdamState | None = None
    solver: str = "adam"
    reason: str = ""
    interrupted: bool = False


def merge(records: Sequence[FitRecord]) -> FitRecord:
    """How the training of the members of one estimator went, as if they were one network."""
    if len(records) == 1:
        return records[0]

    def means(curves: Iterable[list[float]]) -> list[float]:
        epochs = zip_longest(*curves)
        return [fmean(value for value in epoch if value is not None) for epoch in epochs]

    losses = means(record.losses for record in records)
    best = [record.best_score for record in records if record.best_score is not None]
    failed = [record.diverged_at for record in records if record.diverged_at is not None]
    return FitRecord(
        losses=losses,
        scores=means(record.scores for record in records),
        best_score=fmean(best) if best else None,
        best_loss=min(record.best_loss for record in records),
        stopped=all(record.stopped for record in records),
        diverged_at=min(failed, default=None),
        usable=all(record.usable for record in records),
        seconds=sum(record.seconds for record in records),
        solver=records[0].solver,
        reason=records[0].reason,
        interrupted=any(record.interrupted for record in records),
    )
