"""Many results as one table: a row for each arm, over its seeds, and paired differences of arms.

An arm is all that decides a run but its seed. Two arms of the same recipe and data are compared on
the seeds that both have: the same seed gives both the same order of the data, so the difference
varies less than either.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quadric._text import markdown_table, text_table
from quadric.train.intervals import Difference, paired_difference

METRICS = ("test_accuracy", "test_rmse")
# Shown in columns of their own.
_SHOWN = ("name", "dataset", "model", "neuron", "rank")


@dataclass
class Arm:
    """The runs of one arm.

    Attributes:
        settings: the resolved recipe without the seed.
        runs: results by seed.
    """

    settings: dict[str, Any]
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        return str(self.settings["name"])

    @property
    def first(self) -> dict[str, Any]:
        return next(iter(self.runs.values()))

    @property
    def metric(self) -> str:
        return next(name for name in METRICS if name in self.first)

    def values(self, name: str) -> dict[int, float]:
        """A number of each run that has it, by seed."""
        found = {seed: run.get(name) for seed, run in sorted(self.runs.items())}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    @property
    def diverged(self) -> int:
        return sum(run["status"] == "diverged" for run in self.runs.values())

    @property
    def label(self) -> str:
        rank = self.settings.get("rank")
        return f"{self.settings['neuron']}" + (f"[{rank}]" if rank is not None else "")


def read_results(paths: Iterable[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads results.

    Args:
        paths: run directories, or result files; of a directory without a result those below it.

    Returns:
        The results, and a line for each directory that is a run but has no result yet.
    """
    found: list[dict[str, Any]] = []
    open_runs: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"no such run: {path}: name run directories or result.json files")
        if path.is_file():
            if path.suffix == ".json":
                found.append(_read(path))
            continue
        if (path / "result.json").is_file():
            found.append(_read(path / "result.json"))
        elif (path / "recipe.yaml").is_file():
            open_runs.append(f"{path} is not finished: quadric train {path} --resume")
        else:
            for below in sorted(path.iterdir()):
                if (below / "recipe.yaml").is_file() or below.suffix == ".json":
                    results, unfinished = read_results([below])
                    found += results
                    open_runs += unfinished
    return found, open_runs


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} is not JSON: remove it, or train that run again") from None
    needed = ("recipe", "neuron", "seed", "status", "settings")
    missing = [key for key in needed if not isinstance(result, dict) or key not in result]
    if missing:
        raise ValueError(
            f"{path} is not the result of a run, it has no {missing[0]!r}: name run directories "
            "or their result.json files"
        )
    found: dict[str, Any] = result
    return found


def group(results: Sequence[dict[str, Any]]) -> list[Arm]:
    """The arms of some results; the same run given twice counts once."""
    arms: dict[str, Arm] = {}
    for result in results:
        settings = {key: value for key, value in result["settings"].items() if key != "seed"}
        key = json.dumps(settings, sort_keys=True)
        arms.setdefault(key, Arm(settings)).runs[int(result["seed"])] = result
    return list(arms.values())


def varying(arms: Sequence[Arm]) -> list[str]:
    """Fields in which arms of one recipe differ, besides those that every table shows."""
    fields: dict[str, None] = {}
    for recipe in dict.fromkeys(arm.recipe for arm in arms):
        family = [arm.settings for arm in arms if arm.recipe == recipe]
        for key in family[0]:
            # A network without eigenvalues does not differ in their learning rate.
            alike = key.startswith("eigenvalue_")
            some = [one for one in family if not alike or one.get("eigenvalue_lr") is not None]
            values = {json.dumps(settings.get(key)) for settings in some}
            if len(values) > 1 and key not in _SHOWN:
                fields[key] = None
    return list(fields)


@dataclass(frozen=True)
class Comparison:
    """Two arms on the seeds that both have.

    Attributes:
        first: the arm that the other is compared with.
        second: the other one.
        metric: what is compared.
        difference: second minus first.
    """

    first: Arm
    second: Arm
    metric: str
    difference: Difference


def compare(arms: Sequence[Arm]) -> list[Comparison]:
    """Each arm against the linear one of its recipe, or else the first one; two arms always.

    Arms are compared if at least one seed finished in both.
    """
    found: list[Comparison] = []
    families = [[arm for arm in arms if arm.recipe == name] for name in {a.recipe: 0 for a in arms}]
    if len(arms) == 2:
        families = [list(arms)]
    for family in families:
        linear = [arm for arm in family if arm.settings["neuron"] == "linear"]
        base = (linear or family)[0]
        for arm in family:
            if arm is base or arm.metric != base.metric:
                continue
            ours, theirs = arm.values(arm.metric), base.values(arm.metric)
            seeds = sorted(set(ours) & set(theirs))
            if seeds:
                gap = paired_difference([theirs[s] for s in seeds], [ours[s] for s in seeds])
                found.append(Comparison(base, arm, arm.metric, gap))
    return found


def _spread(values: Sequence[float], scale: float, digits: str) -> str:
    if not values:
        return "-"
    mean = format(scale * statistics.fmean(values), digits)
    if len(values) < 2:
        return mean
    return f"{mean} ± {format(scale * statistics.stdev(values), digits)}"


