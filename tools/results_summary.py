"""Write results/summary.csv, one row an arm, from the result files.

    python tools/results_summary.py

A row has the experiment, the arm, what it costs, the mean and standard deviation of its metric over
its seeds (or splits), its quadratic share, its difference to the linear arm with the 95 % interval,
paired by seed, and the command. Errors are compared as a change in percent, accuracies and BLEU in
points. The cells of tables of such rows are written here, too.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence_runs import read_csv, write_csv

from quadric.data.intervals import Difference
from quadric.runs.groups import RunGroup, pair
from quadric.runs.reading import RunResult, read_runs
from quadric.support.texttable import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("images", "translation")
"""Folders with results of `quadric train`, one file a run: EXPERIMENT-ARM-sSEED.json."""
MINUS = "\N{MINUS SIGN}"
Row = Mapping[str, Any]

_NAME = re.compile(r"(?P<experiment>[^-]+)-(?P<arm>.+)-s\d+")


def row(experiment: str, arm: str, metric: str, unit: str, given: Row) -> dict[str, Any]:
    """A row with every column, in order."""
    columns = (
        "params", "macs", "metric", "mean", "std", "seeds", "diverged", "quadratic_share",
        "difference", "low", "high", "unit", "is_clear", "command",
    )  # fmt: skip
    known = {**given, "metric": metric, "unit": unit}
    return {"experiment": experiment, "arm": arm} | {name: known.get(name) for name in columns}


def of_errors(
    rows: Sequence[Row], place: str, metric: str, seeds: str, command: str = ""
) -> Iterator[dict[str, Any]]:
    """Rows of a summary of errors, whose ratios to linear become changes in percent."""
    for given in rows:
        ends = (given["ratio"], given["ratio_low"], given["ratio_high"])
        change, low, high = (None if end is None else 100 * (end - 1) for end in ends)
        more = {"mean": given["error_mean"], "std": given["error_std"], "seeds": given[seeds]}
        more |= {"difference": change, "low": low, "high": high}
        more["command"] = given.get("command") or command
        yield row(place.format(**given), given["arm"], metric, "%", {**given, **more})


def of_polynomials(results: Path) -> Iterator[dict[str, Any]]:
    """Digits without activation functions."""
    for given in read_csv(results / "polynomial" / "summary.csv"):
        gap = None
        if given["difference"] is not None:
            gap = Difference(given["difference"], given["half_width"], 0)
        more = {"mean": given["accuracy_mean"], "std": given["accuracy_std"], **points(gap, 100)}
        yield row("polynomial/digits", given["arm"], "accuracy", "points", {**given, **more})


@functools.cache
def run_groups(folder: Path) -> dict[tuple[str, str], RunGroup]:
    """The runs of a folder by experiment and arm, as their files are named."""
    named: dict[tuple[str, str], dict[int, RunResult]] = {}
    if not any(folder.glob("*.json")):
        return {}
    runs, notes = read_runs(folder)
    if notes:
        raise ValueError("; ".join(notes))
    for run in runs:
        match = _NAME.fullmatch(run.name)
        if match is None:
            raise ValueError(f"{run.path} must be named EXPERIMENT-ARM-sSEED.json")
        named.setdefault((match["experiment"], match["arm"]), {})[run.seed] = run
    return {
        key: RunGroup(tuple(by_seed[seed] for seed in sorted(by_seed)))
        for key, by_seed in named.items()
    }


def of_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Runs of `quadric train`, experiment by experiment, the linear arm first."""
    groups = run_groups(folder)
    order = sorted(groups, key=lambda key: (key[0], key[1] != "linear", key[1]))
    for experiment, arm in order:
        group, base = groups[experiment, arm], groups.get((experiment, "linear"))
        compared = pair(base, group) if base is not None else None
        gap = None if compared is None else compared.difference
        scores = list(group.values().values())
        facts = {
            "params": group.first.params, "macs": group.first.macs, "seeds": len(group.runs),
            "mean": statistics.fmean(scores) if scores else None,
            "std": statistics.stdev(scores) if len(scores) > 1 else None,
            "diverged": len(group.runs) - len(scores),
            "quadratic_share": statistics.fmean(group.shares) if group.shares else None,
            "is_clear": gap is not None and gap.is_clear,
            "command": group.first.values["command"], **points(gap, group.metric.scale),
        }  # fmt: skip
        yield row(f"{folder.name}/{experiment}", arm, group.metric.name, "points", facts)


