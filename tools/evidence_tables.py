"""Fit eight UCI tables on their published splits with several neurons, and write what came out.

    python tools/evidence_tables.py --data-dir UCI_Datasets   # goes on where it was
    python tools/evidence_tables.py --summary                 # tables of what is there

- equal/TABLE-ARM.json: two hidden layers with no more parameters than a linear network of 48 and 48
  neurons, SiLU, Adam. A fifth of the training rows is held out: it lowers the learning rate to a
  fifth at a standstill, three times, and keeps the best epoch.
- literature/TABLE-ARM.json: one hidden layer of 50 neurons (100 for protein), ReLU, 40 epochs on
  all training rows, one-cycle: the protocol under which the published numbers were measured.
- others/TABLE-MODEL.json: what people use instead, with its defaults, on standardized columns.
- tuning/: of each network the learning rate (3 values) and the quadratic parameters' factor of it
  (2), 6 learning rates for linear, chosen for each table by the held-out rows of splits 0 to 2
  (of split 0 if it has more than 2,000 rows).

All 20 splits of the small tables, the first 5 of those with more than 2,000 rows. Errors are root
mean squares in the units of the table, on the test rows. A split has its own start, the same for
all arms; arms are paired by split.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence_runs import (
    Arm,
    Shape,
    Task,
    Trial,
    as_factor,
    best_trial,
    fitted,
    make_network,
    make_rows,
    read_piece,
    scaled,
    shape,
    train_tasks,
    write_csv,
    write_piece,
)

from quadric.data import uci
from quadric.data.intervals import mean_difference
from quadric.data.tables import TableData
from quadric.support.texttable import markdown_table
from quadric.tables.jobs import Job, Settings
from quadric.tables.losses import SQUARED
from quadric.train.schedule import make_schedule

WIDTH, HELD_OUT, MANY_ROWS = 48, 0.2, 2_000
# Learning rates: three, and six from the same range for linear. A one-cycle has a higher peak.
RATES = {"equal": (2e-3, 6e-3, 2e-2), "literature": (1e-2, 3e-2, 1e-1)}
LINEAR_RATES = {
    "equal": (2e-3, 4e-3, 6e-3, 1e-2, 1.4e-2, 2e-2),
    "literature": (1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1),
}
TUNING_SPLITS, SOME_SPLITS = 3, 5
STEPS, PATIENCE_STEPS = 3_000, 200
EPOCHS = 40  # of the literature's protocol
SVM_ROWS = 10_000  # time grows with the square of the rows

# Small ones first: what is there early is whole.
TABLES = (
    "yacht", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant",
    "naval-propulsion-plant", "protein-tertiary-structure",
)  # fmt: skip
ARMS = {
    "equal": [Arm("linear"), Arm("eigen", 3), Arm("shared", 4), Arm("glu"), Arm("cross", 4)],
    "literature": [Arm("linear"), Arm("eigen", 3), Arm("shared", 4)],
}
OTHERS = ("HistGradientBoosting", "LightGBM", "MLPRegressor", "SVR", "ridge")

# Root mean square errors, means over the published splits (20, protein 5). The first three:
# Lakshminarayanan et al. 2017, Table 1; the last: yaringal/DropoutUncertaintyExps, a grid of
# settings and ten times the epochs.
PUBLISHED = {
    "PBP": (1.02, 1.80, 5.67, 0.64, 0.10, 4.12, 0.01, 4.73),
    "MC dropout": (1.11, 1.66, 5.23, 0.62, 0.10, 4.02, 0.01, 4.36),
    "deep ensembles": (1.58, 2.09, 6.03, 0.64, 0.09, 4.11, 0.00, 4.71),
    "MC dropout, grid": (0.67, 0.54, 4.82, 0.62, 0.08, 4.01, 0.00, 4.27),
}


@functools.cache
def load(directory: Path, table: str, split: int) -> TableData:
    """A split of a table, in double precision: it is standardized before it is rounded."""
    return uci.load(table, directory, split, dtype=torch.float64)


def num_splits(table: str, directory: Path) -> int:
    """How many splits are measured."""
    count = uci.num_splits(table, directory)
    return min(count, SOME_SPLITS) if uci.ROWS[table] > MANY_ROWS else count


def tuning_splits(table: str) -> range:
    """The splits whose held-out rows choose learning rates."""
    return range(1 if uci.ROWS[table] > MANY_ROWS else TUNING_SPLITS)


@functools.cache  # networks with the same settings, the same object, share a stack
def make_settings(protocol: str, rows: int, steps: int) -> Settings:
    """For a number of training rows."""
    small = rows < MANY_ROWS
    if protocol == "equal":
        batch = 32 if small else 256
        per_epoch = -(-rows // batch)
        patience = max(5, -(-PATIENCE_STEPS // per_epoch))
        epochs = -(-steps // per_epoch)
        return Settings(batch, epochs, tol=0.0, patience=patience, alpha=0.0, adaptive=True)
    batch = 32 if small else 128
    rate = make_schedule("onecycle", -(-rows // batch), EPOCHS)
    return Settings(batch, EPOCHS, tol=0.0, patience=EPOCHS, alpha=0.0, rate=rate)


@dataclass(frozen=True)
class Protocol:
    """How networks are made and trained: one of the two of this file."""

    name: str
    directory: Path
    steps: int = STEPS

    def shape(self, arm: Arm, table: str) -> Shape:
        columns = load(self.directory, table, 0).train_inputs.shape[1]
        if self.name == "equal":
            return fitted(arm, columns, WIDTH)
        width = 100 if table.startswith("protein") else 50
        return shape(arm, in_features=columns, hidden=(width,), activation="relu")

    def task(self, arm: Arm, table: str, split: int, trial: Trial, tuning: bool) -> Task:
        """A network, its rows, and how it is judged: tuning never sees a test row."""
        data = load(self.directory, table, split)
        inputs, targets = data.train_inputs, data.train_targets
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(split))
        held = order[: round(HELD_OUT * len(inputs))]
        own = order[len(held) :]
        if not tuning and self.name == "literature":
            own = order
        learned = inputs[own], targets[own]
        validation = None
        if self.name == "equal":
            part = scaled(inputs[held], learned[0]), scaled(targets[held], learned[1])
            validation = make_rows(*part)
        judged = (inputs[held], targets[held]) if tuning else (data.test_inputs, data.test_targets)
        found = self.shape(arm, table)
        lr, factor = trial
        return Task(
            facts={"table": table, "split": split, "lr": lr, "factor": factor},
            job=Job(
                make_network(found, split),
                make_rows(scaled(learned[0], learned[0]), scaled(learned[1], learned[1])),
                validation, SQUARED, make_settings(self.name, len(own), self.steps),
                lr, lr * factor, split,
            ),
            shape=found,
            judged=(scaled(judged[0], learned[0]).float(), scaled(judged[1], learned[1])),
            unit=1 / float(targets[own].std(correction=0)),
        )  # fmt: skip

    def run(self, out: Path, arm: Arm, table: str) -> None:
        """Tunes an arm on a table and measures it, unless the files are there."""
        path = out / self.name / f"{table}-{arm.name}.json"
        if path.exists():
            return
        tuned = out / "tuning" / f"{self.name}-{table}-{arm.name}.json"
        if not tuned.exists():
            trials = arm.trials(RATES[self.name], LINEAR_RATES[self.name])
            tasks = [
                self.task(arm, table, s, t, True) for t in trials for s in tuning_splits(table)
            ]
            runs = train_tasks(tasks, f"tuning {tuned.stem}")
            self.write(tuned, arm, tasks[0], runs, chosen=best_trial(trials, runs))
        chosen = read_piece(tuned)["chosen"]
        trial = chosen["lr"], chosen["factor"]
        splits = range(num_splits(table, self.directory))
        tasks = [self.task(arm, table, split, trial, False) for split in splits]
        self.write(path, arm, tasks[0], train_tasks(tasks, f"{self.name} {path.stem}"))

    def write(
        self, path: Path, arm: Arm, example: Task, runs: list[dict[str, Any]], **more: Any
    ) -> None:
        settings = {
            "protocol": self.name, "activation": example.shape.options["activation"],
            "optimizer": "adam", "batch_size": example.job.settings.batch_size,
            "epochs": example.job.settings.max_iter, "rows": len(example.job.train.inputs),
        }  # fmt: skip
        facts = {"neuron": arm.neuron, "rank": arm.rank, "settings": settings}
        cost = example.shape.cost()
        write_piece(path, {**facts, **more, "cost": cost, "runs": runs}, "scikit-learn")


def make_other(name: str, seed: int) -> Any:
    """A model of scikit-learn or LightGBM with its defaults, behind standardized columns."""
    if name == "LightGBM":
        # Its threads would wait for each other on a busy machine.
        kind = importlib.import_module("lightgbm").LGBMRegressor
        model = kind(random_state=seed, verbose=-1, n_jobs=1)
    else:
        where, kind, options = {
            "HistGradientBoosting": (
                "ensemble", "HistGradientBoostingRegressor", {"random_state": seed},
            ),
            "MLPRegressor": ("neural_network", "MLPRegressor", {"random_state": seed}),
            "SVR": ("svm", "SVR", {}),
            "ridge": ("linear_model", "Ridge", {}),
        }[name]  # fmt: skip
        model = getattr(importlib.import_module(f"sklearn.{where}"), kind)(**options)
    return model


def run_other(out: Path, name: str, table: str, directory: Path) -> None:
    """Measures a model that people use instead, unless its file is there."""
    path = out / "others" / f"{table}-{name}.json"
    if path.exists():
        return
    runs = []
    for split in range(num_splits(table, directory)):
        data = load(directory, table, split)
        inputs, targets = data.train_inputs, data.train_targets
        own = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(split))
        own = own[: SVM_ROWS if name == "SVR" else None]
        begin = time.process_time()
        model = make_other(name, split)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the default number of epochs is often too small
            model.fit(
                scaled(inputs[own], inputs).numpy(), scaled(targets[own], targets)[:, 0].numpy()
            )
            found = model.predict(scaled(data.test_inputs, inputs).numpy())
        wanted = scaled(data.test_targets, targets)[:, 0]
        error = (torch.as_tensor(found) - wanted).square().mean().sqrt()
        runs.append({
            "table": table, "split": split, "error": float(error * targets.std(correction=0)),
            "quadratic_share": None, "seconds": time.process_time() - begin,
        })  # fmt: skip
    rows = min(len(own), len(inputs))
    print(f"others {path.stem}: {len(runs)} splits", file=sys.stderr, flush=True)
    facts = {"model": name, "settings": {"defaults": True, "rows": rows}, "runs": runs}
    write_piece(path, facts, "scikit-learn", "lightgbm")


def pieces(out: Path, part: str, table: str) -> dict[str, dict[str, Any]]:
    """The pieces of a table by the name of their arm, linear first."""
    names = [arm.name for arm in ARMS[part]] if part in ARMS else list(OTHERS)
    paths = {name: out / part / f"{table}-{name}.json" for name in names}
    return {name: read_piece(path) for name, path in paths.items() if path.exists()}


def summarize(out: Path) -> str:
    """Tables of errors and of their ratios to linear; also writes summary.csv and tuning.csv."""
    rows = [row for table in TABLES for row in table_rows(out, table)]
    write_csv(out / "summary.csv", rows)
    trials = []
    for path in sorted((out / "tuning").glob("*.json")):
        data = read_piece(path)
        head = {"protocol": data["settings"]["protocol"]}
        head["arm"] = Arm(data["neuron"], data["rank"]).name
        trials += [{**head, **run} for run in data["runs"]]
    write_csv(out / "tuning.csv", trials)
    return "\n\n".join(filter(None, (error_table(rows, part) for part in ("equal", "literature"))))


def table_rows(out: Path, table: str) -> Iterator[dict[str, Any]]:
    """One row an arm: mean, deviation, and its factor on linear's error, paired by split."""
    linear: Mapping[int, float] = {}
    for part in ("equal", "others", "literature"):
        for name, data in pieces(out, part, table).items():
            own = {r["split"]: r["error"] for r in data["runs"] if r["error"] is not None}
            if name == "linear":
                linear = own
            if not own or not linear:
                continue
            both = sorted(set(own) & set(linear))
            # The training rows of splits overlap: a tenth of the rows is tested.
            gap = mean_difference([math.log(own[s] / linear[s]) for s in both], test_share=1 / 9)
            ratio, low, high = as_factor(gap)
            shares = [r["quadratic_share"] for r in data["runs"] if r["quadratic_share"]]
            first, cost = data["runs"][0], data.get("cost", {})
            yield {
                "table": table, "protocol": part, "arm": name, "params": cost.get("params"),
                "macs": cost.get("macs"), "lr": first.get("lr"), "factor": first.get("factor"),
                "splits": len(data["runs"]), "diverged": len(data["runs"]) - len(own),
                "error_mean": statistics.fmean(own.values()),
                "error_std": statistics.stdev(own.values()) if len(own) > 1 else None,
                "ratio": ratio, "ratio_low": low, "ratio_high": high, "is_clear": gap.is_clear,
                "quadratic_share": statistics.fmean(shares) if shares else None,
                "seconds": statistics.fmean(run["seconds"] for run in data["runs"]),
                "command": data["command"],
            }  # fmt: skip


