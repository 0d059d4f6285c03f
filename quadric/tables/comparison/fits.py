"""The fits of a comparison: every model on every fold, each written down as soon as it is done.

A killed comparison goes on with the fits it has. A directory belongs to one comparison: the same
data, target, networks and folds.
"""

from __future__ import annotations

import hashlib
import os
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from sklearn.exceptions import ConvergenceWarning

from quadric.counting.cost import cost
from quadric.data.preparation import TablePreparation
from quadric.data.user_table import UserTable
from quadric.errors import DroppedColumnWarning
from quadric.layers import QuadraticLayer
from quadric.share import quadratic_share
from quadric.support import provenance
from quadric.support.locks import locked
from quadric.tables.comparison.baselines import Baseline, fitted_parameters
from quadric.tables.comparison.fit_log import FORMAT, FitLog, Key
from quadric.tables.comparison.measures import measure_classes, measure_numbers
from quadric.tables.comparison.plan import ComparisonPlan, Network
from quadric.tables.comparison.splitting import splits
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.jobs import FitRecord
from quadric.tables.many import fit_many
from quadric.tables.modules import TableRegressor

PREPARED_BYTES = 2**29
"""Folds are prepared and trained together as long as they fit into this."""

# Rows for which a prediction is timed.
TIMED_ROWS = 1_000

Progress = Callable[[int, str, int], object]
"""Takes the number of new fits, what is being fitted, and the number of all fits."""


def settings(plan: ComparisonPlan, table: UserTable) -> dict[str, Any]:
    """All that decides the numbers of a comparison on this table."""
    digest = hashlib.sha256()
    for part in (table.inputs, table.target.to_frame()):
        digest.update(repr([(str(c), str(part[c].dtype)) for c in part.columns]).encode())
        digest.update(pd.util.hash_pandas_object(part, index=False).to_numpy().tobytes())
    kept = ("task", "activation", "solver", "max_iter", "folds", "seeds", "seed")
    return {name: getattr(plan, name) for name in kept} | {
        "format": FORMAT,
        "data": digest.hexdigest(),
        "dataset": table.name,
        "rows": len(table.target),
        "target": str(table.target.name),
        "kinds": dict(table.kinds),
        "neurons": [network.label for network in plan.networks],
        "hidden": list(plan.hidden),
        "baselines": plan.with_baselines,
        "split": str(plan.split),
    }


def target_values(table: UserTable) -> np.ndarray:
    """The targets as the estimators take them: numbers, or the names of classes."""
    return table.target.to_numpy().astype(np.float64 if table.task == "regression" else str)


def count_outputs(table: UserTable) -> int:
    """Outputs of a network: one for a number or two classes."""
    classes = table.target.nunique()
    return 1 if table.task == "regression" or classes == 2 else int(classes)


@dataclass(frozen=True)
class Part:
    """The training and test rows of a fold; classes are numbered, those not learned are the last.

    Attributes:
        X_train: the columns of the table.
        y_train: numbers, or the numbers of classes.
        X_test: as X_train.
        y_test: as y_train.
        columns: of a network, after the preparation.
    """

    X_train: pd.DataFrame
    y_train: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray
    columns: int


def _part(table: UserTable, train: np.ndarray, test: np.ndarray) -> Part:
    y = target_values(table)
    y_train, y_test = y[train], y[test]
    if table.task == "classification":
        learned, y_train = np.unique(y_train, return_inverse=True)
        codes = {label: code for code, label in enumerate(learned)}
        y_test = np.asarray([codes.get(label, len(learned)) for label in y_test])
    X_train = table.inputs.iloc[train]
    columns = len(TablePreparation().fit(X_train, y_train).names_)
    return Part(X_train, y_train, table.inputs.iloc[test], y_test, columns)


def run_fits(
    table: UserTable,
    plan: ComparisonPlan,
    *,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    on_model: Callable[[FitLog, str], object] | None = None,
) -> FitLog:
    """Fits every model on every fold; what the directory already holds is not fitted again."""
    rows = splits(table, plan.folds, plan.seed, plan.split)
    log = FitLog(settings(plan, table), table.name, directory)
    busy = f"another comparison runs in {log.path}: wait for it, or name another --run-dir"
    with locked(log.path, busy, seconds=0):
        log.fits = log.read()
        _fit_all(_Runner(table, plan, log, progress, on_model), rows)
    return log


