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
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, r2_score, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold

from quadric import provenance
from quadric.counting.cost import cost
from quadric.data.columns import UserTable
from quadric.errors import InputError
from quadric.nn.layer import QuadraticLayer
from quadric.share import quadratic_share
from quadric.sklearn.comparison.models import MAX_ROWS, Contender, Plan, count_baseline
from quadric.sklearn.comparison.preparation import prepare
from quadric.sklearn.comparison.records import Fit, Records
from quadric.sklearn.estimators import QuadraticNetwork
from quadric.sklearn.many import fit_many
from quadric.sklearn.modules import TableRegressor
from quadric.sklearn.training import Outcome

ROWS_PER_FOLD = 4
"""A fold with fewer rows says nothing about an error."""

PREPARED_BYTES = 2**29
"""Folds are prepared and trained together as long as they fit into this."""

# Rows for which a prediction is timed.
TIMED_ROWS = 1_000

FORMAT = 2
"""Of settings.json and fits.jsonl."""

Progress = Callable[[int, str, int], object]
"""Takes the number of new fits, what is being fitted, and the number of all fits."""


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
    }


def check_table(table: UserTable, folds: int) -> UserTable:
    """Takes out classes that are too rare.

    Args:
        table: what is learned from.
        folds: of the cross-validation.

    Returns:
        The table, with a note if rows were left out.

    Raises:
        InputError: if there are too few folds, rows or classes.
    """
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


def splits(table: UserTable, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of each fold; the same share of each class in all."""
    kind = KFold if table.task == "regression" else StratifiedKFold
    splitter = kind(folds, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros(len(table.target)), table.target))


def target_values(table: UserTable) -> np.ndarray:
    """The targets as the estimators take them: numbers, or the names of classes."""
    return table.target.to_numpy().astype(np.float64 if table.task == "regression" else str)


def count_outputs(table: UserTable) -> int:
    """Outputs of a network: one for a number or two classes."""
    classes = table.target.nunique()
    return 1 if table.task == "regression" or classes == 2 else int(classes)


@dataclass
class Fold:
    """A fold's rows as numbers."""

    X_train: np.ndarray
    X_test: np.ndarray
    y_train: np.ndarray
    y_test: np.ndarray


def run_fits(
    table: UserTable,
    plan: Plan,
    *,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Records:
    """Fits every model on every fold; what the directory already holds is not fitted again.

    Args:
        table: checked by `check_table`.
        plan: what is compared.
        directory: where the fits are kept; None for one under runs/compare.
        progress: called with the number of new fits, what is being fitted, and the number of all.

    Returns:
        All fits.

    Raises:
        InputError: if the directory holds something else.
    """
    records = Records(settings(plan, table), table.name, directory)
    runner = _Runner(plan, records, progress, table)
    runner.tell(len(records.fits), "")
    for group in runner.groups():
        for contender in plan.contenders:
            runner.fit_networks(contender, group)
        if plan.with_baselines:
            for number, fold in group.items():
                runner.fit_baselines(number, fold)
    return records


class _Runner:
    """Fits what is not in the records yet."""

    def __init__(
        self, plan: Plan, records: Records, progress: Progress | None, table: UserTable
    ) -> None:
        self.plan, self.records, self.progress, self.table = plan, records, progress, table
        self.total = plan.folds * sum(plan.starts().values())

    def tell(self, done: int, what: str) -> None:
        if self.progress is not None:
            self.progress(done, what, self.total)

    def missing(self, label: str) -> list[tuple[int, int]]:
        """The folds and seeds of a model that are not fitted yet."""
        starts = self.plan.starts()[label]
        every = [(fold, seed) for fold in range(self.plan.folds) for seed in range(starts)]
        return [key for key in every if (label, *key) not in self.records.fits]

    def groups(self) -> Iterator[dict[int, Fold]]:
        """The folds that lack a fit, several at once as far as memory goes."""
        parts = splits(self.table, self.plan.folds, self.plan.seed)
        y = target_values(self.table)
        group: dict[int, Fold] = {}
        used = 0
        for number in sorted({f for label in self.plan.starts() for f, _ in self.missing(label)}):
            train, test = parts[number]
            fold = Fold(*prepare(self.table, train, test), y[train], y[test])
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

        def epoch(number: int, left: int) -> None:
            self.tell(0, f"{label} networks, epoch {number}, {left} left")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit_many(estimators, data, on_fit=done, on_epoch=epoch)

    def fit_baselines(self, number: int, fold: Fold) -> None:
        """Fits the baselines that one fold lacks."""
        seed = self.plan.seed + number
        for label, model in self.plan.baselines(len(fold.X_train), seed).items():
            if (number, 0) not in self.missing(label):
                continue
            self.tell(0, f"{label}, fold {number + 1}")
            X, y = fold.X_train, fold.y_train
            limit = MAX_ROWS.get(label, len(X))
            if len(X) > limit:
                chosen = np.random.default_rng(seed).choice(len(X), limit, replace=False)
                X, y = X[chosen], y[chosen]
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(X, y)
            seconds = time.perf_counter() - start
            found = self._measure(model, fold) | {"params": count_baseline(model)}
            self._add(Fit(label, number, 0, "ok", seconds=seconds, **found))

    def _measure(self, model: Any, fold: Fold) -> dict[str, Any]:
        error, score = measure(self.plan.task, fold.y_test, model.predict(fold.X_test))
        return {
            "error": error,
            "score": score,
            "predict_seconds": predict_seconds(model, fold.X_test),
            "columns": fold.X_train.shape[1],
        }

    def _add(self, fit: Fit) -> None:
        self.records.add(dataclasses.replace(fit, peak_memory_bytes=provenance.peak_memory()))
        self.tell(1, fit.model)


def _network_facts(model: QuadraticNetwork, fold: Fold) -> dict[str, Any]:
    """What is known of a fitted network besides its error."""
    module = model.module_
    rows = torch.tensor(fold.X_test[:TIMED_ROWS]).to(module.input_mean.dtype)
    share = None
    if any(isinstance(layer, QuadraticLayer) for layer in module.network):
        report = quadratic_share(module.network, [module.standardized(rows)])
        share = {name: layer.share for name, layer in report.items()}
    if isinstance(module, TableRegressor):
        gaps = (fold.y_test - model.predict(fold.X_test)) / float(module.target_scale)
        loss = float(np.mean(gaps**2))
    else:
        probabilities = model.predict_proba(fold.X_test)
        loss = float(log_loss(fold.y_test, probabilities, labels=model.classes_))
    return {
        "params": model.n_parameters_,
        "macs": cost(module.network, rows[:1]).macs,
        "quadratic_share": share,
        "loss": loss,
    }


def measure(task: str, truth: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Error and score: root mean square error and R^2, or share of wrong classes and accuracy."""
    if task == "classification":
        accuracy = float((truth == predicted).mean())
        return 1 - accuracy, accuracy
    return float(root_mean_squared_error(truth, predicted)), float(r2_score(truth, predicted))


def predict_seconds(model: Any, X: np.ndarray) -> float:
    """The time of 1,000 predictions, best of three."""
    rows = X[np.arange(TIMED_ROWS) % len(X)]
    return min(timeit.repeat(lambda: model.predict(rows), number=1, repeat=3))
