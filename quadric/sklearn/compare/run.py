"""The comparison: every model on every fold, each fit written down as soon as it is done."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold

from quadric import provenance
from quadric.counting.cost import cost
from quadric.data.columns import UserTable
from quadric.errors import InputError
from quadric.nn.layer import QuadraticLayer
from quadric.share import quadratic_share
from quadric.sklearn.compare.models import Baseline, Contender, Plan, baselines
from quadric.sklearn.compare.preparation import prepare
from quadric.sklearn.compare.records import Fit, Records, fingerprint
from quadric.sklearn.estimators import QuadraticNetwork
from quadric.sklearn.many import fit_many
from quadric.sklearn.training import Outcome

ROWS_A_FOLD = 4
"""A fold needs so many rows to say anything about an error."""

PREPARED_BYTES = 2**29
"""Folds are prepared together, to be trained together, as long as they fit into this."""

# Rows for which a measured prediction is timed.
TIMED_ROWS = 1_000

Progress = Callable[[int, str], None]
FORMAT = 2


@dataclass(frozen=True)
class Options:
    """What is compared, and how.

    Attributes:
        contenders: the networks, linear first.
        plan: how they are made and trained.
        folds: of the cross-validation.
        seeds: starts of each network on each fold; their errors are averaged.
        seed: of the split, and the first of the starts.
        with_baselines: whether scikit-learn's own models take part.
    """

    contenders: tuple[Contender, ...]
    plan: Plan
    folds: int = 5
    seeds: int = 3
    seed: int = 0
    with_baselines: bool = True

    def settings(self, table: UserTable) -> dict[str, Any]:
        """All that decides the numbers of a comparison on this table."""
        return {
            "format": FORMAT,
            "data": fingerprint(table),
            "dataset": table.name,
            "rows": len(table.target),
            "target": str(table.target.name),
            "task": table.task,
            "kinds": dict(table.kinds),
            "neurons": [c.label for c in self.contenders],
            "hidden": list(self.plan.hidden),
            "activation": self.plan.activation,
            "max_iter": self.plan.max_iter,
            "folds": self.folds,
            "seeds": self.seeds,
            "seed": self.seed,
            "baselines": self.with_baselines,
        }

    def models(self) -> list[str]:
        """The labels of all that take part."""
        labels = [c.label for c in self.contenders]
        if self.with_baselines:
            labels += [baseline.label for baseline in baselines(self.plan.task)]
        return labels

    def fits(self) -> int:
        """How many fits that makes."""
        networks = len(self.contenders) * self.folds * self.seeds
        return networks + (len(baselines(self.plan.task)) * self.folds * self.with_baselines)


def check_table(table: UserTable, folds: int) -> UserTable:
    """The table without classes that are too rare; refuses one that is too short."""
    if folds < 2:
        raise InputError(f"folds must be >= 2, got {folds}: 5 is usual")
    _check_rows(table, folds)
    table = _without_rare_classes(table, folds)
    _check_rows(table, folds)
    return table


def _check_rows(table: UserTable, folds: int) -> None:
    rows = len(table.target)
    if rows < ROWS_A_FOLD * folds:
        raise InputError(
            f"{table.name} must have at least {ROWS_A_FOLD} rows a fold, got {rows} rows for "
            f"{folds} folds: give more rows or fewer --folds"
        )


def _listed(counts: pd.Series) -> str:
    """The first classes with their numbers of rows."""
    shown = ", ".join(f"{count} of {label!r}" for label, count in counts.head(5).items())
    return shown + (f" and {len(counts) - 5:,} more" if len(counts) > 5 else "")


def _without_rare_classes(table: UserTable, folds: int) -> UserTable:
    if table.task != "classification":
        return table
    counts = table.target.value_counts()
    rare = counts[counts < folds]
    if not len(rare):
        return table
    if len(counts) - len(rare) < 2:
        raise InputError(
            f"the target {table.target.name!r} must have at least 2 classes with {folds} rows, one "
            f"a fold, got {_listed(counts)}: give more rows or fewer --folds"
        )
    kept = (~table.target.isin(rare.index)).to_numpy()
    note = (
        f"{int(rare.sum()):,} rows of classes with fewer than {folds} rows are left out: "
        + ", ".join(repr(str(label)) for label in rare.index[:10])
    )
    return UserTable(
        table.name,
        table.inputs[kept].reset_index(drop=True),
        table.target[kept].reset_index(drop=True),
        table.kinds,
        table.task,
        [*table.notes, note],
    )


def splits(table: UserTable, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of each fold; the same share of each class in all."""
    kind = KFold if table.task == "regression" else StratifiedKFold
    splitter = kind(folds, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros(len(table.target)), table.target))


