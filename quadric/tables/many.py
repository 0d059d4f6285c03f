"""Fitting several estimators at once: networks of one shape train as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from quadric.errors import InputError
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.jobs import Outcome, merge
from quadric.tables.training import EpochDone, train

E = TypeVar("E", bound=QuadraticNetwork)


def fit_many(
    estimators: Sequence[E],
    data: Sequence[tuple[Any, ...]],
    *,
    on_fit: Callable[[int, Outcome], None] | None = None,
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
        on_fit: called with an estimator's position and outcome as soon as it is fitted; an
            estimator whose training diverged is then not fitted, and does not stop the others.
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
    made = [e.prepare_fit(*table) for e, table in zip(estimators, data, strict=True)]
    owners = [i for i, jobs in enumerate(made) for _ in jobs]
    found: list[dict[int, Outcome]] = [{} for _ in estimators]

    def finish(position: int, outcome: Outcome) -> None:
        i = owners[position]
        found[i][position] = outcome
        if on_fit is not None and len(found[i]) == len(made[i]):
            outcomes = _in_order(found[i])
            whole = merge(outcomes)
            if whole.usable:
                estimators[i].end_fit(outcomes)
            else:
                del estimators[i].module_
            on_fit(i, whole)

    every = [job for jobs in made for job in jobs]
    train(every, on_finish=finish, on_epoch=on_epoch, max_stack=max_stack)
    if on_fit is None:
        for estimator, outcomes in zip(estimators, found, strict=True):
            estimator.end_fit(_in_order(outcomes))
    return list(estimators)


def _in_order(outcomes: dict[int, Outcome]) -> list[Outcome]:
    """The outcomes of members, whichever was ready first."""
    return [outcomes[position] for position in sorted(outcomes)]
