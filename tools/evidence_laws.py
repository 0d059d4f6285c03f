"""Learn the physical laws with every neuron at equal parameters, and write what came out.

    python tools/evidence_laws.py             # tunes, tests, draws curves; goes on where it was
    python tools/evidence_laws.py --summary   # sums up what is there

Two hidden layers with the parameters of a linear network (32 neurons each), SiLU, Adam, one-cycle.

- tuning/ARM.json: learning rate and the quadratic parameters' factor of it, chosen on a validation
  part of five laws with seeds 0 to 2; at other widths the learning rate once more, by seed 0.
- test/ARM.json: all laws with ten other seeds, errors on the test set.
- curve/ARM-WIDTH.json: six laws at the parameters of linear networks of other widths, five seeds.

Networks of one shape train as one stack. The error is the root mean square as a share of the
target's standard deviation. A seed draws data, start and order; arms are paired by seed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence_runs import (
    Arm,
    Task,
    Trial,
    chosen_trial,
    fitted,
    make_network,
    make_rows,
    parser_of,
    read_piece,
    run_arm,
    scaled,
    scores_of,
    summed_up,
    write_csv,
)

from quadric.data import laws
from quadric.tables.jobs import Job, Settings
from quadric.tables.losses import SQUARED
from quadric.train.schedule import make_schedule

WIDTH, BATCH, ROWS, HELD_OUT = 32, 256, 10_000, 2_000
RATES = (1e-2, 3e-2, 1e-1)
LINEAR_RATES = (1e-2, 3e-2, 5e-2, 7e-2, 1e-1, 1.4e-1)  # as many trials as the other neurons have
TUNING_SEEDS, TEST_SEEDS, CURVE_SEEDS = range(3), range(10, 20), range(10, 15)
TUNING_LAWS = ("lorentz", "distance", "barometer", "two-waves", "planck")
CURVE_LAWS = ("lorentz", "two-waves", "gravitation", "barometer", "planck", "anharmonic")
WIDTHS = (8, 16, 32, 64, 128, 256)


ARMS = [
    Arm("linear"), Arm("eigen", 3), Arm("eigen", 7), Arm("square"), Arm("shared", 4),
    Arm("symmetric", 3), Arm("qres"), Arm("fan"), Arm("quadenhancer"), Arm("bilinear"), Arm("glu"),
    Arm("cross", 4),
]  # fmt: skip
CURVE_ARMS = [Arm("linear"), Arm("glu"), Arm("eigen", 3), Arm("shared", 4)]


@dataclass(frozen=True)
class Run:
    """One network: what it learns, and how."""

    law: str
    seed: int
    lr: float
    factor: float


def make_task(arm: Arm, run: Run, width: int, steps: int, tuning: bool) -> Task:
    """A network with its data, inputs and target standardized by the rows that it learns from."""
    data = laws.table(run.law, ROWS, ROWS, seed=run.seed, dtype=torch.float64)
    inputs, targets = data.train_inputs, data.train_targets
    judged = data.test_inputs, data.test_targets
    if tuning:
        judged = inputs[-HELD_OUT:], targets[-HELD_OUT:]
        inputs, targets = inputs[:-HELD_OUT], targets[:-HELD_OUT]
    shape = fitted(arm, inputs.shape[1], width)
    goal = scaled(judged[1], targets)
    return Task(
        facts=dataclasses.asdict(run),
        job=Job(
            make_network(shape, run.seed),
            make_rows(scaled(inputs, inputs), scaled(targets, targets)),
            None, SQUARED, make_settings(len(inputs), steps), run.lr, run.lr * run.factor,
            run.seed,
        ),
        shape=shape,
        judged=(scaled(judged[0], inputs).float(), goal),
        unit=float(goal.std(correction=0)),
    )  # fmt: skip


@functools.cache  # networks with the same settings, the same object, share a stack
def make_settings(rows: int, steps: int) -> Settings:
    """For a number of training rows and about so many steps."""
    per_epoch = -(-rows // BATCH)
    epochs = round(steps / per_epoch)
    rate = make_schedule("onecycle", per_epoch, epochs)
    return Settings(BATCH, epochs, tol=0.0, patience=epochs, alpha=0.0, rate=rate)


def tuning_file(out: Path, arm: Arm, width: int) -> Path:
    """Where the tuning of an arm stands."""
    return out / "tuning" / (f"{arm.name}.json" if width == WIDTH else f"{arm.name}-{width}.json")


def measure(
    out: Path, part: str, arm: Arm, names: Sequence[str], seeds: Sequence[int], width: int,
    steps: int,
) -> None:  # fmt: skip
    """Tunes an arm, trains it on laws with fresh seeds, and writes the errors on the test set.

    The trial is the one with the smallest geometric mean of validation errors. At another width
    than the first the learning rate is chosen again, by one seed.
    """
    first = width == WIDTH
    trials, tuning_seeds = arm.trials(RATES, LINEAR_RATES), TUNING_SEEDS
    if not first:
        _, factor = chosen_trial(tuning_file(out, arm, WIDTH))
        trials, tuning_seeds = [(rate, factor) for rate in RATES], TUNING_SEEDS[:1]

    def tasks(trials: Sequence[Trial], tuning: bool) -> list[Task]:
        which = (TUNING_LAWS, tuning_seeds) if tuning else (names, seeds)
        runs = [Run(law, seed, *trial) for trial in trials for law in which[0] for seed in which[1]]
        return [make_task(arm, run, width, steps, tuning) for run in runs]

    def facts(tasks: Sequence[Task]) -> dict[str, Any]:
        settings = {
            "activation": "silu", "optimizer": "adam", "schedule": "onecycle", "steps": steps,
            "batch_size": BATCH, "rows": ROWS, "held_out": HELD_OUT, "width_of_linear": width,
        }  # fmt: skip
        columns = {len(laws.get(task.facts["law"]).variables): task.shape for task in tasks}
        cost = {str(count): columns[count].cost() for count in sorted(columns)}
        return {"neuron": arm.neuron, "rank": arm.rank, "settings": settings, "cost": cost}

    path = out / part / (f"{arm.name}.json" if part == "test" else f"{arm.name}-{width}.json")
    run_arm(path, tuning_file(out, arm, width), trials, tasks, facts)


def files(out: Path, part: str) -> Iterator[dict[str, Any]]:
    """The files of a part, linear first."""
    found = [read_piece(path) for path in (out / part).glob("*.json")]
    order = [arm.name for arm in ARMS]
    name = {id(f): Arm(f["neuron"], f["rank"]).name for f in found}
    return iter(
        sorted(
            ({**f, "arm": name[id(f)]} for f in found),
            key=lambda f: (order.index(f["arm"]), f["settings"]["width_of_linear"]),
        )
    )


def errors(data: dict[str, Any], law: str) -> dict[int, float]:
    """The error of each seed that did not diverge."""
    return scores_of((run for run in data["runs"] if run["law"] == law), "seed", "error")


def summarize(out: Path) -> None:
    """Writes summary.csv and tuning.csv."""
    tested = list(files(out, "test"))
    write_csv(out / "summary.csv", [r for data in tested for r in law_rows(data, tested[0])])
    trials = [
        {"arm": data["arm"], "width": data["settings"]["width_of_linear"], **run}
        for data in files(out, "tuning")
        for run in data["runs"]
    ]
    write_csv(out / "tuning.csv", trials)


def law_rows(data: dict[str, Any], linear: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row a law: mean, deviation, and the factor on linear's error, paired by seed."""
    for law in laws.names():
        runs = [run for run in data["runs"] if run["law"] == law]
        if errors(data, law):
            cost = data["cost"][str(len(laws.get(law).variables))]
            about = {"arm": data["arm"], "law": law, "params": cost["params"], "macs": cost["macs"]}
            yield about | summed_up(runs, "seed", "seeds", "error", errors(linear, law))


def main() -> None:
    """Runs the parts that are not there yet, and sums up what is."""
    parser = parser_of(__doc__, "results/laws")
    parser.add_argument("--steps", type=int, default=3000, help="of each network, about")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS, help="of the curve")
    parser.add_argument("--arms", nargs="*", help="such as linear eigen-k3; all by default")
    given = parser.parse_args()
    if not given.summary:
        chosen = [arm for arm in ARMS if not given.arms or arm.name in given.arms]
        for arm in chosen:
            measure(given.out, "test", arm, laws.names(), TEST_SEEDS, WIDTH, given.steps)
        for width, arm in itertools.product(given.widths, CURVE_ARMS):
            if arm in chosen:
                measure(given.out, "curve", arm, CURVE_LAWS, CURVE_SEEDS, width, given.steps)
    summarize(given.out)


if __name__ == "__main__":
    main()
