"""Write results/summary.csv, one row an arm, from the result files.

    python tools/results_summary.py

A row has the experiment, the arm, what it costs, the mean and standard deviation of its metric over
its seeds (or splits), its quadratic share, its difference to the linear arm with the 95 % interval,
paired by seed, and the command. Errors are compared as a change in percent, accuracies and BLEU in
points.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence_runs import read_csv, read_piece, write_csv

from quadric.data.intervals import Difference, mean_difference
from quadric.runs.metrics import Metric, metric_of

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("images", "translation")
"""Folders with results of `quadric train`, one file a run: EXPERIMENT-ARM-sSEED.json."""

_NAME = re.compile(r"(?P<experiment>[^-]+)-(?P<arm>.+)-s(?P<seed>\d+)")


def row(
    experiment: str, arm: str, cost: Mapping[str, Any], metric: str, unit: str, **found: Any
) -> dict[str, Any]:
    """A row with every column, in order."""
    return {
        "experiment": experiment, "arm": arm, "params": cost["params"], "macs": cost["macs"],
        "metric": metric, "mean": found["mean"], "std": found["std"], "seeds": found["seeds"],
        "diverged": found["diverged"], "quadratic_share": found["share"],
        "difference": found["difference"], "low": found["low"], "high": found["high"],
        "unit": unit, "is_clear": found["is_clear"], "command": found["command"],
    }  # fmt: skip


def of_errors(
    rows: Sequence[Mapping[str, str]], place: str, metric: str, seeds: str, command: str = ""
) -> Iterator[dict[str, Any]]:
    """Rows of a summary of errors, whose ratios to linear become changes in percent."""
    for given in rows:
        ends = (given["ratio"], given["ratio_low"], given["ratio_high"])
        change, low, high = (100 * (float(end) - 1) if end else "" for end in ends)
        yield row(
            place.format(**given), given["arm"], given, metric, "%",
            mean=given["error_mean"], std=given["error_std"], seeds=given[seeds],
            diverged=given["diverged"], share=given["quadratic_share"], difference=change,
            low=low, high=high, is_clear=given["is_clear"],
            command=given.get("command") or command,
        )  # fmt: skip


def of_polynomials(results: Path) -> Iterator[dict[str, Any]]:
    """Digits without activation functions."""
    for given in read_csv(results / "polynomial" / "summary.csv"):
        mean, half = given["difference"], given["half_width"]
        gap = Difference(float(mean), float(half) if half else None, 0) if mean else None
        yield row(
            "polynomial/digits", given["arm"], given, "accuracy", "points",
            mean=given["accuracy_mean"], std=given["accuracy_std"], seeds=given["seeds"],
            diverged=given["diverged"], share=given["quadratic_share"],
            is_clear=given["is_clear"], command=given["command"], **points(gap, 100),
        )  # fmt: skip


def run_files(folder: Path) -> dict[tuple[str, str], dict[int, Path]]:
    """The result files of a folder, by experiment and arm, then by seed."""
    found: dict[tuple[str, str], dict[int, Path]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".analysis.json"):
            continue
        match = _NAME.fullmatch(path.stem)
        if match is None:
            raise ValueError(f"{path} must be named EXPERIMENT-ARM-sSEED.json")
        found.setdefault((match["experiment"], match["arm"]), {})[int(match["seed"])] = path
    return found


def of_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Runs of `quadric train`, grouped by the names of their files."""
    arms = {
        key: {seed: read_piece(path) for seed, path in files.items()}
        for key, files in run_files(folder).items()
    }
    for (experiment, arm), runs in sorted(arms.items(), key=lambda item: _order(item[0])):
        first = runs[min(runs)]
        own, metric = scores(runs)
        base = scores(arms[experiment, "linear"])[0] if (experiment, "linear") in arms else {}
        both = sorted(set(own) & set(base))
        gap = mean_difference([own[s] - base[s] for s in both]) if both else None
        shares = [
            statistics.fmean(run["quadratic_share"].values())
            for run in runs.values()
            if run.get("quadratic_share")
        ]
        yield row(
            f"{folder.name}/{experiment}", arm, first, metric.name, "points",
            mean=statistics.fmean(own.values()) if own else "",
            std=statistics.stdev(own.values()) if len(own) > 1 else "",
            seeds=len(runs), diverged=len(runs) - len(own),
            share=statistics.fmean(shares) if shares else "",
            is_clear=gap is not None and gap.is_clear, command=first["command"],
            **points(gap, metric.scale),
        )  # fmt: skip


def _order(key: tuple[str, str]) -> tuple[str, bool, str]:
    """Experiments by name, in each the linear arm first."""
    return key[0], key[1] != "linear", key[1]


def scores(runs: Mapping[int, Mapping[str, Any]]) -> tuple[dict[int, float], Metric]:
    """The score of each seed that did not diverge, and what it is."""
    first = runs[min(runs)]
    metric = metric_of(first)
    assert metric is not None
    found = {seed: run.get(metric.key) for seed, run in runs.items()}
    return {seed: score for seed, score in found.items() if score is not None}, metric


def points(gap: Difference | None, scale: float) -> dict[str, Any]:
    """A difference and its interval in points, as columns of a row."""
    if gap is None:
        return {"difference": "", "low": "", "high": ""}
    ends = {"low": "", "high": ""} if gap.half_width is None else {
        "low": scale * (gap.mean - gap.half_width), "high": scale * (gap.mean + gap.half_width)
    }  # fmt: skip
    return {"difference": scale * gap.mean, **ends}


def rows(results: Path) -> list[dict[str, Any]]:
    """All rows."""
    law_command = "python tools/evidence_laws.py"
    laws, tables = (read_csv(results / part / "summary.csv") for part in ("laws", "tables"))
    # What people use instead is compared with the networks of equal size.
    for one in tables:
        one["protocol"] = one["protocol"].replace("others", "equal")
    return [
        *of_errors(laws, "laws/{law}", "error", "seeds", law_command),
        *of_errors(tables, "tables/{protocol}/{table}", "rmse", "splits"),
        *of_polynomials(results),
        *(found for part in RUNS for found in of_runs(results / part)),
    ]


def main(results: Path = ROOT / "results") -> None:
    """Writes the file."""
    write_csv(results / "summary.csv", rows(results))


if __name__ == "__main__":
    main()
