"""What the tools that gather evidence have in common: arms, stacks, tuning, files that are whole.

A piece of evidence is one JSON file, or one row of it; a tool makes the pieces that are not there
yet, so it goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric import cost, models, quadratic_share
from quadric.data.intervals import Difference, mean_difference
from quadric.layers import QuadraticLayer
from quadric.support import provenance
from quadric.support.writing import whole_file
from quadric.tables.jobs import FitRecord, Job, Rows
from quadric.tables.training import train

Trial = tuple[float, float]
"""A learning rate, and the factor of it for the quadratic parameters."""

FACTORS = (1.0, 0.1)


@dataclass(frozen=True)
class Arm:
    """A neuron with its rank."""

    neuron: str
    rank: int | None = None

    @property
    def name(self) -> str:
        return self.neuron if self.rank is None else f"{self.neuron}-k{self.rank}"

    def options(self) -> dict[str, Any]:
        """What `quadric.models.create` takes."""
        return {} if self.neuron == "linear" else {"neuron": self.neuron, "rank": self.rank}

    def trials(self, rates: Sequence[float], linear_rates: Sequence[float]) -> list[Trial]:
        """Linear networks have no quadratic parameters, and as many trials: more rates."""
        if self.neuron == "linear":
            return [(rate, 1.0) for rate in linear_rates]
        return list(itertools.product(rates, FACTORS))


@dataclass(frozen=True)
class Shape:
    """A perceptron: what `quadric.models.create("mlp")` takes, and its cost."""

    options: Mapping[str, Any]
    params: int
    macs: int

    def cost(self) -> dict[str, Any]:
        """What a file says of it."""
        return {"hidden": self.options["hidden"], "params": self.params, "macs": self.macs}


def shape(arm: Arm, **options: Any) -> Shape:
    """The perceptron with these options, whatever it costs."""
    options |= arm.options()
    with torch.device("meta"):
        found = cost(models.create("mlp", **options), torch.zeros(1, options["in_features"]))
    return Shape(options, found.params, found.macs)


@functools.cache
def fitted(arm: Arm, columns: int, width: int, outputs: int = 1) -> Shape:
    """The widest one of two hidden layers with no more parameters than the linear one."""
    plain: dict[str, Any] = {"in_features": columns, "hidden": (width, width)}
    plain |= {"out_features": outputs, "activation": "silu"}
    budget = shape(Arm("linear"), **plain).params
    found = models.fit("mlp", params=budget, **plain, **arm.options())
    return Shape(found.options, found.params, found.macs)


@dataclass
class Task:
    """A network made ready: its job, its shape, and the rows it is judged by."""

    facts: Mapping[str, Any]  # what its result says of it first: data, seed, learning rate
    job: Job  # how it is trained
    shape: Shape  # what it is
    judged: tuple[Tensor, Tensor]  # inputs and targets
    unit: float  # what the root mean square error is divided by

    def result(self, outcome: FitRecord) -> dict[str, Any]:
        """What is kept of it; the error of a network that diverged is null."""
        error, share = None, None
        if outcome.usable:
            inputs, targets = self.judged
            with torch.no_grad():
                residual = self.job.network(inputs).double() - targets
            error = float(residual.square().mean().sqrt() / self.unit)
            if any(isinstance(m, QuadraticLayer) for m in self.job.network.modules()):
                share = quadratic_share(self.job.network, [inputs[:1000]]).mean
        return {
            **self.facts,
            "error": error if error is None or math.isfinite(error) else None,
            "quadratic_share": share,
            "seconds": outcome.seconds,
        }


def scaled(values: Tensor, by: Tensor) -> Tensor:
    """Values standardized by the columns of others; a column without spread becomes zero."""
    spread = by.std(0, correction=0)
    return (values - by.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))


def make_network(found: Shape, seed: int) -> nn.Sequential:
    """A new network of a shape."""
    network = models.create("mlp", **found.options, seed=seed)
    assert isinstance(network, nn.Sequential)
    return network


def make_rows(inputs: Tensor, targets: Tensor) -> Rows:
    """Rows of equal weight, in single precision."""
    return Rows(inputs.float(), targets.float(), torch.ones(len(inputs)))


def train_tasks(tasks: Sequence[Task], what: str, max_stack: int = 32) -> list[dict[str, Any]]:
    """Trains networks, those of one shape as a stack; gives their results, shows progress."""
    begin, done = time.monotonic(), 0

    def finish(_: int, __: FitRecord) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            left = (time.monotonic() - begin) / done * (len(tasks) - done)
            line = f"\r{what}: {done}/{len(tasks)} networks, {left:.0f} s left "
            print(line, end="", flush=True, file=sys.stderr)

    outcomes = train([task.job for task in tasks], on_finish=finish, max_stack=max_stack)
    took = time.monotonic() - begin
    print(f"\r{what}: {len(tasks)} networks in {took:.0f} s   ", file=sys.stderr, flush=True)
    return [task.result(outcome) for task, outcome in zip(tasks, outcomes, strict=True)]


def best_trial(trials: Iterable[Trial], runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The trial with the smallest geometric mean of errors; one that diverged is out."""

    def mean_log(trial: Trial) -> float:
        own = [run["error"] for run in runs if (run["lr"], run["factor"]) == trial]
        return math.inf if None in own else statistics.fmean(math.log(e) for e in own)

    lr, factor = min(trials, key=mean_log)
    return {"lr": lr, "factor": factor}