def tabulate(arms: Sequence[Arm], markdown: bool = False) -> str:
    """The table of arms, and under it the paired differences."""
    fields = varying(arms)
    several = len({arm.recipe for arm in arms}) > 1
    accuracy = any(arm.metric == "test_accuracy" for arm in arms)
    errors = any(arm.metric == "test_rmse" for arm in arms)
    header = [*(["recipe"] if several else []), "neuron", *fields, "seeds", "params", "MACs"]
    header += ["test accuracy %"] if accuracy else []
    header += ["test RMSE"] if errors else []
    header += ["test loss", "quadratic share", "s/epoch"]
    rows = []
    for arm in arms:
        row: list[str] = [*([arm.recipe] if several else []), arm.label]
        row += [_value(arm.settings.get(name)) for name in fields]
        seeds = str(len(arm.runs))
        row.append(seeds + (f" ({arm.diverged} diverged)" if arm.diverged else ""))
        row += [_integer(arm.first.get("params")), _integer(arm.first.get("macs"))]
        if accuracy:
            row.append(_spread(list(arm.values("test_accuracy").values()), 100, ".2f"))
        if errors:
            row.append(_spread(list(arm.values("test_rmse").values()), 1, ".4g"))
        row.append(_spread(list(arm.values("test_loss").values()), 1, ".4g"))
        row.append(_spread(_shares(arm), 1, ".3f"))
        row.append(_spread(_epoch_seconds(arm), 1, ".1f"))
        rows.append(row)
    right = "l" * (1 + several) + "r" * (len(header) - 1 - several)
    table = (markdown_table if markdown else text_table)(header, rows, right)
    lines = [comparison_line(found, fields) for found in compare(arms)]
    if markdown:
        lines = [f"- {line}" for line in lines]
    name = "" if several else f"{arms[0].recipe}\n\n"
    return name + table + ("\n\n" + "\n".join(lines) if lines else "")


def comparison_line(found: Comparison, fields: Sequence[str]) -> str:
    """A comparison in words."""

    def name(arm: Arm) -> str:
        different = [f for f in fields if arm.settings.get(f) != other(arm).settings.get(f)]
        shown = {f: arm.settings[f] for f in different if arm.settings.get(f) is not None}
        words = ", ".join(f"{f}={value}" for f, value in shown.items())
        return arm.label + (f" ({words})" if words else "")

    def other(arm: Arm) -> Arm:
        return found.first if arm is found.second else found.second

    gap = found.difference
    percent = found.metric == "test_accuracy"
    scale, digits, unit = (100, "+.2f", " points") if percent else (1, "+.4g", "")
    recipes = found.first.recipe, found.second.recipe
    text = f"{recipes[0]}: {name(found.second)} minus {name(found.first)}: "
    if recipes[0] != recipes[1]:
        text = f"{recipes[1]} {name(found.second)} minus {recipes[0]} {name(found.first)}: "
    text += f"{format(scale * gap.mean, digits)}"
    if gap.half_width is None:
        return f"{text}{unit} {found.metric.removeprefix('test_')} (one seed: no interval)"
    text += f" ± {format(scale * gap.half_width, digits[1:])}{unit}"
    word = "clear" if gap.is_clear else "not clear: the interval holds 0"
    metric = found.metric.removeprefix("test_")
    return f"{text} {metric} (95 % interval, {gap.pairs} paired seeds; {word})"


def to_json(arms: Sequence[Arm]) -> dict[str, Any]:
    """The table as plain data."""
    fields = varying(arms)
    return {
        "arms": [
            {
                "recipe": arm.recipe,
                "neuron": arm.settings["neuron"],
                "rank": arm.settings.get("rank"),
                **{name: arm.settings.get(name) for name in fields},
                "seeds": sorted(arm.runs),
                "diverged": arm.diverged,
                "params": arm.first.get("params"),
                "macs": arm.first.get("macs"),
                arm.metric: _summary(list(arm.values(arm.metric).values())),
                "test_loss": _summary(list(arm.values("test_loss").values())),
            }
            for arm in arms
        ],
        "differences": [
            {
                "recipe": found.first.recipe,
                "first": found.first.label,
                "second": found.second.label,
                **{name: found.second.settings.get(name) for name in fields},
                "metric": found.metric,
                "mean": found.difference.mean,
                "half_width": found.difference.half_width,
                "pairs": found.difference.pairs,
            }
            for found in compare(arms)
        ],
    }


def _summary(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def _shares(arm: Arm) -> list[float]:
    shares = [run.get("quadratic_share") for run in arm.runs.values()]
    return [statistics.fmean(share.values()) for share in shares if share]


def _epoch_seconds(arm: Arm) -> list[float]:
    return [
        statistics.fmean(record["seconds"] for record in run["epochs"])
        for run in arm.runs.values()
        if run.get("epochs")
    ]


def _integer(value: Any) -> str:
    return "-" if value is None else f"{value:,}"


def _value(value: Any) -> str:
    return "-" if value is None else str(value)