def _fit_all(runner: _Runner, rows: list[tuple[np.ndarray, np.ndarray]]) -> None:
    plan, log = runner.plan, runner.log
    # There may be fits of other models, which are not of this plan.
    runner.tell(sum(key[0] in plan.starts() for key in log.fits), "")
    for group in runner.groups(rows):
        if _is_spread():
            _fit_elsewhere(runner, group)
            continue
        baselines = plan.baselines(max(len(part.X_train) for part in group.values()))
        # First those that take moments, so that there is soon something to see.
        for baseline in [b for b in baselines if not b.slow]:
            runner.fit_baseline(baseline.label, group)
        for network in plan.networks:
            runner.fit_networks(network, group)
        for baseline in [b for b in baselines if b.slow]:
            runner.fit_baseline(baseline.label, group)


def _is_spread() -> bool:
    """Whether `joblib.parallel_config` names workers for the fits."""
    backend, jobs = get_active_backend()
    return bool((backend.default_n_jobs if jobs is None else jobs) != 1)


def _fit_elsewhere(runner: _Runner, group: dict[int, Part]) -> None:
    """Fits each model on each fold as a task of its own; what is done is written here at once."""
    table = replace(runner.table, inputs=runner.table.inputs.head(0))
    tasks = [
        delayed(_fit_apart)(
            _Runner(table, runner.plan, _Gathered(dict.fromkeys(runner.log.fits)), None, None),
            label, fold, part,
        )
        for fold, part in group.items()
        for label in runner.plan.starts()
        if any(key[0] == fold for key in runner.missing(label))
    ]  # fmt: skip
    for made in Parallel(return_as="generator_unordered")(tasks):
        for fit in made:
            if (fit["model"], fit["fold"], fit["seed"]) not in runner.log.fits:
                runner.note(fit)


def _fit_apart(runner: _Runner, label: str, fold: int, part: Part) -> list[dict[str, Any]]:
    networks = {network.label: network for network in runner.plan.networks}
    if label in networks:
        runner.fit_networks(networks[label], {fold: part})
    else:
        runner.fit_baseline(label, {fold: part})
    return [fit for fit in runner.log.fits.values() if fit is not None]


@dataclass
class _Gathered:
    """The fits of a worker; those that are done already are None."""

    fits: dict[Key, dict[str, Any] | None]

    def add(self, **fit: Any) -> None:
        """Keeps a fit."""
        self.fits[fit["model"], fit["fold"], fit["seed"]] = fit


