"""The table of the README: what won and what did not, a row a task, from results/."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evidence_runs import read_csv, read_piece
from results_summary import arms_of, changed

from quadric.data.intervals import mean_difference
from quadric.support.texttable import markdown_table

NETWORKS = {"linear": "linear", "eigen-k3": "eigen", "shared-k4": "shared", "glu": "SwiGLU"}


def findings_table(results: Path) -> str:
    """One row for each task: the errors or scores of the networks, and what follows."""
    rows = [
        _laws(results), _solvers(results), _formulas(results), _equations(results),
        _encrypted(results), *_pictures(results), _tables(results),
    ]  # fmt: skip
    return markdown_table(["task", "measured", "in short"], rows, "lll")


def _listed(pairs: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _laws(results: Path) -> list[str]:
    """All laws under Adam, as factors on the error of linear."""
    found = read_csv(results / "laws" / "summary.csv")

    def factor(arm: str) -> str:
        logs = [math.log(row["ratio"]) for row in found if row["arm"] == arm]
        return f"{math.exp(statistics.fmean(logs)):.2f}"

    measured = _listed((NETWORKS[arm], factor(arm)) for arm in list(NETWORKS)[1:])
    task = "25 physical laws, Adam, size of linear 32-32; error, linear = 1"
    return [task, measured, "`shared` and SwiGLU ahead of linear"]


def _solvers(results: Path) -> list[str]:
    """The same laws under second order, against Adam."""
    fits = read_piece(results / "solvers.json")["fits"]
    errors = {
        (run["arm"], run["solver"], run["law"], run["seed"]): run["error"]
        for run in fits
        if run["noise"] == 0
    }
    cells = {key[2:] for key in errors}
    whole = [
        cell
        for cell in cells
        if all((arm, solver, *cell) in errors for arm in NETWORKS for solver in ("adam", "lm"))
    ]

    def error(arm: str, solver: str, cell: tuple[str, int]) -> float:
        key = (arm, solver, *cell)
        return float(errors[key])

    def mean(arm: str, solver: str) -> float:
        return math.exp(statistics.fmean(math.log(error(arm, solver, cell)) for cell in whole))

    gaps = [
        mean_difference([
            statistics.fmean(
                math.log(error(arm, "lm", cell) / error("linear", "lm", cell))
                for cell in whole
                if cell[0] == law
            )
            for law in sorted({cell[0] for cell in whole})
        ])
        for arm in ("shared-k4", "eigen-k3")
    ]  # fmt: skip
    ahead = any(gap.is_clear and gap.mean < 0 for gap in gaps)
    short = "the solver matters most; " + (
        "quadratic neurons ahead" if ahead else "no quadratic neuron clearly ahead"
    )
    measured = _listed(
        (name, f"{mean(arm, 'adam'):.2g} → {mean(arm, 'lm'):.1g}") for arm, name in NETWORKS.items()
    )
    laws = len({cell[0] for cell in whole})
    task = f"{laws} laws, 500 rows, size of linear 12-12; error by Adam → second order"
    return [task, measured, short]


def _formulas(results: Path) -> list[str]:
    """The formulas of the Feynman list that were found again."""
    parts = []
    for noise in ("0", "0.01", "0.1"):
        fits = read_piece(results / "formulas" / f"noise-{noise}.json")["fits"]
        fits = [run for run in fits if run["kind"] in ("polynomial", "ratio")]
        count = sum(bool(run["exact"]) for run in fits)
        parts.append(f"{float(noise):.0%} noise: {count} of {len(fits)}")
    task = (
        "polynomials and ratios of the Feynman list that were tried; found exactly from 1,000 rows"
    )
    return [task, "; ".join(parts), "`quadric discover`, no network needed for most"]


def _equations(results: Path) -> list[str]:
    """The lowest error on each differential equation under second order, by network."""
    fits = [run for run in read_piece(results / "equations.json")["fits"] if run["solver"] == "lm"]
    parts = []
    for equation in dict.fromkeys(run["equation"] for run in fits):
        own = [run for run in fits if run["equation"] == equation]
        best = min(own, key=lambda run: run["error"])
        parts.append(f"{equation.title()} {best['error']:.0e} ({best['seconds']:.0f} s)")
    task = "differential equations, second order, about 500 to 800 parameters; relative error"
    return [task, ", ".join(parts), "the solver; curvature not clearly"]


def _encrypted(results: Path) -> list[str]:
    """MNIST under encryption."""
    many, one = (read_piece(results / "encrypted" / f"{name}.json") for name in ("many", "one"))
    seconds = [data["seconds_a_picture"]["run"] for data in (one, many)]
    measured = (
        f"{many['test_accuracy']:.2%} on {many['pictures']:,} encrypted pictures, "
        f"{many['predictions_that_differ']} differ; {seconds[0]:.2f} s for one, "
        f"{1000 * seconds[1]:.0f} ms each for thousands"
    )
    short = "one layer of squares is enough; plain x² does as well"
    return ["MNIST that the server cannot read", measured, short]


def _pictures(results: Path) -> Iterator[list[str]]:
    """Small pictures, without and with ReLU."""
    arms = arms_of(results, "images/poly8")
    names = {"linear": "linear", "squared": "x²", "eigen": "eigen", "square": "square"}
    measured = _listed((name, f"{100 * arms[arm]['mean']:.1f}") for arm, name in names.items())
    task = "ResNet-8 without activations, CIFAR-10 at 16x16; accuracy, %"
    yield [task, measured, "squares make it a network"]
    parts = []
    for name, experiment in (("ResNet-8", "images/r8"), ("ResNet-20", "images/r20")):
        arms = arms_of(results, experiment)
        found = [f"{arm} {changed(arms[arm])}" for arm in ("eigen", "shared")]
        parts.append(f"{name}: {', '.join(found)}")
    task = "the same with ReLU; points to linear, 95 % interval"
    yield [task, "; ".join(parts), "a point at most, nothing in the deeper one"]


def _tables(results: Path) -> list[str]:
    """How many of the UCI tables show a clear gain or loss against linear."""
    rows: list[Any] = read_csv(results / "summary.csv")
    own = [row for row in rows if row["experiment"].startswith("tables/equal/")]
    count = len({row["experiment"] for row in own})

    def cell(arms: Sequence[str]) -> str:
        clear = [row for row in own if row["arm"] in arms and row["is_clear"]]
        better = {row["experiment"] for row in clear if row["difference"] < 0}
        worse = {row["experiment"] for row in clear if row["difference"] > 0} - better
        return f"{len(better)} better, {len(worse)} worse"

    groups = {"eigen": ["eigen-k3"], "shared": ["shared-k4"], "SwiGLU": ["glu"]}
    groups["boosted trees"] = ["HistGradientBoosting", "LightGBM"]
    measured = "; ".join(f"{name} {cell(arms)}" for name, arms in groups.items())
    task = f"{count} UCI tables, Adam, equal parameters; clearly better or worse than linear"
    return [task, measured, "compare on your own table"]
