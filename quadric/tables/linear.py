"""Never worse than ridge or logistic regression: a linear model beside the network.

After a fit that held rows out, a linear model learns the rows that the network learned and is
judged by the same held-out rows and the same measure. The network stays only if its error there is
lower. Otherwise an ordinary linear layer takes its place, and all that is done with a network can
be done with it. Members are judged together, each on the rows that it held out.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import Tensor, nn

from quadric.models import create
from quadric.tables.jobs import Job, Rows
from quadric.tables.losses import LOGISTIC, SOFTMAX, SQUARED
from quadric.tables.training import FORWARD_ROWS, find_caps, held_out_losses

RIDGE, LOGISTIC_REGRESSION = "ridge regression", "logistic regression"

COLUMNS, ROWS = 500, 20_000
"""No linear model for more columns; of more rows it learns this many, evenly taken."""

STRENGTHS = np.logspace(-3, 3, 13)
"""Of ridge regression; leave-one-out errors choose."""

INVERSE_STRENGTHS = (0.01, 0.1, 1.0)
"""Of logistic regression; the held-out rows choose, as they choose the epoch of a network."""

Judged = tuple[float, float]
"""The held-out error and the score."""


@dataclass(frozen=True)
class LinearResult:
    """How a linear model did beside the network.

    Attributes:
        networks: what takes the place of the members; empty if they stay.
        name: of the linear model.
        score: its validation score.
        said: a sentence on both errors; empty if there was no linear model.
        learned: whether the one that stays is no worse than a constant on the held-out rows.
        seconds: what this took.
    """

    networks: list[nn.Sequential]
    name: str = ""
    score: float = 0.0
    said: str = ""
    learned: bool = True
    seconds: float = 0.0


def beside(jobs: Sequence[Job], wanted: bool) -> LinearResult:
    """Judges the trained networks of the members of an estimator beside linear ones."""
    begin = time.perf_counter()
    if any(job.validation is None for job in jobs) or jobs[0].loss not in _NAMES:
        return LinearResult([])
    own = fmean(_judge(job, _outputs(job.network, job))[0] for job in jobs)
    constant = fmean(_judge(job, _constant(job))[0] for job in jobs)
    models = [_linear(job) for job in jobs] if wanted and _is_cheap(jobs[0]) else [None]
    found = [model for model in models if model is not None]
    if len(found) < len(models):
        return LinearResult([], learned=own <= constant, seconds=time.perf_counter() - begin)
    error, score = (fmean(column) for column in zip(*(judged for _, judged in found), strict=True))
    name, stays = _NAMES[jobs[0].loss], own < error
    end = "the network is kept" if stays else "it takes the network's place"
    return LinearResult(
        [] if stays else [network for network, _ in found],
        name,
        score,
        f"held-out error {own:.4g}, that of {name} {error:.4g}: {end}",
        min(own, error) <= constant,
        time.perf_counter() - begin,
    )


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


def _linear(job: Job) -> tuple[nn.Sequential, Judged] | None:
    """The linear model of these rows as a network; None if it cannot be computed."""
    step = -(-len(job.train.inputs) // ROWS)
    X, y, weights = (tensor[::step].cpu().double().numpy() for tensor in job.train)
    weights = weights / weights.mean()
    tried = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models that do not converge: they are judged
        try:
            for fitted in (
                _ridge(X, y, weights) if job.loss is SQUARED else _logistic(X, y, weights)
            ):
                network = _as_network(fitted, job)
                tried.append((network, _judge(job, _outputs(network, job))))
        except (np.linalg.LinAlgError, ValueError):
            return None
    best = min(tried, key=lambda each: each[1][0])
    return best if np.isfinite(best[1][0]) else None


def _ridge(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> list[Any]:
    return [RidgeCV(STRENGTHS).fit(X, y, weights)]


def _logistic(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> list[Any]:
    return [
        LogisticRegression(C=inverse, max_iter=200, tol=1e-3).fit(X, y.astype(int), weights)
        for inverse in INVERSE_STRENGTHS
    ]


def _as_network(fitted: Any, job: Job) -> nn.Sequential:
    own = next(job.network.parameters())
    network = linear_network(job.train.inputs.shape[1], _width(job)).to(own)
    layer: Any = network[0]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(fitted.coef_).view_as(layer.weight))
        layer.bias.copy_(torch.tensor(fitted.intercept_).view_as(layer.bias))
    return network
