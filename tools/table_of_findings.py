"""The table of README and evidence: what won and what did not, a row a task, from results/."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from effects import (
    law_effects,
    perceptron_effects,
    pooled_effects,
    second_order_gaps,
    text_effects,
    visible,
)
from evidence_runs import read_csv, read_piece
from results_summary import arms_of, changed, signed

from quadric.data.intervals import Difference
from quadric.support.texttable import markdown_table

NETWORKS = {"linear": "linear", "eigen-k3": "eigen", "shared-k4": "shared", "glu": "SwiGLU"}
ARMS = {"eigen": "eigen", "shared": "shared", "glu": "SwiGLU"}


def findings_table(results: Path) -> str:
    """One row for each task: the errors or scores of the networks, and what follows."""
    rows = [row[:3] for row in _rows(results)]
    return markdown_table(["task", "measured", "in short"], rows, "lll")


def sure_table(results: Path) -> str:
    """The same, and how sure it is; what was hoped for and not seen comes first."""
    laws, solvers, formulas, equations, hidden, without, pictures, tables = _rows(results)
    rows = [
        pictures, _texts(results), _perceptrons(results), solvers, equations, tables,
        laws, without, hidden, formulas, _reading(results),
    ]  # fmt: skip
    return markdown_table(["task", "measured", "in short", "how sure"], rows, "llll")


def _rows(results: Path) -> list[list[str]]:
    return [
        _laws(results), _solvers(results), _formulas(results), _equations(results),
        _encrypted(results), *_pictures(results), _tables(results),
    ]  # fmt: skip


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
    sure = "; ".join(
        f"{ARMS[e.arm]} {signed(e.ends[0], 0)} … {signed(e.ends[1], 0)} %"
        for e in law_effects(results)
        if e.task == "25 laws, Adam"
    )
    sure = f"sure: 10 seeds a law; 95 % intervals {sure}"
    return [task, measured, "`shared` and SwiGLU ahead of linear", sure]


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

    gaps = second_order_gaps(results)
    noisy = _ahead(second_order_gaps(results, 0.01))
    short = f"the solver matters most; then {_ahead(gaps)} without noise, {noisy} with 1 %"
    measured = _listed(
        (name, f"{mean(arm, 'adam'):.2g} → {mean(arm, 'lm'):.1g}") for arm, name in NETWORKS.items()
    )
    laws = len({cell[0] for cell in whole})
    task = f"{laws} laws, 500 rows, size of linear 12-12; error by Adam → second order"
    factors = (
        f"{ARMS[arm]} {math.exp(gap.ends[0]):.2f}–{math.exp(gap.ends[1]):.2f}"
        for arm, gap in gaps.items()
    )
    seeds = max(Counter(cell[0] for cell in whole).values())
    sure = (
        f"the solver: sure; the neurons, without noise, {seeds} seed{'s' * (seeds > 1)}: "
        f"of linear's error {', '.join(factors)}"
    )
    return [task, measured, short, sure]


def _ahead(gaps: Mapping[str, Difference]) -> str:
    """The quadratic neurons that are clearly ahead of linear ones."""
    names = [a for a in ("shared", "eigen") if gaps[a].is_clear and gaps[a].mean < 0]
    return f"{' and '.join(names)} ahead" if names else "no quadratic neuron"


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
    sure = "one draw of rows an equation; those that were not tried are open"
    return [task, "; ".join(parts), "`quadric discover`, no network needed for most", sure]


def _equations(results: Path) -> list[str]:
    """The lowest error on each differential equation under second order, by network."""
    fits = [run for run in read_piece(results / "equations.json")["fits"] if run["solver"] == "lm"]
    parts = []
    for equation in dict.fromkeys(run["equation"] for run in fits):
        own = [run for run in fits if run["equation"] == equation]
        best = min(own, key=lambda run: run["error"])
        parts.append(f"{equation.title()} {best['error']:.0e} ({best['seconds']:.0f} s)")
    task = "differential equations, second order, about 500 to 800 parameters; relative error"
    sure = "the solver: sure, by factors of a thousand; one to three seeds"
    return [task, ", ".join(parts), "the solver; curvature not clearly", sure]


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
    sure = "sure of the arithmetic: every picture was decrypted; one network"
    return ["MNIST that the server cannot read", measured, short, sure]


def _pictures(results: Path) -> Iterator[list[str]]:
    """Small pictures, without and with ReLU."""
    arms = arms_of(results, "images/poly8")
    names = {"linear": "linear", "squared": "x²", "eigen": "eigen", "square": "square"}
    measured = _listed((name, f"{100 * arms[arm]['mean']:.1f}") for arm, name in names.items())
    task = "ResNet-8 without activations, CIFAR-10 at 16x16; accuracy, %"
    sure = f"sure: {arms['eigen']['seeds']} seeds, eigen {changed(arms['eigen'])} points to linear"
    yield [task, measured, "squares make it a network", sure]
    parts = []
    for name, experiment in (("ResNet-8", "images/r8"), ("ResNet-20", "images/r20")):
        arms = arms_of(results, experiment)
        found = [f"{arm} {changed(arms[arm])}" for arm in ("eigen", "shared")]
        parts.append(f"{name}: {', '.join(found)}")
    task = "ResNets with ReLU, CIFAR-10 at 16x16; points to linear, 95 % interval"
    pooled = "; ".join(
        f"{ARMS[e.arm]} {signed(e.gap.mean)} ({signed(e.ends[0])} … {signed(e.ends[1])}), "
        f"{visible(e.gap):.1f} would be seen"
        for e in pooled_effects(results)
    )
    sure = f"five networks, {next(pooled_effects(results)).gap.pairs} pairs of seeds: {pooled}"
    yield [task, "; ".join(parts), "a point at most, nothing in the deeper one", sure]


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
    sure = "20 splits of small tables, 5 of large ones; most differences lie inside the intervals"
    return [task, measured, "compare on your own table", sure]


def _texts(results: Path) -> list[str]:
    """Small Transformers."""
    measured = "; ".join(
        f"{ARMS[e.arm]} {signed(e.gap.mean)} ({signed(e.ends[0])} … {signed(e.ends[1])})"
        for e in text_effects(results)
    )
    task = "Transformers a fifth smaller, Multi30k, 10 epochs; BLEU to the linear one as small"
    eigen = next(text_effects(results))
    sure = f"3 seeds; {visible(eigen.gap):.1f} would be seen for eigen, which stays nearly linear"
    return [task, measured, "SwiGLU, not eigen", sure]


def _perceptrons(results: Path) -> list[str]:
    """Perceptrons with GELU on pictures as vectors."""
    found = list(perceptron_effects(results))
    parts = []
    for task in dict.fromkeys(effect.task for effect in found):
        own = (e for e in found if e.task == task)
        gaps = ", ".join(f"{ARMS[e.arm]} {signed(e.gap.mean)}" for e in own)
        parts.append(f"{task.partition(',')[0]}: {gaps}")
    ahead = any(effect.gap.is_clear and effect.gap.mean > 0 for effect in found)
    behind = [ARMS[e.arm] for e in found if e.gap.is_clear and e.gap.mean < 0]
    short = "some ahead of linear" if ahead else "none ahead of linear"
    short += f"; behind: {', '.join(dict.fromkeys(behind))}" if behind else ""
    seeds, seen = found[0].gap.pairs, sorted(visible(effect.gap) for effect in found)
    task = "perceptrons with GELU on flat pictures, equal parameters; points to linear"
    sure = f"{seeds} seeds; {seen[0]:.1f} to {seen[-1]:.1f} would be seen"
    return [task, "; ".join(parts), short, sure]


def _reading(results: Path) -> list[str]:
    """The effective rank of networks of degree two without weight decay, and with the most."""
    fits = [f for f in read_piece(results / "reading.json")["fits"] if f["effective_rank"]]
    parts = []
    for arm in dict.fromkeys(f["arm"] for f in fits):
        ends = []
        for decay in (0.0, 1.0):
            own = [f for f in fits if (f["arm"], f["decay"]) == (arm, decay)]
            rank, score = (
                statistics.fmean(f[k] for f in own) for k in ("effective_rank", "test_accuracy")
            )
            ends.append(f"{rank:.0f} ({score:.1%})")
        parts.append(f"{arm} {' → '.join(ends)}")
    task = (
        "MNIST read by eigenvectors; effective rank (accuracy) without and with weight decay of 1"
    )
    short = "decay halves the rank; the pictures can be read"
    seeds = min(len({f["seed"] for f in fits if f["arm"] == arm}) for arm in ("eigen", "shared"))
    sure = f"exact for each network; the same in four neurons; {seeds} seed{'s' * (seeds > 1)}"
    return [task, "; ".join(parts), short, sure]
