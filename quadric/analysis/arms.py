"""Runs over seeds: an arm is all that decides a run but its seed, a line all arms of a neuron.

The numbers of every figure come from here, and go into its CSV file and LaTeX table as they are.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quadric.analysis.reading import RunResult, by_dataset
from quadric.errors import InputError

# Fields that say how large a network is: a line goes through all sizes.
_SIZES = ("model", "width", "channels", "hidden", "shortcut", "split")
_WORDS = ("name", "title", "reproduces")
_LONGEST = 24  # letters of settings in the name of a line


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone.

    Attributes:
        dataset: what they learned, and by what they are judged.
        line: the name of the line they belong to: neuron, rank, and what else sets lines apart.
        settings: in which it differs from the other lines of its neuron, in full.
        runs: by seed.
    """

    dataset: str
    line: str
    settings: str
    runs: tuple[RunResult, ...]

    @property
    def first(self) -> RunResult:
        """One of them: all say the same about the network."""
        return self.runs[0]

    @property
    def scores(self) -> list[float]:
        """Of the runs that did not diverge."""
        return [run.score for run in self.runs if run.score is not None and not run.diverged]

    @property
    def mean(self) -> float | None:
        """Of the scores."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the scores over seeds; None for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(run.diverged for run in self.runs)

    @property
    def network(self) -> str:
        """The network and its size, as far as the recipe says it."""
        settings = self.first.settings
        size = [
            f"{key} {settings[key]:g}" if isinstance(settings[key], float) else f"{settings[key]}"
            for key in ("width", "channels", "hidden")
            if settings.get(key) is not None
        ]
        return " ".join([self.first.model, *size])


def arms(runs: Sequence[RunResult]) -> list[Arm]:
    """The arms of some runs, data set by data set; along each line from small to large."""
    found: list[Arm] = []
    for dataset, alike in by_dataset(runs).items():
        groups: dict[str, dict[int | str, RunResult]] = {}
        for run in alike:
            key = run.name if run.seed is None else run.seed
            twin = groups.setdefault(run.arm, {}).setdefault(key, run)
            if {**twin.result, "analysis": None} != {**run.result, "analysis": None}:  # no copy
                raise InputError(
                    f"{twin.name} and {run.name} are two different runs of {run.recipe} with "
                    f"{run.label} neurons and seed {run.seed}: leave one of them out"
                )
        lines = _lines([next(iter(group.values())) for group in groups.values()])
        made = [
            Arm(dataset, *line, tuple(sorted(group.values(), key=lambda run: run.seed or 0)))
            for line, group in zip(lines, groups.values(), strict=True)
        ]
        order = sorted({name for name, _ in lines}, key=lambda name: (name != "linear", name))
        made.sort(key=lambda arm: (order.index(arm.line), arm.first.params or 0))
        found += made
    return found


def _lines(firsts: Sequence[RunResult]) -> list[tuple[str, str]]:
    """The name of each arm's line, and the settings in which it differs from others of its neuron.

    A name holds the settings while they are short, and else a letter for them.
    """
    found = []
    letters: dict[str, dict[str, str]] = {}
    for run in firsts:
        family = [other for other in firsts if other.label == run.label]
        words = []
        for key in sorted({key for other in family for key in other.decisive}):
            values = {json.dumps(other.decisive.get(key), default=str) for other in family}
            quiet = key in (*_SIZES, *_WORDS) or run.settings.get(key) is None
            if len(values) > 1 and not quiet:
                words.append(f"{key}={run.settings[key]}")
        settings = " ".join(words)
        known = letters.setdefault(run.label, {})
        known.setdefault(settings, f"(settings {len(known) + 1})")
        short = settings if len(settings) <= _LONGEST else known[settings]
        found.append((f"{run.label} {short}".rstrip(), settings))
    return found


@dataclass(frozen=True)
class Table:
    """The numbers of a figure.

    Attributes:
        header: the names of the columns.
        rows: the cells; None for a number that is missing.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]

    def to_csv(self) -> str:
        """As a CSV file; a missing number is an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def to_latex(self) -> str:
        """As a LaTeX table with rules of the package booktabs."""
        numeric = [
            all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.header))
        ]
        lines = [
            "% needs \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
            "\\toprule",
            _latex_row([_latex(name) for name in self.header]),
            "\\midrule",
            *(_latex_row([_latex(cell) for cell in row]) for row in self.rows),
            "\\bottomrule",
            "\\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "…": r"\dots{}",
    "λ": r"$\lambda$",
}


def _latex(cell: str | float | None) -> str:
    if cell is None:
        return "--"
    if not isinstance(cell, str):
        return f"{cell:,}".replace(",", "{,}") if isinstance(cell, int) else f"{cell:.4g}"
    return "".join(_LATEX.get(letter, letter) for letter in cell)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def arm_table(found: Sequence[Arm]) -> Table:
    """One row per arm: data set, network, neuron, cost, score over seeds."""
    header = ("data set", "network", "neuron", "parameters", "MACs", "score", "unit", "std")
    rows = [
        (
            arm.dataset,
            arm.network,
            arm.line,
            arm.first.params,
            arm.first.macs,
            arm.mean,
            arm.first.score_label,
            arm.std,
            len(arm.runs),
            arm.diverged,
            arm.settings,
        )
        for arm in found
    ]
    return Table((*header, "seeds", "diverged", "settings"), tuple(rows))
