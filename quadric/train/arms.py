"""Many results as one table: one row per arm, over its seeds, and paired differences of arms.

An arm is all that decides a run but its seed. Two arms of the same recipe and data are compared on
the seeds that both have: the same seed gives both the same order of the data, so the difference
varies less than either.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quadric.data.intervals import Difference, mean_difference
from quadric.data.text.scores import SETTINGS
from quadric.errors import InputError
from quadric.support.texttable import markdown_table, text_table
from quadric.train.directory import RunDirectory, wrong_field
from quadric.train.recipe import DEFAULTS, PLACE
from quadric.train.tasks import METRICS as TASK_METRICS

# What runs are judged by, and the headers of their columns.
METRICS = {
    f"test_{metric.name}": f"test {metric.label}{metric.unit}" for metric in TASK_METRICS.values()
}
# Shown in columns of their own, or (checksums) not at all.
_SHOWN = ("name", "neuron", "rank", "checksums")


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
    def first(self) -> dict[str, Any]:
        """One of the results: all say the same about recipe and cost."""
        return next(iter(self.runs.values()))

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self.first["recipe"])

    @property
    def metric(self) -> str:
        """What the runs are judged by."""
        return next(name for name in METRICS if name in self.first)

    def values(self, name: str) -> dict[int, float]:
        """A number of each run that has it, by seed."""
        found = {seed: run.get(name) for seed, run in sorted(self.runs.items())}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(run["status"] == "diverged" for run in self.runs.values())

    @property
    def label(self) -> str:
        """The neuron and its rank."""
        rank = self.first.get("rank")
        return str(self.first["neuron"]) + (f"[{rank}]" if rank is not None else "")


class NoResultError(InputError):
    """A file that is not the result of a run."""


def read_results(paths: Iterable[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads results."""
    found: list[dict[str, Any]] = []
    notes: list[str] = []
    foreign: list[NoResultError] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"no such run: {path}: name run directories or result.json files")
        for file in [path] if path.is_file() else _result_files(path, notes):
            if file.suffix == ".json":
                try:
                    found.append(_read(file))
                except NoResultError as error:
                    foreign.append(error)
    if foreign and not found and not notes:
        raise foreign[0]
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        notes.append(f"skipped: {foreign[0]}{more}")
    return found, notes


def _result_files(folder: Path, notes: list[str], top: bool = True) -> Iterator[Path]:
    """The files of a directory and those below it that may hold results."""
    if RunDirectory(folder).is_finished:
        yield folder / "result.json"
        return
    if (folder / "recipe.yaml").is_file():
        notes.append(f"{folder} is not finished: {RunDirectory(folder).resume_command}")
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _result_files(entry, notes, top=False)
        elif top and entry.suffix == ".json" and not entry.name.endswith("analysis.json"):
            yield entry  # a folder in which results are kept, one file per run


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise NoResultError(f"{path} is not JSON: remove it, or train that run again") from None
    needed = ("recipe", "neuron", "seed", "status", "settings")
    missing = [repr(key) for key in needed if not isinstance(result, dict) or key not in result]
    if not missing and not isinstance(result["settings"], dict):
        missing = ["mapping 'settings'"]
    if not missing and not any(name in result for name in METRICS):
        missing = [" or ".join(repr(name) for name in METRICS)]
    if missing:
        raise NoResultError(
            f"{path} is not the result of a run, it has no {missing[0]}: name run directories "
            "or their result.json files"
        )
    wrong = wrong_field(result)
    if wrong is not None:
        raise NoResultError(f"{path} is not the result of a run, {wrong}: train that run again")
    found: dict[str, Any] = result
    return found | {"path": str(path.parent if path.name == "result.json" else path)}