def points(gap: Difference | None, scale: float) -> dict[str, Any]:
    """A difference and its interval in points, as columns of a row."""
    if gap is None:
        return {}
    ends = {} if gap.half_width is None else {
        "low": scale * (gap.mean - gap.half_width), "high": scale * (gap.mean + gap.half_width)
    }  # fmt: skip
    return {"difference": scale * gap.mean, **ends}


@functools.cache
def summary_rows(results: Path) -> list[dict[str, Any]]:
    """All rows."""
    laws, tables = (read_csv(results / part / "summary.csv") for part in ("laws", "tables"))
    # What people use instead is compared with the networks of equal size.
    for one in tables:
        one["protocol"] = one["protocol"].replace("others", "equal")
    return [
        *of_errors(laws, "laws/{law}", "error", "seeds", "python tools/evidence_laws.py"),
        *of_errors(tables, "tables/{protocol}/{table}", "rmse", "splits"),
        *of_polynomials(results),
        *(one for part in RUNS for one in of_runs(results / part)),
    ]


def arms_of(results: Path, experiment: str) -> dict[str, dict[str, Any]]:
    """The rows of an experiment, by arm."""
    return {r["arm"]: r for r in summary_rows(results) if r["experiment"] == experiment}


# Cells


Column = tuple[str, Callable[[Any], Any]]
"""Its header, and the cell of a row; a header that ends in "|" stands at the left."""


def table(rows: Iterable[Any], *columns: Column) -> str:
    """Rows as a table in markdown; the first column stands at the left."""
    header = [name.rstrip("|") for name, _ in columns]
    right = "".join("l" if name.endswith("|") or not i else "r" for i, (name, _) in
                    enumerate(columns))  # fmt: skip
    cells = [[cell(one) for _, cell in columns] for one in rows]
    return markdown_table(header, [["" if c is None else c for c in r] for r in cells], right)


def whole(key: str) -> Callable[[Row], str]:
    """A column of whole numbers."""
    return lambda row: "" if row[key] is None else f"{int(row[key]):,}"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, the minus as long as the plus."""
    return f"{value:+.{digits}f}".replace("-", MINUS)


def changed(row: Row, unit: str = "") -> str:
    """How a row differs from linear, with its interval; bold where the interval leaves 0 out."""
    if row.get("difference") is None:
        return ""
    text = signed(row["difference"])
    if row.get("low") is not None:
        text += f" ({signed(row['low'])} … {signed(row['high'])})"
    text += unit
    return f"**{text}**" if row["is_clear"] else text


def to_linear(row: Row) -> str:
    """The same, for a table that has the linear network in a row of its own."""
    return "" if row["arm"] == "linear" else changed(row)


def spread(row: Row, scale: float = 1, digits: str = "#.3g") -> str:
    """Mean ± standard deviation, and how many runs diverged."""
    if row["mean"] is None:
        return "diverged"
    text = f"{scale * row['mean']:{digits}}"
    if row.get("std") is not None:
        text += f" ± {scale * row['std']:{digits}}"
    return f"{text}, {row['diverged']} diverged" if row.get("diverged") else text


def share(row: Row) -> str:
    """The quadratic share; empty for a linear network."""
    value = row["quadratic_share"]
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1g}"


def score(header: str, scale: float, digits: str) -> Column:
    """The column of means."""
    return (header, lambda row: spread(row, scale, digits))


ARM: Column = ("arm|", lambda row: row["arm"])
COSTS: tuple[Column, ...] = (("parameters", whole("params")), ("MACs", whole("macs")))
SEEDS: Column = ("seeds", lambda row: row["seeds"])
TO_LINEAR: Column = ("to linear, points", to_linear)
SHARE: Column = ("quadratic share", share)


if __name__ == "__main__":
    write_csv(ROOT / "results" / "summary.csv", summary_rows(ROOT / "results"))