def run_arm(
    path: Path,
    tuned: Path,
    trials: Sequence[Trial],
    tasks: Callable[[Sequence[Trial], bool], list[Task]],
    facts: Callable[[list[Task]], Mapping[str, Any]],
    *distributions: str,
) -> None:
    """Chooses one of the trials, trains an arm with it and measures it, unless the files are there.

    `tasks` makes networks for trials, of tuning or not; `facts` is what a file says of them.
    """
    for file, tuning in ((tuned, True), (path, False)):
        if file.exists():
            continue
        if not tuning:
            trials = [chosen_trial(tuned)]
        todo = tasks(trials, tuning)
        runs = train_tasks(todo, f"{'tuning' if tuning else file.parent.name} {file.stem}")
        more = {"chosen": best_trial(trials, runs)} if tuning else {}
        write_piece(file, {**facts(todo), **more, "runs": runs}, *distributions)


def chosen_trial(tuned: Path) -> Trial:
    """The trial that tuning chose."""
    chosen = read_piece(tuned)["chosen"]
    return chosen["lr"], chosen["factor"]


def scores_of(runs: Iterable[Mapping[str, Any]], by: str, score: str) -> dict[Any, float]:
    """The score of each seed or split that did not diverge."""
    return {run[by]: run[score] for run in runs if run[score] is not None}


def summed_up(
    runs: Sequence[Mapping[str, Any]],
    by: str,
    count: str,
    score: str,
    base: Mapping[Any, float],
    test_share: float = 0.0,
) -> dict[str, Any]:
    """Columns of a summary: mean and deviation over seeds or splits, and the factor on a base.

    The factor comes from the change of the logarithm: the same for easy and hard problems.
    """
    own = scores_of(runs, by, score)
    logs = [math.log(own[key] / base[key]) for key in sorted(set(own) & set(base))]
    gap = mean_difference(logs, test_share)
    ratio, low, high = as_factor(gap)
    return {
        count: len(runs), "diverged": len(runs) - len(own), **mean_and_std(own, score),
        "ratio": ratio, "ratio_low": low, "ratio_high": high, "is_clear": gap.is_clear,
        **share_and_seconds(runs),
    }  # fmt: skip


def mean_and_std(scores: Mapping[Any, float], name: str) -> dict[str, Any]:
    """Columns of a summary; a deviation needs two scores."""
    values = list(scores.values())
    return {
        f"{name}_mean": statistics.fmean(values) if values else None,
        f"{name}_std": statistics.stdev(values) if len(values) > 1 else None,
    }


def share_and_seconds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of a summary: means over the runs that have a quadratic share, and over all."""
    shares = [run["quadratic_share"] for run in runs if run["quadratic_share"] is not None]
    return {
        "quadratic_share": statistics.fmean(shares) if shares else None,
        "seconds": statistics.fmean(run["seconds"] for run in runs),
    }


def parser_of(text: str | None, out: str) -> argparse.ArgumentParser:
    """What the tools take: where the files are, and `--summary`."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--summary", action="store_true", help="sum up what is there alone")
    return parser


def write_piece(path: Path, facts: Mapping[str, Any], *distributions: str) -> None:
    """Writes a piece of evidence, with where it comes from."""
    origin = provenance.stamp(*distributions)
    origin["command"] = without_paths(f"python tools/{origin['command']}")
    provenance.write_json(path, {**facts, **origin})


def without_paths(command: str) -> str:
    """A command with each absolute path cut down to its last part: paths of one machine."""
    return re.sub(r"(?<![\w./])(?:/[^\s/'\"]+)*/([^\s/'\"]+)", r"\1", command)


def run_cells(
    path: Path,
    rows: str,
    names: Sequence[str],
    cells: Iterable[tuple[Any, ...]],
    measure: Callable[..., Mapping[str, Any]],
    facts: Mapping[str, Any],
    *distributions: str,
) -> None:
    """Measures the cells, such as arms and seeds, that are not among the rows of a file yet.

    A row has the cell by its names, and what `measure` gives for it. The file is written after each
    row, so that the same command goes on where it was.
    """
    known = read_piece(path)[rows] if path.exists() else []
    done = {tuple(row[name] for name in names): row for row in known}
    for cell in cells:
        if cell not in done:
            done[cell] = dict(zip(names, cell, strict=True)) | dict(measure(*cell))
            print(*cell, flush=True)
            write_piece(path, {**facts, rows: list(done.values())}, *distributions)


def read_piece(path: Path) -> dict[str, Any]:
    """A piece of evidence."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as CSV, whole or not at all; nothing if there are none."""
    if not rows:
        return
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:  # nine digits: the last ones differ from processor to processor
            writer.writerow({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()})


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file, an empty cell as None; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return None if text == "" else text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def as_factor(change: Difference) -> tuple[float, float | None, float | None]:
    """A mean of logarithms and its interval, as factors."""
    half = change.half_width
    ends = (None, None) if half is None else (change.mean - half, change.mean + half)
    low, high = (None if end is None else math.exp(end) for end in ends)
    return math.exp(change.mean), low, high
