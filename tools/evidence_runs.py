"""What the tools that gather evidence have in common: arms, stacks, tuning, files that are whole.

Used by evidence_laws.py, evidence_tables.py and evidence_polynomial.py. A piece of evidence is one
JSON file; a tool writes the pieces that are not there yet, so it goes on where it was.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric import cost, models, quadratic_share
from quadric.data.intervals import Difference
from quadric.layers import QuadraticLayer
from quadric.support import provenance
from quadric.support.writing import whole_file
from quadric.tables.jobs import Job, Outcome, Rows
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
def fitted(arm: Arm, columns: int, width: int) -> Shape:
    """The widest one of two hidden layers with no more parameters than the linear one."""
    plain: dict[str, Any] = {"in_features": columns, "hidden": (width, width)}
    plain["activation"] = "silu"
    budget = shape(Arm("linear"), **plain).params
    found = models.fit("mlp", params=budget, **plain, **arm.options())
    return Shape(found.options, found.params, found.macs)


@dataclass
class Task:
    """A network made ready: its job, its shape, and the rows it is judged by.

    Attributes:
        facts: what its result says of it first: data, seed, learning rate.
        job: how it is trained.
        shape: what it is.
        judged: inputs and targets.
        unit: what the root mean square error is divided by.
    """

    facts: Mapping[str, Any]
    job: Job
    shape: Shape
    judged: tuple[Tensor, Tensor]
    unit: float

    def result(self, outcome: Outcome) -> dict[str, Any]:
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

    def finish(_: int, __: Outcome) -> None:
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


def write_piece(path: Path, facts: Mapping[str, Any], *distributions: str) -> None:
    """Writes a piece of evidence, with where it comes from."""
    origin = provenance.stamp(*distributions)
    origin["command"] = without_paths(f"python tools/{origin['command']}")
    provenance.write_json(path, {**facts, **origin})


def without_paths(command: str) -> str:
    """A command with each absolute path cut down to its last part: paths of one machine."""
    return re.sub(r"(?<![\w./])(?:/[^\s/'\"]+)*/([^\s/'\"]+)", r"\1", command)


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


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_factor(change: Difference) -> tuple[float, float | None, float | None]:
    """A mean of logarithms and its interval, as factors."""
    half = change.half_width
    ends = (None, None) if half is None else (change.mean - half, change.mean + half)
    low, high = (None if end is None else math.exp(end) for end in ends)
    return math.exp(change.mean), low, high
