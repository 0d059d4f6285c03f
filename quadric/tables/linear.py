"""Never worse than ridge or logistic regression: a linear model beside the network.

After a fit that held rows out, a linear model learns the rows that the network learned, and the
held-out rows say with which share each counts in the prediction, by the measure of early stopping.
They are few, and they chose the network's epoch too. So the share of the network is not the best
one there but the smallest one that is not clearly worse (the rule of Breiman et al. 1984). Members
are judged together, each on the rows that it held out. Then the linear model learns all rows.
Without a share left, the network goes, and all that is done with a network can be done with the
linear layer in its place.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import Tensor, nn

from quadric.models import create
from quadric.tables.jobs import Job, Rows
from quadric.tables.losses import LOGISTIC, SOFTMAX, SQUARED, Loss
from quadric.tables.training import FORWARD_ROWS, find_caps, held_out_losses

RIDGE, LOGISTIC_REGRESSION = "ridge regression", "logistic regression"

COLUMNS, ROWS = 500, 20_000
"""No linear model for more columns; of more rows it learns this many, evenly taken."""

STRENGTHS = np.logspace(-3, 3, 13)
"""Of ridge regression; leave-one-out errors choose."""

INVERSE_STRENGTHS = (1.0, 0.1, 0.01)
"""Of logistic regression; the held-out rows choose, the first unless another is clearly better."""

SHARES = tuple(i / 10 for i in range(11))
"""Of the network in a prediction."""

CLEAR = 0.5
"""A loss that is higher by this number of standard errors is clearly worse."""

UNLEARNED = (
    "on the held-out rows the fit is worse than {} alone: the columns may say nothing about the "
    "target, or the rows are too few"
)

Judged = tuple[float, float]
"""The held-out error and the score."""


@dataclass(frozen=True)
class LinearPart:
    """How a linear model did beside the network.

    Attributes:
        network: the linear model; None if there is none.
        share: of the network in a prediction; the linear model has the rest.
        name: of the linear model; empty if there was none.
        score: the validation score of both together.
        said: a sentence on the errors; empty if there was no linear model.
        learned: whether what stays is no worse than a constant on the held-out rows.
        outputs: for the held-out rows of each member, of what stays; empty without such rows.
        seconds: what this took.
    """

    network: nn.Sequential | None = None
    share: float = 1.0
    name: str = ""
    score: float = 0.0
    said: str = ""
    learned: bool = True
    outputs: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0


def beside(jobs: Sequence[Job], wanted: bool) -> LinearPart:
    """Judges the trained networks of the members of an estimator beside linear ones."""
    begin = time.perf_counter()
    if any(job.validation is None for job in jobs):
        return LinearPart()
    own = [_outputs(job.network, job) for job in jobs]
    if jobs[0].loss not in _NAMES:
        return LinearPart(outputs=own)
    constant = _error(jobs, [_constant(job) for job in jobs])
    error = _error(jobs, own)
    found = _lines(jobs) if wanted and _is_cheap(jobs[0]) else None
    if found is None:
        seconds = time.perf_counter() - begin
        return LinearPart(learned=error <= constant, outputs=own, seconds=seconds)
    lines, strength = found
    blends = [
        [mixed(jobs[0].loss, a, b, share) for a, b in zip(own, lines, strict=True)]
        for share in SHARES
    ]
    chosen = first_not_worse(jobs, blends)
    errors = [_error(jobs, blend) for blend in (blends[0], blends[chosen])]
    name, share = _NAMES[jobs[0].loss], SHARES[chosen]
    if 0 < share < 1:
        end = f"both, the network with a share of {share}, {errors[1]:.4g}"
    else:
        end = "the network is kept" if share else "it takes the network's place"
    return LinearPart(
        _learned_all(jobs[0], strength) if share < 1 else None,
        share,
        name,
        fmean(_judge(job, outputs)[1] for job, outputs in zip(jobs, blends[chosen], strict=True)),
        f"held-out error {error:.4g}, that of {name} {errors[0]:.4g}: {end}",
        errors[1] <= constant,
        blends[chosen],
        time.perf_counter() - begin,
    )


def mixed(loss: Loss, network: Tensor, line: Tensor, share: float) -> Tensor:
    """The outputs whose answers are those of the network and of the linear model by shares."""
    if loss is LOGISTIC:
        mean = line.double().sigmoid().lerp(network.double().sigmoid(), share)
        return mean.clamp(1e-15, 1 - 1e-15).logit().to(network)
    if loss is SOFTMAX:
        mean = line.double().softmax(-1).lerp(network.double().softmax(-1), share)
        return mean.clamp_min(1e-30).log().to(network)
    return line.lerp(network, share)


def first_not_worse(jobs: Sequence[Job], tried: Sequence[Sequence[Tensor]]) -> int:
    """The place of the first outputs that are not clearly worse than the best ones."""
    errors = [_error(jobs, outputs) for outputs in tried]
    best = min(range(len(tried)), key=errors.__getitem__)
    if jobs[0].judge is not None:  # it knows no rows
        return best
    losses = torch.stack([torch.cat([*map(_row_losses, jobs, outputs)]) for outputs in tried])
    gaps = losses - losses[best]
    allowed = CLEAR * gaps.std(1) / len(gaps.T) ** 0.5
    return int((gaps.mean(1) <= allowed).nonzero()[0])


def linear_network(columns: int, outputs: int, seed: int = 0) -> nn.Sequential:
    """A network without hidden layers."""
    made: Any = create("mlp", in_features=columns, out_features=outputs, hidden=(), seed=seed)
    return made  # type: ignore[no-any-return]


_NAMES = {SQUARED: RIDGE, LOGISTIC: LOGISTIC_REGRESSION, SOFTMAX: LOGISTIC_REGRESSION}


def _is_cheap(job: Job) -> bool:
    """Whether a linear model takes little time beside the network, and can be one."""
    if job.train.inputs.shape[1] > COLUMNS:
        return False
    classes = 2 if job.loss is LOGISTIC else _width(job)
    return job.loss is SQUARED or len(job.train.targets.unique()) == classes


def _width(job: Job) -> int:
    last: Any = [layer for layer in job.network if hasattr(layer, "out_features")][-1]
    return int(last.out_features)


def _error(jobs: Sequence[Job], outputs: Sequence[Tensor]) -> float:
    return fmean(_judge(job, each)[0] for job, each in zip(jobs, outputs, strict=True))


@torch.no_grad()
def _outputs(network: nn.Module, job: Job) -> Tensor:
    assert job.validation is not None
    return torch.cat([network(part) for part in job.validation.inputs.split(FORWARD_ROWS)])


def _judge(job: Job, outputs: Tensor) -> Judged:
    """As each epoch is judged."""
    if job.judge is not None:
        return job.judge(outputs)
    assert job.validation is not None
    rows = Rows(*(tensor.unsqueeze(0) for tensor in job.validation))
    caps = find_caps(job.loss, rows, outputs.shape[-1])
    loss, score = held_out_losses(job.loss, outputs.unsqueeze(0), rows, caps)
    return float(loss), float(score)


def _row_losses(job: Job, outputs: Tensor) -> Tensor:
    """What each held-out row counts, in double precision."""
    assert job.validation is not None
    rows = Rows(*(tensor.unsqueeze(0) for tensor in job.validation))
    caps = find_caps(job.loss, rows, outputs.shape[-1])
    weights = job.validation.weights.double()
    losses = job.loss.rows(outputs.unsqueeze(0), rows.targets).minimum(caps)[0].double()
    return losses * weights / weights.mean()


def _constant(job: Job) -> Tensor:
    """The outputs of one that knows the mean of the learned targets, or the shares of classes."""
    assert job.validation is not None
    _, targets, weights = job.train
    shares = weights / weights.sum()
    if job.loss is SOFTMAX:
        counts = torch.zeros(_width(job)).to(shares).index_add_(0, targets, shares)
        mean = counts.clamp_min(1e-9).log()
    else:
        mean = (shares.unsqueeze(-1) * targets.view(len(shares), -1)).sum(0)
    if job.loss is LOGISTIC:
        mean = mean.clamp(1e-9, 1 - 1e-9).logit()
    return mean.expand(len(job.validation.inputs), -1)


def _lines(jobs: Sequence[Job]) -> tuple[list[Tensor], float] | None:
    """What linear models of the learned rows say of the held-out ones, and their strength.

    The strength is the inverse one of logistic regression; ridge regression finds its own. None if
    there can be no linear model.
    """
    strengths = (0.0,) if jobs[0].loss is SQUARED else INVERSE_STRENGTHS
    try:
        tried = [[_outputs(_fitted(job, job.train, c), job) for job in jobs] for c in strengths]
    except (np.linalg.LinAlgError, ValueError):
        return None
    chosen = first_not_worse(jobs, tried)
    return (tried[chosen], strengths[chosen]) if np.isfinite(_error(jobs, tried[chosen])) else None


def _learned_all(job: Job, strength: float) -> nn.Sequential:
    """The linear model of all rows of the table, those that the member held out with them."""
    parts = [job.train]
    if job.held_out and job.validation is not None:
        parts.append(job.validation)
    rows = Rows(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    return _fitted(job, rows, strength)


def _fitted(job: Job, rows: Rows, strength: float) -> nn.Sequential:
    """A linear model as a network."""
    step = -(-len(rows.inputs) // ROWS)
    X, y, weights = (tensor[::step].cpu().double().numpy() for tensor in rows)
    weights = weights / weights.mean()
    model: Any = RidgeCV(STRENGTHS)
    if job.loss is not SQUARED:
        model, y = LogisticRegression(C=strength, max_iter=200, tol=1e-3), y.astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models that do not converge: they are judged
        model.fit(X, y, weights)
    network = linear_network(X.shape[1], _width(job)).to(next(job.network.parameters()))
    layer: Any = network[0]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(model.coef_).view_as(layer.weight))
        layer.bias.copy_(torch.tensor(model.intercept_).view_as(layer.bias))
    return network
