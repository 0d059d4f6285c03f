"""The fits of a comparison: every model on every fold, each written down as soon as it is done."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning

from quadric.counting.cost import cost
from quadric.data.columns import UserTable
from quadric.data.preparation import prepare
from quadric.errors import InputError
from quadric.layers import QuadraticLayer
from quadric.share import quadratic_share
from quadric.support import provenance
from quadric.tables.comparison.estimate import Estimate
from quadric.tables.comparison.measures import measure_classes, measure_numbers
from quadric.tables.comparison.models import Contender, Plan
from quadric.tables.comparison.opponents import Opponent, count_parameters, native_frames
from quadric.tables.comparison.records import Fit, Records
from quadric.tables.comparison.splitting import splits
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.many import fit_many
from quadric.tables.modules import TableRegressor
from quadric.tables.training import Outcome

ROWS_PER_FOLD = 4
"""A fold with fewer rows says nothing about an error."""

PREPARED_BYTES = 2**29
"""Folds are prepared and trained together as long as they fit into this."""

# Rows for which a prediction is timed.
TIMED_ROWS = 1_000

FORMAT = 3
"""Of settings.json and fits.jsonl."""

Progress = Callable[[int, str, int], object]
"""Takes the number of new fits, what is being fitted, and the number of all fits."""

ModelDone = Callable[[Records, str], object]
"""Takes the fits so far, and the label of a model that has all of its own."""


def settings(plan: Plan, table: UserTable) -> dict[str, Any]:
    """All that decides the numbers of a comparison on this table."""
    digest = hashlib.sha256()
    for part in (table.inputs, table.target.to_frame()):
        digest.update(repr([(str(c), str(part[c].dtype)) for c in part.columns]).encode())
        digest.update(pd.util.hash_pandas_object(part, index=False).to_numpy().tobytes())
    kept = ("task", "activation", "max_iter", "folds", "seeds", "seed")
    return {name: getattr(plan, name) for name in kept} | {
        "format": FORMAT,
        "data": digest.hexdigest(),
        "dataset": table.name,
        "rows": len(table.target),
        "target": str(table.target.name),
        "kinds": dict(table.kinds),
        "neurons": [c.label for c in plan.contenders],
        "hidden": list(plan.hidden),
        "baselines": plan.with_baselines,
        "split": str(plan.split),
    }


def check_table(table: UserTable, folds: int) -> UserTable:
    """Takes out classes that are too rare."""
    if folds < 2:
        raise InputError(f"folds must be >= 2, got {folds}: 5 is usual")
    _check_rows(table, folds)
    if table.task != "classification":
        return table
    counts = table.target.value_counts()
    rare = counts[counts < folds]
    if not len(rare):
        return table
    if len(counts) - len(rare) < 2:
        listed = ", ".join(f"{count} of {label!r}" for label, count in counts.head(5).items())
        more = f" and {len(counts) - 5:,} more" if len(counts) > 5 else ""
        raise InputError(
            f"the target {table.target.name!r} must have at least 2 classes with {folds} rows, one "
            f"per fold, got {listed}{more}: give more rows or fewer --folds"
        )
    kept = (~table.target.isin(rare.index)).to_numpy()
    names = ", ".join(repr(str(label)) for label in rare.index[:10])
    note = f"{rare.sum():,} rows of classes with fewer than {folds} rows are left out: {names}"
    table = dataclasses.replace(
        table,
        inputs=table.inputs[kept].reset_index(drop=True),
        target=table.target[kept].reset_index(drop=True),
        groups=None if table.groups is None else table.groups[kept].reset_index(drop=True),
        notes=[*table.notes, note],
    )
    _check_rows(table, folds)
    return table


def _check_rows(table: UserTable, folds: int) -> None:
    rows = len(table.target)
    if rows < ROWS_PER_FOLD * folds:
        raise InputError(
            f"{table.name} must have at least {ROWS_PER_FOLD} rows per fold, got {rows} rows for "
            f"{folds} folds: give more rows or fewer --folds"
        )


def target_values(table: UserTable) -> np.ndarray:
    """The targets as the estimators take them: numbers, or the names of classes."""
    return table.target.to_numpy().astype(np.float64 if table.task == "regression" else str)


def count_outputs(table: UserTable) -> int:
    """Outputs of a network: one for a number or two classes."""
    classes = table.target.nunique()
    return 1 if table.task == "regression" or classes == 2 else int(classes)


@dataclass
class Fold:
    """A fold's rows as numbers; classes are numbered from 0, as far as they can be learned."""

    table: UserTable
    train: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        self.X_train, self.X_test = prepare(self.table, self.train, self.test)
        y = target_values(self.table)
        self.y_train, self.y_test = y[self.train], y[self.test]
        if self.table.task == "classification":
            learned, self.y_train = np.unique(self.y_train, return_inverse=True)
            codes = {label: code for code, label in enumerate(learned)}
            self.y_test = np.asarray([codes.get(label, len(learned)) for label in self.y_test])

    @cached_property
    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Training and test rows for models that take holes and categories."""
        return native_frames(self.table, self.train, self.test)

    def rows(self, native: bool) -> tuple[Any, Any]:
        """Training and test rows."""
        return self.frames if native else (self.X_train, self.X_test)


def run_fits(
    table: UserTable,
    plan: Plan,
    *,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    on_model: ModelDone | None = None,
) -> Records:
    """Fits every model on every fold; what the directory already holds is not fitted again."""
    parts = splits(table, plan.folds, plan.seed, plan.split)
    records = Records(settings(plan, table), table.name, directory)
    runner = _Runner(plan, records, progress, on_model, table)
    runner.tell(len(runner.known()), "")
    for group in runner.groups(parts):
        opponents = plan.opponents(max(len(fold.X_train) for fold in group.values()))
        # First those that take moments, so that there is soon something to see.
        for opponent in [o for o in opponents if o.cost <= 1]:
            runner.fit_opponent(opponent.label, group)
        for contender in plan.contenders:
            runner.fit_networks(contender, group)
        for opponent in sorted((o for o in opponents if o.cost > 1), key=lambda o: o.cost):
            runner.fit_opponent(opponent.label, group)
    return records


class _Runner:
    """Fits what is not in the records yet."""

    def __init__(
        self,
        plan: Plan,
        records: Records,
        progress: Progress | None,
        on_model: ModelDone | None,
        table: UserTable,
    ) -> None:
        self.plan, self.records, self.progress, self.table = plan, records, progress, table
        self.on_model = on_model
        self.total = plan.folds * sum(plan.starts().values())
        left = {label: len(self.missing(label)) for label in plan.starts()}
        self.estimate = Estimate(plan.costs(count_outputs(table)), left)

    def tell(self, done: int, what: str) -> None:
        if self.progress is not None:
            self.progress(done, ", ".join(filter(None, [what, self.estimate.words()])), self.total)

    def known(self) -> list[tuple[str, int, int]]:
        """The fits of this plan that the records hold; there may be some of other opponents."""
        return [key for key in self.records.fits if key[0] in self.plan.starts()]

    def missing(self, label: str) -> list[tuple[int, int]]:
        """The folds and seeds of a model that are not fitted yet."""
        starts = self.plan.starts()[label]
        every = [(fold, seed) for fold in range(self.plan.folds) for seed in range(starts)]
        return [key for key in every if (label, *key) not in self.records.fits]

    def groups(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[dict[int, Fold]]:
        """The folds that lack a fit, several at once as far as memory goes."""
        group: dict[int, Fold] = {}
        used = 0
        for number in sorted({f for label in self.plan.starts() for f, _ in self.missing(label)}):
            fold = Fold(self.table, *parts[number])
            group[number] = fold
            size = fold.X_train.nbytes + fold.X_test.nbytes
            used += size
            if used + size > PREPARED_BYTES:
                yield group
                group, used = {}, 0
        if group:
            yield group

    def fit_networks(self, contender: Contender, group: dict[int, Fold]) -> None:
        """Fits a contender on all folds and seeds of a group, as one stack."""
        label, plan = contender.label, self.plan
        keys = [(fold, seed) for fold, seed in self.missing(label) if fold in group]
        if not keys:
            return
        outputs = count_outputs(self.table)
        estimators, data = [], []
        for number, seed in keys:
            X = group[number].X_train
            data.append((X, group[number].y_train))
            # Networks of one fold and seed have the same start, order and held-out rows.
            start = plan.seed + 1000 * seed + number
            estimators.append(plan.estimator(contender, X.shape[1], outputs, len(X), start))

        def done(position: int, outcome: Outcome) -> None:
            number, seed = keys[position]
            model, fold = estimators[position], group[number]
            found: dict[str, Any] = {
                "seconds": outcome.seconds,
                "epochs": len(outcome.losses),
                "widths": model.widths(),
            }
            if outcome.usable:
                found |= _network_facts(model, fold) | self._measure(model, fold)
            self._add(Fit(label, number, seed, "ok" if outcome.usable else "diverged", **found))

        most = max(plan.epochs(len(X)) for X, _ in data)

        def epoch(number: int, left: int) -> None:
            # Early stopping ends most fits long before the last epoch.
            self.estimate.going_on(label, left, number / (0.3 * most))
            self.tell(0, f"{label} networks, epoch {number}, {left} left")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit_many(estimators, data, on_fit=done, on_epoch=epoch)

    def fit_opponent(self, label: str, group: dict[int, Fold]) -> None:
        """Fits an opponent on the folds that lack it."""
        for number in [number for number, _ in self.missing(label) if number in group]:
            fold, seed = group[number], self.plan.seed + number
            every = self.plan.opponents(len(fold.X_train))
            opponent = next(o for o in every if o.label == label)
            self.tell(0, f"{label}, fold {number + 1}")
            self._add(self._fit_opponent(opponent, number, fold, seed))

    def _fit_opponent(self, opponent: Opponent, number: int, fold: Fold, seed: int) -> Fit:
        X, X_test = fold.rows(opponent.native)
        y = fold.y_train
        limit = opponent.max_rows or len(X)
        if len(X) > limit:
            chosen = np.random.default_rng(seed).choice(len(X), limit, replace=False)
            X, y = X[chosen], y[chosen]
        categories = list(X.select_dtypes("category")) if opponent.native else []
        model = opponent.make(seed, categories)
        start = time.perf_counter()
        # Other libraries have advice of their own, which nobody here can follow.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
            seconds = time.perf_counter() - start
            found = self._measure(model, fold, X_test) | {"params": count_parameters(model)}
        return Fit(opponent.label, number, 0, "ok", seconds=seconds, **found)

    def _measure(self, model: Any, fold: Fold, X: Any = None) -> dict[str, Any]:
        X = fold.X_test if X is None else X
        if self.plan.task == "regression":
            found = measure_numbers(fold.y_test, model.predict(X))
        else:
            found = measure_classes(model, X, fold.y_test)
        return {
            **found,
            "predict_seconds": predict_seconds(model, X),
            "columns": fold.X_train.shape[1],
        }

    def _add(self, fit: Fit) -> None:
        self.records.add(dataclasses.replace(fit, peak_memory_bytes=provenance.peak_memory()))
        self.estimate.fitted(fit.model)
        self.tell(1, fit.model)
        if self.on_model is not None and not self.missing(fit.model):
            self.on_model(self.records, fit.model)


def _network_facts(model: QuadraticNetwork, fold: Fold) -> dict[str, Any]:
    """What is known of a fitted network besides its errors."""
    module = model.module_
    rows = torch.tensor(fold.X_test[:TIMED_ROWS]).to(module.input_mean.dtype)
    facts: dict[str, Any] = {
        "params": model.n_parameters_,
        "macs": cost(module.network, rows[:1]).macs,
    }
    if any(isinstance(layer, QuadraticLayer) for layer in module.network):
        report = quadratic_share(module.network, [module.standardized(rows)])
        facts["quadratic_share"] = {name: layer.share for name, layer in report.items()}
    if isinstance(module, TableRegressor):
        gaps = (fold.y_test - model.predict(fold.X_test)) / float(module.target_scale)
        facts["loss"] = float(np.mean(gaps**2))
    return facts


def predict_seconds(model: Any, X: Any) -> float:
    """The time of 1,000 predictions, best of three."""
    chosen = np.arange(TIMED_ROWS) % len(X)
    rows = X.iloc[chosen] if isinstance(X, pd.DataFrame) else X[chosen]
    return min(timeit.repeat(lambda: model.predict(rows), number=1, repeat=3))
