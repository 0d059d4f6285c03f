"""Every comparison with a linear network of the same size in one form, and how sure each is."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence_perceptrons import TITLES
from evidence_runs import read_csv, read_piece
from results_summary import arms_of, run_groups, signed
from tables_of_evidence import SIZES, named_group

from quadric.data.intervals import Difference, mean_difference
from quadric.runs.groups import pair
from quadric.support.texttable import markdown_table

stats: Any = importlib.import_module("scipy.stats")

POWER, WANTED = 0.8, 0.5
"""How often a difference should be seen, and the points that a reader may want to be seen."""
ARMS = {"eigen": "eigen-k3", "shared": "shared-k4", "glu": "glu"}
PICTURES = ("eigen", "shared", "square", "linear_wide")


@dataclass(frozen=True)
class Effect:
    """How far a neuron is from linear on a task."""

    task: str
    arm: str
    gap: Difference  # of the error in percent, or of accuracy and BLEU in points

    @property
    def ends(self) -> tuple[float, float]:
        return self.gap.ends


def percents(gap: Difference) -> Difference:
    """A mean of logarithms of ratios as a change in percent."""
    mean, low, high = (100 * math.expm1(value) for value in (gap.mean, *gap.ends))
    return Difference(mean, gap.half_width and (high - low) / 2, gap.pairs, low, high)


def law_effects(results: Path) -> Iterator[Effect]:
    """The 25 laws under Adam, and those that were fitted by second order."""
    rows = read_csv(results / "laws" / "summary.csv")
    for arm, name in ARMS.items():
        logs = [math.log(row["ratio"]) for row in rows if row["arm"] == name]
        yield Effect("25 laws, Adam", arm, percents(mean_difference(logs)))
    for arm, gap in second_order_gaps(results).items():
        yield Effect("25 laws, second order", arm, percents(gap))


def second_order_gaps(results: Path, noise: float = 0.0) -> dict[str, Difference]:
    """Of the logarithms of errors under second order, law by law."""
    errors = {
        (run["arm"], run["law"], run["seed"]): run["error"]
        for run in read_piece(results / "solvers.json")["fits"]
        if run["noise"] == noise and run["solver"] == "lm" and run["error"]
    }
    gaps = {}
    for arm, name in ARMS.items():
        ratios: dict[str, list[float]] = {}
        for (own, law, seed), error in errors.items():
            if own == name and ("linear", law, seed) in errors:
                ratios.setdefault(law, []).append(math.log(error / errors["linear", law, seed]))
        gaps[arm] = mean_difference([statistics.fmean(logs) for logs in ratios.values()])
    return gaps


def table_effects(results: Path) -> Iterator[Effect]:
    """The UCI tables; their intervals allow for splits that overlap."""
    rows = read_csv(results / "tables" / "summary.csv")
    for row in rows:
        for arm, name in ARMS.items():
            if row["protocol"] == "equal" and row["arm"] == name:
                mean, low, high = (100 * row[k] - 100 for k in ("ratio", "ratio_low", "ratio_high"))
                gap = Difference(mean, (high - low) / 2, row["splits"], low, high)
                yield Effect(row["table"].partition("-")[0], arm, gap)


def solver_factors(results: Path) -> Iterator[tuple[str, str, float]]:
    """Neuron, solver, and the error on laws without noise as a multiple of linear under Adam."""
    errors: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for run in read_piece(results / "solvers.json")["fits"]:
        if run["noise"] == 0 and run["error"]:
            own = errors.setdefault((run["arm"], run["solver"]), {})
            own[run["law"], run["seed"]] = run["error"]
    base = errors["linear", "adam"]
    for (arm, solver), own in errors.items():
        logs = [math.log(own[cell] / base[cell]) for cell in own.keys() & base.keys()]
        yield arm.partition("-")[0], solver, math.exp(statistics.fmean(logs))


def table_factors(results: Path) -> Iterator[tuple[str, float]]:
    """The error of neurons and of trees on the UCI tables, as a multiple of linear."""
    rows = [
        r for r in read_csv(results / "tables" / "summary.csv") if r["protocol"] != "literature"
    ]
    for arm, name in {**ARMS, "LightGBM": "LightGBM"}.items():
        logs = [math.log(row["ratio"]) for row in rows if row["arm"] == name]
        yield arm, math.exp(statistics.fmean(logs))


def picture_effects(results: Path) -> Iterator[Effect]:
    """Residual networks on small pictures with ReLU, one by one."""
    for experiment, words in SIZES.items():
        for arm in PICTURES:
            if arm in arms_of(results, f"images/{experiment}"):
                yield Effect(words, arm, mean_difference(_points(results, experiment, arm)))


def wide_effects(results: Path) -> Iterator[Effect]:
    """The same networks against a linear one that is the next larger."""
    for experiment, words in SIZES.items():
        if "linear_wide" in arms_of(results, f"images/{experiment}"):
            for arm in PICTURES[:2]:
                gaps = _points(results, experiment, arm, "linear_wide")
                if len(gaps) > 1:
                    yield Effect(f"{words}, to `linear_wide`", arm, mean_difference(gaps))


def pooled_effects(results: Path) -> Iterator[Effect]:
    """The same, the pairs of all networks in one mean."""
    for arm in PICTURES[:2]:
        pairs = [gap for name in SIZES for gap in _points(results, name, arm)]
        yield Effect("all five networks", arm, mean_difference(pairs))


def _points(results: Path, experiment: str, arm: str, other: str = "linear") -> list[float]:
    """Differences to another arm in points, seed by seed."""
    groups = run_groups(results / "images")
    own, base = (groups[experiment, name].values() for name in (arm, other))
    return [100 * (own[seed] - base[seed]) for seed in sorted(own.keys() & base.keys())]


def text_effects(results: Path) -> Iterator[Effect]:
    """Small Transformers against the linear one as small."""
    base = named_group(results, "translation/multi30k10-linear_shrunk")
    for arm, name in (("eigen", "eigen_shrunk"), ("glu", "glu_ff")):
        compared = pair(base, named_group(results, f"translation/multi30k10-{name}"))
        assert compared is not None
        yield Effect("Multi30k, BLEU", arm, compared.difference)


def perceptron_effects(results: Path) -> Iterator[Effect]:
    """Perceptrons on flat pictures, by the epochs that validation chose."""
    fits = read_piece(results / "perceptrons.json")["fits"]
    found = {(f["data"], f["width"], f["arm"], f["seed"]): f["test_accuracy"] for f in fits}
    for name, width in dict.fromkeys(key[:2] for key in found):
        size = next(f["params"] for f in fits if (f["data"], f["width"]) == (name, width))
        for arm in ARMS:
            gaps = [
                100 * (score - found[name, width, "linear", seed])
                for (*which, seed), score in found.items()
                if which == [name, width, arm] and (name, width, "linear", seed) in found
            ]
            if len(gaps) > 1:
                task = f"{TITLES[name]}, perceptron {size:,}"
                yield Effect(task, arm, mean_difference(gaps))


def visible(gap: Difference, pairs: int | None = None) -> float:
    """The difference that a paired t-test would call clear four times in five.

    It has the spread that was measured, and these pairs, or another number of them.
    """
    low, high = gap.ends
    error = (high - low) / 2 / stats.t.ppf(0.975, gap.pairs - 1)
    count = pairs or gap.pairs
    error *= math.sqrt(gap.pairs / count)
    limit = stats.t.ppf(0.975, count - 1)
    near, far = 0.0, 50.0
    for _ in range(50):  # the power grows with the shift
        middle = (near + far) / 2
        found = stats.nct.sf(limit, count - 1, middle) >= POWER
        near, far = (near, middle) if found else (middle, far)
    return float(far * error)


def power_table(results: Path) -> str:
    """Which differences the runs on pictures could have seen, and how many seeds see more."""
    rows = []
    effects = [
        *picture_effects(results), *pooled_effects(results), *wide_effects(results),
        *text_effects(results),
    ]  # fmt: skip
    for effect in effects:
        low, high = effect.ends
        text = f"{signed(effect.gap.mean)} ({signed(low)} … {signed(high)})"
        count = range(3, 200)
        needed = next((n for n in count if visible(effect.gap, n) <= WANTED), None)
        rows.append([
            effect.task, f"`{effect.arm}`", str(effect.gap.pairs),
            f"**{text}**" if effect.gap.is_clear else text, f"{visible(effect.gap):.1f}",
            "over 200" if needed is None else str(needed),
        ])  # fmt: skip
    header = ["network", "arm", "pairs", "difference, points", "would be seen, points",
              f"pairs to see {WANTED:g} points"]  # fmt: skip
    note = (
        "Against the linear network of the same size, if nothing else is said. "
        f"*Would be seen*: the true difference that such a test calls clear in {POWER:.0%} of all "
        "cases, if seeds spread as they did here. Made from the runs in `results/`."
    )
    return f"{markdown_table(header, rows, 'llrrrr')}\n\n{note}"
