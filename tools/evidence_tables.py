"""Fit eight UCI tables on their published splits with several neurons, and write what came out.

    python tools/evidence_tables.py --data-dir UCI_Datasets   # goes on where it was
    python tools/evidence_tables.py --summary                 # sums up what is there

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

import functools
import importlib
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
    fitted,
    make_network,
    make_rows,
    parser_of,
    read_piece,
    run_arm,
    scaled,
    scores_of,
    shape,
    summed_up,
    write_csv,
    write_piece,
)
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.svm import SVR

from quadric.data import uci
from quadric.data.tables import TableData
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

        def tasks(trials: Sequence[Trial], tuning: bool) -> list[Task]:
            splits = tuning_splits(table) if tuning else range(num_splits(table, self.directory))
            return [self.task(arm, table, s, t, tuning) for t in trials for s in splits]

        def facts(tasks: Sequence[Task]) -> dict[str, Any]:
            shape, job = tasks[0].shape, tasks[0].job
            settings = {
                "protocol": self.name, "activation": shape.options["activation"],
                "optimizer": "adam", "batch_size": job.settings.batch_size,
                "epochs": job.settings.max_iter, "rows": len(job.train.inputs),
            }  # fmt: skip
            about = {"neuron": arm.neuron, "rank": arm.rank, "settings": settings}
            return about | {"cost": shape.cost()}

        name = f"{table}-{arm.name}.json"
        trials = arm.trials(RATES[self.name], LINEAR_RATES[self.name])
        tuned = out / "tuning" / f"{self.name}-{name}"
        run_arm(out / self.name / name, tuned, trials, tasks, facts, "scikit-learn")


def make_other(name: str, seed: int) -> Any:
    """A model of scikit-learn or LightGBM with its defaults."""
    if name == "LightGBM":
        # Its threads would wait for each other on a busy machine.
        kind = importlib.import_module("lightgbm").LGBMRegressor
        return kind(random_state=seed, verbose=-1, n_jobs=1)
    if name == "HistGradientBoosting":
        return HistGradientBoostingRegressor(random_state=seed)
    if name == "MLPRegressor":
        return MLPRegressor(random_state=seed)
    return SVR() if name == "SVR" else Ridge()


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


def summarize(out: Path) -> None:
    """Writes summary.csv and tuning.csv."""
    write_csv(out / "summary.csv", [row for table in TABLES for row in table_rows(out, table)])
    trials = []
    for path in sorted((out / "tuning").glob("*.json")):
        data = read_piece(path)
        head = {"protocol": data["settings"]["protocol"]}
        head["arm"] = Arm(data["neuron"], data["rank"]).name
        trials += [{**head, **run} for run in data["runs"]]
    write_csv(out / "tuning.csv", trials)


def table_rows(out: Path, table: str) -> Iterator[dict[str, Any]]:
    """One row an arm: mean, deviation, and its factor on linear's error, paired by split."""
    linear: Mapping[int, float] = {}
    for part in ("equal", "others", "literature"):
        for name, data in pieces(out, part, table).items():
            own = scores_of(data["runs"], "split", "error")
            if name == "linear":
                linear = own
            if not own or not linear:
                continue
            first, cost = data["runs"][0], data.get("cost", {})
            yield {
                "table": table, "protocol": part, "arm": name, "params": cost.get("params"),
                "macs": cost.get("macs"), "lr": first.get("lr"), "factor": first.get("factor"),
                # The training rows of splits overlap: a tenth of the rows is tested.
                **summed_up(data["runs"], "split", "splits", "error", linear, test_share=1 / 9),
                "command": data["command"],
            }  # fmt: skip


def main() -> None:
    """Runs the parts that are not there yet, and sums up what is."""
    parser = parser_of(__doc__, "results/tables")
    parser.add_argument("--data-dir", type=Path, help="the tables with their splits")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each network at most, about")
    parser.add_argument("--tables", nargs="*", default=TABLES)
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
    summarize(given.out)


if __name__ == "__main__":
    main()