@dataclass
class _Runner:
    """Fits what is not in the log yet."""

    table: UserTable
    plan: ComparisonPlan
    log: Any  # a FitLog, or what a worker gathers
    progress: Progress | None
    on_model: Callable[[FitLog, str], object] | None

    def tell(self, done: int, what: str) -> None:
        if self.progress is not None:
            total = self.plan.folds * sum(self.plan.starts().values())
            self.progress(done, what, total)

    def missing(self, label: str) -> list[tuple[int, int]]:
        """The folds and seeds of a model that are not fitted yet."""
        starts = self.plan.starts()[label]
        every = [(fold, seed) for fold in range(self.plan.folds) for seed in range(starts)]
        return [key for key in every if (label, *key) not in self.log.fits]

    def groups(self, rows: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[dict[int, Part]]:
        """The folds that lack a fit, several at once as far as memory goes."""
        group: dict[int, Part] = {}
        used = 0
        for fold in sorted({f for label in self.plan.starts() for f, _ in self.missing(label)}):
            part = _part(self.table, *rows[fold])
            group[fold] = part
            size = len(part.X_train) * part.columns * 8 * self.plan.seeds
            used += size
            if used + size > PREPARED_BYTES:
                yield group
                group, used = {}, 0
        if group:
            yield group

    def fit_networks(self, network: Network, group: dict[int, Part]) -> None:
        """Fits a network on all folds and seeds of a group, as one stack."""
        label, plan = network.label, self.plan
        keys = [(fold, seed) for fold, seed in self.missing(label) if fold in group]
        outputs = count_outputs(self.table)
        estimators = [
            # Networks of one fold and seed have the same start, order and held-out rows.
            plan.estimator(
                network, part.columns, outputs, len(part.X_train), plan.seed + 1000 * seed + fold
            )
            for fold, seed in keys
            for part in [group[fold]]
        ]

        def done(position: int, record: FitRecord) -> None:
            (fold, seed), model = keys[position], estimators[position]
            facts: dict[str, Any] = {}
            if record.usable:
                facts = _network_facts(model, group[fold])
                facts |= self._measure(model, group[fold])
            self._add(
                model=label,
                fold=fold,
                seed=seed,
                status="ok" if record.usable else "diverged",
                seconds=record.seconds,
                epochs=len(record.losses),
                widths=list(model._hidden()),  # none where a linear model took its place
                **facts,
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", DroppedColumnWarning)  # the report says it
            fit_many(
                estimators,
                [(group[fold].X_train, group[fold].y_train) for fold, _ in keys],
                on_fit=done,
                on_epoch=lambda epoch, left: self.tell(
                    0, f"{label} networks, epoch {epoch}, {left} left"
                ),
            )

    def fit_baseline(self, label: str, group: dict[int, Part]) -> None:
        """Fits a baseline on the folds that lack it."""
        for fold in [fold for fold, _ in self.missing(label) if fold in group]:
            part = group[fold]
            baselines = self.plan.baselines(len(part.X_train))
            self.tell(0, f"{label}, fold {fold + 1}")
            self._fit_baseline(next(b for b in baselines if b.label == label), fold, part)

    def _fit_baseline(self, baseline: Baseline, fold: int, part: Part) -> None:
        X, y, seed = part.X_train, part.y_train, self.plan.seed + fold
        limit = baseline.max_rows or len(X)
        if len(X) > limit:
            chosen = np.random.default_rng(seed).choice(len(X), limit, replace=False)
            X, y = X.iloc[chosen], y[chosen]
        model = baseline.make(self.plan.task, seed, self.table.kinds)
        start = time.perf_counter()
        # Other libraries have advice of their own, which nobody here can follow.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
            seconds = time.perf_counter() - start
            facts = self._measure(model, part) | {"params": fitted_parameters(model)}
        self._add(model=baseline.label, fold=fold, seed=0, status="ok", seconds=seconds, **facts)

    def _measure(self, model: Any, part: Part) -> dict[str, Any]:
        if self.plan.task == "regression":
            measures = measure_numbers(part.y_test, model.predict(part.X_test))
        else:
            measures = measure_classes(model, part.X_test, part.y_test)
        rows = part.X_test.iloc[np.arange(TIMED_ROWS) % len(part.X_test)]
        times = timeit.repeat(lambda: model.predict(rows), number=1, repeat=3)
        return {**measures, "predict_seconds": min(times), "columns": part.columns}

    def _add(self, **fit: Any) -> None:
        self.note({**fit, "peak_memory_bytes": provenance.peak_memory()})

    def note(self, fit: dict[str, Any]) -> None:
        """Writes a fit down and tells of it."""
        self.log.add(**fit)
        self.tell(1, fit["model"])
        if self.on_model is not None and not self.missing(fit["model"]):
            self.on_model(self.log, fit["model"])


def _network_facts(model: QuadraticNetwork, part: Part) -> dict[str, Any]:
    """What is known of a fitted network besides its errors."""
    module = model.module_
    rows = torch.tensor(model.prepare(part.X_test[:TIMED_ROWS]))
    facts: dict[str, Any] = {
        "params": model.n_parameters_,
        "macs": cost(module.network, rows[:1]).macs,
    }
    if any(isinstance(layer, QuadraticLayer) for layer in module.network):
        report = quadratic_share(module.network, [module.standardized(rows)])
        facts["quadratic_share"] = {name: layer.share for name, layer in report.items()}
    if isinstance(module, TableRegressor):
        gaps = (part.y_test - model.predict(part.X_test)) / float(module.target_scale)
        facts["loss"] = float(np.mean(gaps**2))
    return facts
