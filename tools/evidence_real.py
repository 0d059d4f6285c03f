"""Measure estimators on messy real tables: choose defaults on one half, judge on the other, once.

    python tools/evidence_real.py --half choosing --target DIR   # goes on where it was
    python tools/evidence_real.py --half judging --target DIR

DIR holds the packages that the tables come in (tools/real_tables.py). A cell is one model on one
table with one seed: a quarter of the rows is for the test, the rest is learned from. Our estimators
take the frame as it is; the others take the columns as `quadric compare` reads them. The error of a
regression is the root mean square error as a share of the target's deviation in the test rows, that
of a classification the log loss as a share of what the frequencies of classes give.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_runs import read_piece, run_cells
from real_tables import CHOOSING, HELD_BACK, LICENSES, ROWS, TABLES, RealTable
from results_summary import MINUS, ROOT
from scipy.stats import bootstrap, rankdata  # type: ignore[import-untyped]
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from quadric.data.user_table import UserTable
from quadric.models import create
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.support.modules import count_parameters
from quadric.support.texttable import markdown_table
from quadric.tables.comparison.baselines import OTHERS, Baseline, usual_baselines
from quadric.tables.comparison.sources import load_source

SEEDS, TEST_PART = 3, 0.25
OURS = "Quadric"
TREES = ("HistGradientBoosting", "LightGBM", "CatBoost")
LINEAR_MODEL = "ridge, logistic"
JUDGED = (OURS, "linear network", "glu network", *TREES, LINEAR_MODEL)
CHOSEN = "shared"

# What defaults were chosen from, under Adam; seconds matter as much as errors.
ARMS: dict[str, dict[str, Any]] = {
    neuron: {"neuron": neuron, "hidden_layer_sizes": (64, 64), "members": 4, "solver": "adam"}
    for neuron in (CHOSEN, "eigen")
} | {
    "shared, one of 100 neurons": {
        "neuron": CHOSEN, "hidden_layer_sizes": (100,), "members": 1, "solver": "adam",
    },
}  # fmt: skip


class Rows:
    """A table split for a seed, in the form that each kind of model takes."""

    def __init__(self, table: RealTable, folder: Path | None, seed: int) -> None:
        frame, y = table.load(folder)
        self.classes = table.classes
        self.truth = np.unique(y, return_inverse=True)[1] if table.classes else y.to_numpy(float)
        rows = np.arange(len(y))
        self.learned, self.tested = train_test_split(
            rows, test_size=TEST_PART, random_state=seed,
            stratify=self.truth if table.classes else None,
        )  # fmt: skip
        self.frame, self.target = frame, f"{table.target} "  # a name that no column has
        self.task = "classification" if table.classes else "regression"

    @functools.cached_property
    def read(self) -> UserTable:
        """The columns as `quadric compare` reads them."""
        frame = self.frame.assign(**{self.target: self.truth})
        return load_source(frame, target=self.target, task=self.task)

    def error(self, predicted: np.ndarray) -> float:
        """On the test rows; 1 is what a constant has."""
        truth = self.truth[self.tested]
        if not self.classes:
            return float(np.sqrt(np.mean((predicted - truth) ** 2)) / truth.std())
        shares = np.bincount(truth) / len(truth)
        entropy = -sum(share * math.log(share) for share in shares if share)
        known = range(predicted.shape[1])
        return float(log_loss(truth, predicted.clip(1e-7, 1), labels=list(known)) / entropy)


def make_ours(task: str, seed: int, options: Mapping[str, Any]) -> Any:
    """An estimator; the options of one task alone are left out of the other."""
    if task == "regression":
        return QuadraticRegressor(random_state=seed, **options)
    return QuadraticClassifier(
        random_state=seed, **{key: value for key, value in options.items() if key != "solver"}
    )


def as_large(neuron: str, task: str, columns: int, outputs: int) -> dict[str, Any]:
    """Two equal layers of a neuron with no fewer parameters than those of our defaults."""
    ours = make_ours(task, 0, {})
    sizes: dict[str, Any] = {"in_features": columns, "out_features": outputs}

    def count(neuron: str, hidden: Sequence[int]) -> int:
        return count_parameters(create("mlp", seed=0, neuron=neuron, hidden=hidden, **sizes))

    wanted, width = count(ours.neuron, np.atleast_1d(ours.hidden_layer_sizes).tolist()), 8
    while count(neuron, (width, width)) < wanted:
        width += 1
    return {"neuron": neuron, "hidden_layer_sizes": (width, width)}


def fit_predict(name: str, rows: Rows, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """What a model predicts for the test rows, and facts about its fit."""
    facts: dict[str, Any] = {}
    if name in (LINEAR_MODEL, *TREES):
        model, X = _baseline(name, rows).make(rows.task, seed, rows.read.kinds), rows.read.inputs
    else:
        options = ARMS.get(name, {})
        if name.endswith(" network"):
            prepared = make_ours(rows.task, 0, {"max_iter": 1, "members": 1, "solver": "adam"})
            prepared.fit(rows.frame.iloc[rows.learned], rows.truth[rows.learned])
            sizes = len(prepared.prepared_names_), prepared.n_outputs_
            options = as_large(name.removesuffix(" network"), rows.task, *sizes)
        model, X = make_ours(rows.task, seed, options), rows.frame
    begin = time.process_time()
    model.fit(X.iloc[rows.learned], rows.truth[rows.learned])
    facts["seconds"] = time.process_time() - begin
    if isinstance(model, QuadraticRegressor | QuadraticClassifier):
        facts |= {"network_share": model.network_share_, "params": model.n_parameters_}
    tested = X.iloc[rows.tested]
    return model.predict_proba(tested) if rows.classes else model.predict(tested), facts


def _baseline(name: str, rows: Rows) -> Baseline:
    known = [*usual_baselines(rows.task, {}), *OTHERS.values()]
    wanted = ("ridge", "logistic regression") if name == LINEAR_MODEL else (name,)
    return next(baseline for baseline in known if baseline.label in wanted)


def measure(folder: Path | None) -> Callable[[str, int, str], dict[str, Any]]:
    """What measures a cell."""

    @functools.lru_cache(maxsize=1)
    def rows_of(table: str, seed: int) -> Rows:
        return Rows(TABLES[table], folder, seed)

    def measured(table: str, seed: int, model: str) -> dict[str, Any]:
        rows = rows_of(table, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted, facts = fit_predict(model, rows, seed)
        error = rows.error(np.asarray(predicted))
        print(f"{table}, seed {seed}, {model}: {error:.4f}, {facts['seconds']:.1f} s", flush=True)
        return {
            "task": rows.task, "rows": len(rows.learned), "columns": rows.frame.shape[1],
            "error": error, **facts,
        }  # fmt: skip

    return measured


# The tables of the docs.


def by_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each table that all models have: task, rows, columns, and the mean error by model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == name]
        cells = {model: {r["seed"]: r for r in own if r["model"] == model} for model in models}
        seeds = set.intersection(*(set(runs) for runs in cells.values()))
        if seeds:
            found[name] = {key: own[0][key] for key in ("task", "rows", "columns")} | {
                what: {m: statistics.fmean(r[s][what] for s in seeds) for m, r in cells.items()}
                for what in ("error", "seconds")
            }
    return found


def gap(tables: Sequence[Mapping[str, Any]], other: str, ours: str = OURS) -> str:
    """The median difference of our error to that of another model in percent, with its interval."""
    logs = np.array([math.log(t["error"][ours] / t["error"][other]) for t in tables])
    middle = 100 * math.expm1(float(np.median(logs)))
    drawn = bootstrap((logs,), np.median, n_resamples=2000, method="percentile", rng=0)
    low, high = (100 * math.expm1(end) for end in drawn.confidence_interval)
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})".replace("-", MINUS)


def ranks(tables: Sequence[Mapping[str, Any]], models: Sequence[str]) -> np.ndarray:
    """The rank of each model on each table, 1 for the lowest error."""
    return np.array([rankdata([t["error"][m] for m in models]) for t in tables])


def summary_table(half: str) -> Callable[[Path], str]:
    """What the docs say of a half: mean rank, how far we are ahead or behind, seconds."""

    def made(results: Path) -> str:
        data = read_piece(results / f"real_{half}.json")
        tables = by_table(data["rows"])
        models = list(dict.fromkeys(row["model"] for row in data["rows"]))
        ours = OURS if OURS in models else CHOSEN
        parts = {
            task: [t for t in tables.values() if t["task"] == task]
            for task in ("regression", "classification")
        }
        lines = []
        for place, model in enumerate(models):
            cells: list[str] = []
            for part in parts.values():
                cells.append(f"{ranks(part, models)[:, place].mean():.1f}")
                cells.append("" if model == ours else gap(part, model, ours))
            every = [t["seconds"][model] for t in tables.values()]
            lines.append([model, *cells, f"{statistics.median(every):.1f}"])
        counts = [len(part) for part in parts.values()]
        header = [
            "model", f"{counts[0]} regressions: mean rank", "ours to it, median",
            f"{counts[1]} classifications: mean rank", "ours to it, median", "seconds",
        ]  # fmt: skip
        seeds = len({row["seed"] for row in data["rows"]})
        behind = ""
        if LINEAR_MODEL in models:
            worse = [
                t for t in tables.values() if 1.01 * t["error"][LINEAR_MODEL] < t["error"][ours]
            ]
            behind = (
                f" On {len(worse)} of {len(tables)} tables ours is more than 1 % behind ridge or "
                "logistic regression."
            )
        return markdown_table(header, lines, "lrrrrr") + (
            f"\n\n{seeds} seed{'s' if seeds > 1 else ''}, 75 % of the rows learned. Below 0: ours "
            "has the lower error (95 % interval of the median over the tables). Seconds: median of "
            f"processor time for a fit.{behind} Made by `{data['command']}`."
        )

    return made


def errors_table(results: Path) -> str:
    """Each table of the half that judges."""
    data = read_piece(results / "real_judging.json")
    models = list(dict.fromkeys(row["model"] for row in data["rows"]))
    lines = []
    for name, found in by_table(data["rows"]).items():
        errors = [found["error"][model] for model in models]
        cells = [f"**{e:.3f}**" if e == min(errors) else f"{e:.3f}" for e in errors]
        lines.append([name, f"{found['rows']:,} x {found['columns']}", *cells])
    return markdown_table(["table", "learned", *models], lines, "lr" + "r" * len(models))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--half", choices=("choosing", "judging"), required=True)
    parser.add_argument("--target", type=Path, help="the folder with the packages of the tables")
    parser.add_argument("--models", nargs="*", help="some of them")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    choosing = given.half == "choosing"
    models = given.models or (list(ARMS) if choosing else list(JUDGED))
    tables = CHOOSING if choosing else HELD_BACK
    cells = [(t.name, seed, m) for seed in range(given.seeds) for t in tables for m in models]
    facts = {"half": given.half, "most_rows": ROWS, "test_part": TEST_PART, "licenses": LICENSES}
    path = given.out / f"real_{given.half}.json"
    names = ("table", "seed", "model")
    run_cells(path, "rows", names, cells, measure(given.target), facts, "scikit-learn", "lightgbm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