@dataclass
class Fold:
    """A fold's rows as numbers."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.X_train.nbytes + self.X_test.nbytes


def compare(
    table: UserTable,
    options: Options,
    *,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> Records:
    """Fits every model on every fold; what the directory already holds is not fitted again.

    Args:
        table: checked by `check_table`.
        options: what is compared.
        directory: where the fits are kept; None for one under runs/compare.
        progress: called with the number of new fits and what is being fitted.
    """
    records = Records(options.settings(table), table.name, directory)
    tell = progress or (lambda done, what: None)
    tell(len(records.fits), "")
    parts = splits(table, options.folds, options.seed)
    y = _targets(table)
    outputs = _outputs(table)

    def fold(number: int) -> Fold:
        train, test = parts[number]
        return Fold(*_ordered(prepare(table, train, test), y[train], y[test]))

    runner = _Runner(options, records, tell, outputs)
    pending = runner.pending_folds()
    for group in _groups(pending, fold):
        for contender in options.contenders:
            runner.networks(contender, group)
        if options.with_baselines:
            for baseline in baselines(table.task):
                for number, data in group.items():
                    runner.baseline(baseline, number, data)
    return records


def _ordered(
    prepared: tuple[np.ndarray, np.ndarray], y_train: np.ndarray, y_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return prepared[0], y_train, prepared[1], y_test


def _targets(table: UserTable) -> np.ndarray:
    values = table.target.to_numpy()
    return values.astype(np.float64) if table.task == "regression" else values.astype(str)


def _outputs(table: UserTable) -> int:
    """Outputs of a network: one for a number or two classes."""
    classes = table.target.nunique()
    return 1 if table.task == "regression" or classes == 2 else int(classes)


def _groups(numbers: Sequence[int], fold: Callable[[int], Fold]) -> Iterator[dict[int, Fold]]:
    """Folds that are prepared, and then trained, together."""
    group: dict[int, Fold] = {}
    for number in numbers:
        group[number] = fold(number)
        if sum(data.nbytes for data in group.values()) + group[number].nbytes > PREPARED_BYTES:
            yield group
            group = {}
    if group:
        yield group


class _Runner:
    """Fits what is not in the records yet."""

    def __init__(self, options: Options, records: Records, tell: Progress, outputs: int) -> None:
        self.options, self.records, self.tell, self.outputs = options, records, tell, outputs

    def pending_folds(self) -> list[int]:
        """The folds that lack a fit."""
        wanted = [
            (label, fold, seed)
            for label in self.options.models()
            for fold in range(self.options.folds)
            for seed in self._seeds(label)
        ]
        return sorted({fold for label, fold, seed in wanted if self._lacks(label, fold, seed)})

    def _seeds(self, label: str) -> range:
        networks = {c.label for c in self.options.contenders}
        return range(self.options.seeds if label in networks else 1)

    def _lacks(self, label: str, fold: int, seed: int) -> bool:
        return (label, fold, seed) not in self.records.fits

    def networks(self, contender: Contender, group: dict[int, Fold]) -> None:
        """Fits a contender on all folds and seeds of a group, as one stack."""
        label = contender.label
        keys = [
            (fold, seed)
            for fold in group
            for seed in self._seeds(label)
            if self._lacks(label, fold, seed)
        ]
        if not keys:
            return
        estimators = [
            self.options.plan.estimator(
                contender,
                group[fold].X_train.shape[1],
                self.outputs,
                len(group[fold].X_train),
                # Networks of one fold and seed have the same start, order and held-out rows.
                self.options.seed + 1000 * seed + fold,
            )
            for fold, seed in keys
        ]
        data = [(group[fold].X_train, group[fold].y_train) for fold, _ in keys]

        def done(position: int, outcome: Outcome) -> None:
            fold, seed = keys[position]
            self.records.add(
                _network_fit(label, fold, seed, estimators[position], outcome, group[fold])
            )
            self.tell(1, f"{label} networks")

        def epoch(number: int, left: int) -> None:
            self.tell(0, f"{label} networks, epoch {number}, {left} left")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit_many(estimators, data, on_fit=done, on_epoch=epoch)

    def baseline(self, baseline: Baseline, fold: int, data: Fold) -> None:
        """Fits a baseline on one fold."""
        if not self._lacks(baseline.label, fold, 0):
            return
        self.tell(0, f"{baseline.label}, fold {fold + 1}")
        seed = self.options.seed + fold
        rows = len(data.X_train)
        X, y = data.X_train, data.y_train
        if baseline.max_rows is not None and rows > baseline.max_rows:
            chosen = np.random.default_rng(seed).choice(rows, baseline.max_rows, replace=False)
            X, y = X[chosen], y[chosen]
        model = baseline.make(self.options.plan, len(X), seed)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        seconds = time.perf_counter() - start
        error, score = measure(self.options.plan.task, data.y_test, model.predict(data.X_test))
        self.records.add(
            Fit(
                model=baseline.label,
                fold=fold,
                seed=0,
                status="ok",
                error=error,
                score=score,
                params=baseline.count(model),
                macs=None,
                seconds=seconds,
                predict_seconds=predict_seconds(model, data.X_test),
                columns=data.X_train.shape[1],
                peak_memory_bytes=provenance.peak_memory(),
            )
        )
        self.tell(1, baseline.label)


def _network_fit(
    label: str, fold: int, seed: int, model: QuadraticNetwork, outcome: Outcome, data: Fold
) -> Fit:
    columns = data.X_train.shape[1]
    error = score = loss = share = seconds = None
    params = macs = None
    if outcome.usable:
        predicted = model.predict(data.X_test)
        task = "classification" if hasattr(model, "classes_") else "regression"
        error, score = measure(task, data.y_test, predicted)
        if task == "regression":
            scale = float(model.module_.get_buffer("target_scale"))
            loss = None if error is None else (error / scale) ** 2
        else:
            loss = float(
                log_loss(data.y_test, model.predict_proba(data.X_test), labels=model.classes_)
            )
        seconds = predict_seconds(model, data.X_test)
        params = model.n_parameters_
        macs = cost(model.module_.network, model.module_.input_mean.new_zeros(1, columns)).macs
        share = _share(model, data.X_test)
    return Fit(
        model=label,
        fold=fold,
        seed=seed,
        status="ok" if outcome.usable else "diverged",
        error=error,
        score=score,
        params=params,
        macs=macs,
        seconds=outcome.seconds,
        predict_seconds=seconds,
        epochs=len(outcome.losses),
        widths=model.widths(),
        quadratic_share=share,
        columns=columns,
        peak_memory_bytes=provenance.peak_memory(),
        loss=loss,
    )


def _share(model: QuadraticNetwork, X: np.ndarray) -> dict[str, float] | None:
    module = model.module_
    if not any(isinstance(layer, QuadraticLayer) for layer in module.network):
        return None
    rows = torch.tensor(X[:TIMED_ROWS]).to(module.input_mean.dtype)
    report = quadratic_share(module.network, [module.standardized(rows)])
    return {name: layer.share for name, layer in report.items()}


def measure(task: str, truth: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Error and score: root mean square error and R^2, or share of wrong classes and accuracy."""
    if task == "classification":
        accuracy = float((truth == predicted).mean())
        return 1 - accuracy, accuracy
    square = float(np.mean((truth - predicted.astype(np.float64)) ** 2))
    variance = float(np.var(truth))
    return square**0.5, 1 - square / variance if variance > 0 else 0.0


def predict_seconds(model: Any, X: np.ndarray) -> float:
    """The time of 1,000 predictions, best of three."""
    rows = X[np.arange(TIMED_ROWS) % len(X)]
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        model.predict(rows)
        best = min(best, time.perf_counter() - start)
    return best
