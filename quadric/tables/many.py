"""Fitting several estimators at once: networks of one shape train as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from quadric.errors import InputError
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.jobs import FitRecord, merge
from quadric.tables.second_order import fit_jobs
from quadric.tables.training import EpochDone

E = TypeVar("E", bound=QuadraticNetwork)


def fit_many(
    estimators: Sequence[E],
    data: Sequence[tuple[Any, ...]],
    *,
    on_fit: Callable[[int, FitRecord], None] | None = None,
    on_epoch: EpochDone | None = None,
    max_stack: int | None = None,
) -> list[E]:
    """Fits estimators as `estimator.fit(X, y)` would, up to rounding, but faster.

    Folds, seeds and learning rates of one network have one shape and train together; estimators
    that differ in their widths, neuron or number of minibatches train in stacks of their own.

    Args:
        estimators: the estimators, which are fitted in place.
        data: the arguments of `fit` for each of them: (X, y), (X, y, sample_weight) or all four
            with the eval_set.
        on_fit: called with an estimator's position and record as soon as it is fitted; an
            estimator whose training diverged is then left as it was, and does not stop the others.
        on_epoch: called after each epoch with its number and the networks left in the stack.
        max_stack: networks trained at once at most.

    Returns:
        The estimators.

    Raises:
        InputError: if an estimator has no data or is given twice; without `on_fit` also if a
            training does not stay finite.

    Examples:
        >>> import numpy as np
        >>> from quadric.sklearn import QuadraticRegressor
        >>> X = np.random.default_rng(0).normal(size=(300, 3))
        >>> models = [QuadraticRegressor((8,), tol=0.1, random_state=s) for s in range(4)]
        >>> _ = fit_many(models, [(X, X[:, 0] ** 2)] * 4)
        >>> len({round(m.best_loss_, 6) for m in models})
        4
    """
    if len(estimators) != len(data):
        raise InputError(
            f"each estimator needs its data, got {len(estimators)} estimators and {len(data)} "
            "tables: give one (X, y) each"
        )
    if len({id(estimator) for estimator in estimators}) < len(estimators):
        raise InputError("each estimator can be fitted once, got one twice: clone it")
    fresh = [estimator._copied() for estimator in estimators]
    made = [e._make_jobs(*table) for e, table in zip(fresh, data, strict=True)]
    owners = [i for i, jobs in enumerate(made) for _ in jobs]
    ready: list[dict[int, FitRecord]] = [{} for _ in estimators]

    def finish(position: int, record: FitRecord) -> None:
        if record.interrupted:
            raise KeyboardInterrupt
        i = owners[position]
        ready[i][position] = record
        if on_fit is not None and len(ready[i]) == len(made[i]):
            records = _in_order(ready[i])
            whole = merge(records)
            if whole.usable:
                fresh[i]._take_records(records)
                estimators[i]._become(fresh[i])
            on_fit(i, merge(records))

    every = [job for jobs in made for job in jobs]
    fit_jobs(every, on_finish=finish, on_epoch=on_epoch, max_stack=max_stack)
    if on_fit is None:
        for each, records in zip(fresh, ready, strict=True):
            each._take_records(_in_order(records))
        for estimator, each in zip(estimators, fresh, strict=True):
            estimator._become(each)
    return list(estimators)


def _in_order(records: dict[int, FitRecord]) -> list[FitRecord]:
    """The records of members, whichever was ready first."""
    return [records[position] for position in sorted(records)]
