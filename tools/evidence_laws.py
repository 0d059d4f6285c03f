"""Learn the physical laws with every neuron at equal parameters, and write what came out.

    python tools/evidence_laws.py             # tunes, tests, draws curves; goes on where it was
    python tools/evidence_laws.py --summary   # tables of what is there

Two hidden layers with the parameters of a linear network (32 neurons each), SiLU, Adam, one-cycle.

- tuning/ARM.json: learning rate and the quadratic parameters' factor of it, chosen on a validation
  part of five laws with seeds 0 to 2; at other widths the learning rate once more, by seed 0.
- test/ARM.json: all laws with ten other seeds, errors on the test set.
- curve/ARM-WIDTH.json: six laws at the parameters of linear networks of other widths, five seeds.

Networks of one shape train as one stack. The error is the root mean square as a share of the
target's standard deviation. A seed draws data, start and order; arms are paired by seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence_runs import (
    Arm,
    Task,
    as_factor,
    best_trial,
    fitted,
    make_network,
    make_rows,
    read_piece,
    scaled,
    train_tasks,
    write_csv,
    write_piece,
)

from quadric.data import laws
from quadric.data.intervals import mean_difference
from quadric.support.texttable import markdown_table
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


def make_task(arm: Arm, run: Run, width: int, validated: bool, settings: Settings) -> Task:
    """A network with its data, inputs and target standardized by the rows that it learns from."""
    data = laws.table(run.law, ROWS, ROWS, seed=run.seed, dtype=torch.float64)
    inputs, targets = data.train_inputs, data.train_targets
    judged = data.test_inputs, data.test_targets
    if validated:
        judged = inputs[-HELD_OUT:], targets[-HELD_OUT:]
        inputs, targets = inputs[:-HELD_OUT], targets[:-HELD_OUT]
    found = fitted(arm, inputs.shape[1], width)
    goal = scaled(judged[1], targets)
    return Task(
        facts=dataclasses.asdict(run),
        job=Job(
            make_network(found, run.seed),
            make_rows(scaled(inputs, inputs), scaled(targets, targets)),
            None, SQUARED, settings, run.lr, run.lr * run.factor, run.seed,
        ),
        shape=found,
        judged=(scaled(judged[0], inputs).float(), goal),
        unit=float(goal.std(correction=0)),
    )  # fmt: skip


def train_runs(
    arm: Arm, runs: Sequence[Run], width: int, steps: int, validated: bool, what: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Trains networks in stacks; gives their results, and their cost by the number of columns."""
    rows = ROWS - (HELD_OUT if validated else 0)
    per_epoch = -(-rows // BATCH)
    epochs = round(steps / per_epoch)
    rate = make_schedule("onecycle", per_epoch, epochs)
    settings = Settings(BATCH, epochs, tol=0.0, patience=epochs, alpha=0.0, rate=rate)
    tasks = [make_task(arm, run, width, validated, settings) for run in runs]
    shapes = {len(laws.get(run.law).variables): t.shape for run, t in zip(runs, tasks, strict=True)}
    cost = {str(columns): shapes[columns].cost() for columns in sorted(shapes)}
    return train_tasks(tasks, what), cost


def write(
    path: Path, arm: Arm, width: int, steps: int, runs: list[dict[str, Any]], **more: Any
) -> None:
    """Writes the file of an arm, with where it comes from."""
    settings = {
        "activation": "silu", "optimizer": "adam", "schedule": "onecycle", "steps": steps,
        "batch_size": BATCH, "rows": ROWS, "width_of_linear": width,
    }  # fmt: skip
    facts = {"neuron": arm.neuron, "rank": arm.rank, "settings": settings}
    write_piece(path, {**facts, **more, "runs": runs})


def tune(out: Path, arm: Arm, steps: int, width: int = WIDTH) -> tuple[float, float]:
    """The learning rate and factor with the smallest geometric mean of validation errors.

    At another width than the first the learning rate is chosen again, by one seed.
    """
    first = width == WIDTH
    path = out / "tuning" / (f"{arm.name}.json" if first else f"{arm.name}-{width}.json")
    if not path.exists():
        trials, seeds = arm.trials(RATES, LINEAR_RATES), TUNING_SEEDS
        if not first:
            _, factor = tune(out, arm, steps)
            trials, seeds = [(rate, factor) for rate in RATES], TUNING_SEEDS[:1]
        runs = [Run(law, seed, *trial) for trial in trials for law in TUNING_LAWS for seed in seeds]
        found, cost = train_runs(arm, runs, width, steps, True, f"tuning {path.stem}")
        chosen = best_trial(trials, found)
        write(path, arm, width, steps, found, held_out=HELD_OUT, cost=cost, chosen=chosen)
    chosen = read_piece(path)["chosen"]
    return chosen["lr"], chosen["factor"]


def measure(
    out: Path,
    part: str,
    arm: Arm,
    names: Sequence[str],
    seeds: Sequence[int],
    width: int,
    steps: int,
) -> None:
    """Trains an arm on laws with fresh seeds and writes the errors on the test set."""
    path = out / part / (f"{arm.name}.json" if part == "test" else f"{arm.name}-{width}.json")
    lr, factor = tune(out, arm, steps, width)
    if path.exists():
        return
    runs = [Run(law, seed, lr, factor) for law in names for seed in seeds]
    found, cost = train_runs(arm, runs, width, steps, False, f"{part} {path.stem}")
    write(path, arm, width, steps, found, cost=cost)


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
    return {
        r["seed"]: r["error"] for r in data["runs"] if r["law"] == law and r["error"] is not None
    }


def summarize(out: Path) -> str:
    """Tables of errors and their ratios to linear; also writes summary.csv and tuning.csv."""
    tested = list(files(out, "test"))
    rows = [row for data in tested for row in law_rows(data, tested[0])]
    write_csv(out / "summary.csv", rows)
    trials = [
        {"arm": data["arm"], "width": data["settings"]["width_of_linear"], **run}
        for data in files(out, "tuning")
        for run in data["runs"]
    ]
    write_csv(out / "tuning.csv", trials)
    parts = [arm_table(tested, rows), law_table(rows), curve_table(list(files(out, "curve")))]
    return "\n\n".join(part for part in parts if part)


def law_rows(data: dict[str, Any], linear: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row a law: mean, deviation, and the change in percent against linear, paired by seed."""
    for law in laws.names():
        own, other = errors(data, law), errors(linear, law)
        if not own:
            continue
        runs = [run for run in data["runs"] if run["law"] == law]
        shares = [run["quadratic_share"] for run in runs if run["quadratic_share"] is not None]
        # The change of the logarithm: a factor on the error, the same for easy and hard laws.
        both = sorted(set(own) & set(other))
        gap = mean_difference([math.log(own[seed] / other[seed]) for seed in both])
        ratio, low, high = as_factor(gap)
        cost = data["cost"][str(len(laws.get(law).variables))]
        yield {
            "arm": data["arm"], "law": law, "params": cost["params"], "macs": cost["macs"],
            "seeds": len(runs), "diverged": len(runs) - len(own),
            "error_mean": statistics.fmean(own.values()),
            "error_std": statistics.stdev(own.values()) if len(own) > 1 else None,
            "ratio": ratio, "ratio_low": low, "ratio_high": high, "is_clear": gap.is_clear,
            "quadratic_share": statistics.fmean(shares) if shares else None,
            "seconds": statistics.fmean(run["seconds"] for run in runs),
        }  # fmt: skip


def arm_table(tested: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """One row an arm: the mean factor on linear's error, and on how many laws it is clear."""
    cells = []
    for data in tested:
        own = [row for row in rows if row["arm"] == data["arm"]]
        ratio = mean_difference([math.log(row["ratio"]) for row in own])
        half = ratio.half_width or 0.0
        better = sum(row["is_clear"] and row["ratio"] < 1 for row in own)
        worse = sum(row["is_clear"] and row["ratio"] > 1 for row in own)
        shares = [row["quadratic_share"] for row in own if row["quadratic_share"] is not None]
        best = sum(
            row["error_mean"] == min(r["error_mean"] for r in rows if r["law"] == row["law"])
            for row in own
        )
        first = data["runs"][0]
        cells.append([
            data["arm"], f"{first['lr']:g}", f"{first['factor']:g}", str(len(own)),
            " ".join(f"{math.exp(ratio.mean + side * half):.3f}" for side in (0, -1, 1)),
            str(better), str(worse), str(best), str(sum(row["diverged"] for row in own)),
            f"{statistics.fmean(shares):.2f}" if shares else "",
        ])  # fmt: skip
    header = [
        "neuron", "lr", "factor", "laws", "of linear's error, from, to (95 %)", "clearly lower",
        "clearly higher", "lowest of all", "diverged", "share",
    ]  # fmt: skip
    return markdown_table(header, cells, "lrrrrrrrrr")


def law_table(rows: list[dict[str, Any]]) -> str:
    """One row a law: mean ± deviation of every arm."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    found = {(row["arm"], row["law"]): row for row in rows}
    cells = []
    for law in dict.fromkeys(row["law"] for row in rows):
        own = [found.get((arm, law)) for arm in arms]
        cells.append(
            [law, *(f"{r['error_mean']:.4f} ± {r['error_std'] or 0:.4f}" if r else "" for r in own)]
        )
    return markdown_table(["law", *arms], cells, "l" + "r" * len(arms)) if cells else ""


def curve_table(curves: list[dict[str, Any]]) -> str:
    """One row a law and arm: the mean error at the parameters of each linear width."""
    widths = sorted({data["settings"]["width_of_linear"] for data in curves})
    cells = []
    for law, arm in itertools.product(CURVE_LAWS, dict.fromkeys(data["arm"] for data in curves)):
        own = {d["settings"]["width_of_linear"]: errors(d, law) for d in curves if d["arm"] == arm}
        means = [statistics.fmean(own[w].values()) if own.get(w) else None for w in widths]
        cells.append([law, arm, *("" if m is None else f"{m:.4f}" for m in means)])
    header = ["law", "neuron", *(f"linear {width}" for width in widths)]
    return markdown_table(header, cells, "ll" + "r" * len(widths)) if cells else ""


def main() -> None:
    """Runs the parts that are not there yet, or shows what is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/laws"))
    parser.add_argument("--steps", type=int, default=3000, help="of each network, about")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS, help="of the curve")
    parser.add_argument("--arms", nargs="*", help="such as linear eigen-k3; all by default")
    parser.add_argument("--summary", action="store_true", help="show what is there, train nothing")
    given = parser.parse_args()
    if not given.summary:
        chosen = [arm for arm in ARMS if not given.arms or arm.name in given.arms]
        for arm in chosen:
            tune(given.out, arm, given.steps)
        for arm in chosen:
            measure(given.out, "test", arm, laws.names(), TEST_SEEDS, WIDTH, given.steps)
        for width, arm in itertools.product(given.widths, CURVE_ARMS):
            if arm in chosen:
                measure(given.out, "curve", arm, CURVE_LAWS, CURVE_SEEDS, width, given.steps)
    print(summarize(given.out))


if __name__ == "__main__":
    main()