def error_table(rows: Sequence[Mapping[str, Any]], part: str) -> str:
    """One row a table: mean ± deviation of every arm of a part."""
    parts = (part, "others") if part == "equal" else (part,)
    found = {(row["table"], row["arm"]): row for row in rows if row["protocol"] in parts}
    arms = list(dict.fromkeys(arm for _, arm in found))
    cells = []
    for table in dict.fromkeys(table for table, _ in found):
        own = [found.get((table, arm)) for arm in arms]
        texts = [f"{r['error_mean']:#.3g} ± {r['error_std'] or 0:#.2g}" if r else "" for r in own]
        cells.append([table, *texts])
    return markdown_table(["table", *arms], cells, "l" + "r" * len(arms)) if cells else ""


def main() -> None:
    """Runs the parts that are not there yet, or shows what is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="the tables with their splits")
    parser.add_argument("--out", type=Path, default=Path("results/tables"))
    parser.add_argument("--steps", type=int, default=STEPS, help="of each network at most, about")
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--summary", action="store_true", help="show what is there, train nothing")
    given = parser.parse_args()
    if not given.summary:
        if given.data_dir is None:
            parser.error(f"--data-dir is missing: {uci.REMEDY}")
        protocols = [Protocol(name, given.data_dir, given.steps) for name in ARMS]
        for table in given.tables:
            for protocol in protocols:
                for arm in ARMS[protocol.name]:
                    protocol.run(given.out, arm, table)
            load.cache_clear()
        for table in given.tables:
            for name in OTHERS:
                run_other(given.out, name, table, given.data_dir)
            load.cache_clear()
    print(summarize(given.out))


if __name__ == "__main__":
    main()