def finished(paths: Sequence[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """The results and notes of `read_results`, at least one result."""
    found, notes = read_results(paths)
    if not found:
        names = ", ".join(str(path) for path in paths[:3])
        remedy = notes[0] if notes else "train one with `quadric train`"
        raise InputError(f"no finished run in {names}: {remedy}")
    return found, notes


def rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results as rows of one table: what they are, in what they differ, how good they are."""
    fields = varying(group(results))
    tests = dict.fromkeys(key for result in results for key in result if key.startswith("test_"))
    return [
        {key: result.get(key) for key in ("recipe", "neuron", "rank", "seed")}
        | {key: _setting(result["settings"], key) for key in fields}
        | {key: result.get(key) for key in ("status", "params", "macs", *tests, "seconds", "path")}
        for result in results
    ]


def group(results: Sequence[dict[str, Any]]) -> list[Arm]:
    """The arms of some results; the same run given twice counts once.

    Runs of one arm may have been trained at different places. Where a seed was trained at several,
    the places are what is compared, and each is an arm.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        kinds.setdefault(_key(result, {"seed", *PLACE}), []).append(result)
    arms: dict[str, Arm] = {}
    for kind, alike in kinds.items():
        places: dict[int, set[str]] = {}
        for result in alike:
            places.setdefault(int(result["seed"]), set()).add(_key(result, {"seed"}))
        several = any(len(found) > 1 for found in places.values())
        for result in alike:
            settings = {k: v for k, v in result["settings"].items() if k != "seed"}
            key = _key(result, {"seed"}) if several else kind
            runs, seed = arms.setdefault(key, Arm(settings)).runs, int(result["seed"])
            twin = runs.setdefault(seed, result)
            if {**twin, "path": None} != {**result, "path": None}:
                label = f"{result['recipe']} with {result['neuron']} neurons and seed {seed}"
                raise InputError(
                    f"{twin.get('path')} and {result.get('path')} are two different runs of "
                    f"{label}: leave one of them out"
                )
    return list(arms.values())


def _key(result: Mapping[str, Any], without: set[str]) -> str:
    settings = {
        key: value
        for key, value in result["settings"].items()
        # Fields that are younger than a run have their default in it.
        if key not in without and (key not in DEFAULTS or value != DEFAULTS[key])
    }
    return json.dumps({"recipe": result["recipe"], **settings}, sort_keys=True)


def _setting(settings: Mapping[str, Any], field: str) -> Any:
    return settings.get(field, DEFAULTS.get(field))


def varying(arms: Sequence[Arm]) -> list[str]:
    """Fields in which arms of one recipe differ, besides those that every table shows."""
    fields: dict[str, None] = {}
    for recipe in dict.fromkeys(arm.recipe for arm in arms):
        family = [arm.settings for arm in arms if arm.recipe == recipe]
        for key in dict.fromkeys(key for one in family for key in one):
            # A network without eigenvalues does not differ in their learning rate.
            alike = key.startswith("quadratic_")
            some = [one for one in family if not alike or one.get("quadratic_lr") is not None]
            values = {json.dumps(_setting(settings, key)) for settings in some}
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
    # Accuracies on different data are not to be subtracted.
    kinds: dict[Any, list[Arm]] = {}
    for arm in arms:
        kinds.setdefault((arm.recipe, arm.settings.get("dataset")), []).append(arm)
    families = [list(arms)] if len(arms) == 2 else list(kinds.values())
    for family in families:
        linear = [arm for arm in family if arm.first["neuron"] == "linear"]
        base = (linear or family)[0]
        for arm in family:
            if arm is base or arm.metric != base.metric:
                continue
            ours, theirs = arm.values(arm.metric), base.values(arm.metric)
            seeds = sorted(set(ours) & set(theirs))
            if seeds:
                gap = mean_difference([ours[s] - theirs[s] for s in seeds])
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
    metrics = [name for name in METRICS if any(arm.metric == name for arm in arms)]
    header = [*(["recipe"] if several else []), "neuron", *fields, "seeds", "params", "MACs"]
    header += [METRICS[name] for name in metrics]
    header += ["test loss", "quadratic share", "s/epoch"]
    rows = []
    for arm in arms:
        seeds = f"{len(arm.runs)}" + (f" ({arm.diverged} diverged)" if arm.diverged else "")
        row: list[str] = [*([arm.recipe] if several else []), arm.label]
        row += [_value(_setting(arm.settings, name)) for name in fields]
        row += [seeds, _value(arm.first.get("params"), ","), _value(arm.first.get("macs"), ",")]
        for name in (*metrics, "test_loss"):
            scale, digits = (100, ".2f") if name == "test_accuracy" else (1, ".4g")
            row.append(_spread(list(arm.values(name).values()), scale, digits))
        row += [_spread(_shares(arm), 1, ".3f"), _spread(_epoch_seconds(arm), 1, ".1f")]
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
    first, second, gap = found.first, found.second, found.difference
    differing = [f for f in fields if _setting(first.settings, f) != _setting(second.settings, f)]

    def name(arm: Arm) -> str:
        shown = {f: _setting(arm.settings, f) for f in differing}
        words = ", ".join(f"{f}={value}" for f, value in shown.items() if value is not None)
        return arm.label + (f" ({words})" if words else "")

    text = f"{first.recipe}: {name(second)} minus {name(first)}: "
    if first.recipe != second.recipe:
        text = f"{second.recipe} {name(second)} minus {first.recipe} {name(first)}: "
    metric = found.metric.removeprefix("test_")
    scale, digits, unit = (100, ".2f", " points") if metric == "accuracy" else (1, ".4g", "")
    text += format(scale * gap.mean, "+" + digits)
    if gap.half_width is None:
        return f"{text}{unit} {metric} (one seed: no interval)"
    text += f" ± {format(scale * gap.half_width, digits)}{unit} {metric}"
    word = "clear" if gap.doubt is None else f"not clear: {gap.doubt}"
    return f"{text} (95 % interval, {gap.pairs} paired seeds; {word})"


def to_json(arms: Sequence[Arm]) -> dict[str, Any]:
    """The table as plain data."""
    fields = varying(arms)
    return {
        "arms": [
            {
                "recipe": arm.recipe,
                "neuron": arm.first["neuron"],
                "rank": arm.first.get("rank"),
                **{name: _setting(arm.settings, name) for name in fields},
                "seeds": sorted(arm.runs),
                "diverged": arm.diverged,
                "params": arm.first.get("params"),
                "macs": arm.first.get("macs"),
                arm.metric: _summary(list(arm.values(arm.metric).values())),
                "test_loss": _summary(list(arm.values("test_loss").values())),
                **_bleu(arm),
            }
            for arm in arms
        ],
        "differences": [
            {
                "recipe": found.first.recipe,
                "first": found.first.label,
                "second": found.second.label,
                **{name: _setting(found.second.settings, name) for name in fields},
                "metric": found.metric,
                **{key: getattr(found.difference, key) for key in ("mean", "half_width", "pairs")},
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


def _bleu(arm: Arm) -> dict[str, Any]:
    """All BLEU scores of the runs of a translation, by name."""
    found = [run["bleu"] for run in arm.runs.values() if isinstance(run.get("bleu"), Mapping)]
    if not found:
        return {}
    return {"bleu": {name: _summary([one[name] for one in found]) for name in SETTINGS}}


def _shares(arm: Arm) -> list[float]:
    """The mean over the layers of each run; a result may also hold nothing but that mean."""
    found = [run.get("quadratic_share") for run in arm.runs.values()]
    by_layer = [share if isinstance(share, Mapping) else {"": share} for share in found]
    numbers = [[v for v in share.values() if v is not None] for share in by_layer]
    return [statistics.fmean(values) for values in numbers if values]


def _epoch_seconds(arm: Arm) -> list[float]:
    return [
        statistics.fmean(record["seconds"] for record in run["epochs"])
        for run in arm.runs.values()
        if isinstance(run.get("epochs"), list) and run["epochs"]
    ]


def _value(value: Any, how: str = "") -> str:
    return "-" if value is None else format(value, how) if how else str(value)
