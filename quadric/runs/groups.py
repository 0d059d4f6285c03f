"""Runs over seeds: a group is all that decides a run but its seed.

Two groups of the same recipe and data are compared on the seeds that both have: the same seed gives
both the same order of the data, so the difference varies less than either.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quadric.data.intervals import Difference, mean_difference
from quadric.errors import InputError
from quadric.runs.metrics import Metric
from quadric.runs.reading import RunResult

ENVIRONMENT_FIELDS = (
    *("data_dir", "workers", "accelerator", "kernels", "memory_format"),
    *("code", "keep_every", "logger"),
)
"""Fields of a recipe that say where and how a run is computed.

They belong to its identity like all others (another directory may hold other data, other kernels
round differently), but a run may be continued with other values, because data and machines move.
"""
# Shown in columns of their own, or (checksums) not at all.
_SHOWN = ("name", "neuron", "rank", "checksums")
# Fields that say how large a network is: a line goes through all sizes.
_SIZES = ("model", "width", "channels", "hidden", "shortcut", "split")
_QUADRATIC = "quadratic_"
"""What fields of the quadratic parameters begin with; a linear network has none of these."""
_LONGEST = 24  # letters of settings in the name of a line


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that differ in their seed alone."""

    runs: tuple[RunResult, ...]  # by seed
    # The resolved recipe without the seed.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # What figures and the page call the data, and by what it is judged if that differs.
    dataset: str = ""
    # The line in figures that it belongs to: neuron, rank, and what else sets lines apart.
    line: str = ""
    # The settings in which that line differs from the others of its neuron, in full.
    differing: str = ""

    @property
    def first(self) -> RunResult:
        """One of them: all say the same about recipe, network and cost."""
        return self.runs[0]

    @property
    def metric(self) -> Metric:
        """What they are judged by."""
        return self.first.metric

    @property
    def seeds(self) -> list[int]:
        """Those of the runs."""
        return [run.seed for run in self.runs]

    @property
    def diverged(self) -> int:
        """How many diverged."""
        return sum(run.diverged for run in self.runs)

    def values(self, name: str = "") -> dict[int, float]:
        """A number of each run that has it, by seed; without a name, what they are judged by."""
        numbers = {run.seed: run.values.get(name or self.metric.key) for run in self.runs}
        return {seed: float(value) for seed, value in numbers.items() if value is not None}

    @property
    def scores(self) -> list[float]:
        """As they are shown, of the runs that did not diverge."""
        return [run.score for run in self.runs if run.score is not None]

    @property
    def mean(self) -> float | None:
        """Of the scores."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the scores; None for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def shares(self) -> list[float]:
        """The quadratic share of each run that has one."""
        return [run.quadratic_share for run in self.runs if run.quadratic_share is not None]

    @property
    def network(self) -> str:
        """The network and its size, as far as the recipe says it."""
        size = [
            f"{key} {self.settings[key]:g}" if isinstance(self.settings[key], float)
            else f"{self.settings[key]}"
            for key in ("width", "channels", "hidden")
            if self.settings.get(key) is not None
        ]  # fmt: skip
        return " ".join([self.first.model, *size])


def without_twins(runs: Sequence[RunResult]) -> tuple[list[RunResult], list[str]]:
    """Runs of which no two are of one seed and one recipe, and notes on those left out."""
    first: dict[str, RunResult] = {}
    notes = []
    for run in runs:
        twin = first.setdefault(_key(run, set()) + str(run.seed), run)
        if twin is not run and twin.values != run.values:
            notes.append(
                f"{run.path or run.name} was left out, it is the same run as "
                f"{twin.path or twin.name} with other results"
            )
    return list(first.values()), notes


def group(runs: Sequence[RunResult]) -> list[RunGroup]:
    """Runs that differ in their seed alone, together; the same run given twice counts once.

    Runs of one group may have been trained at different places. Where a seed was trained at
    several, the places are what is compared, and each is a group.
    """
    kinds: dict[str, list[RunResult]] = {}
    for run in runs:
        kinds.setdefault(_key(run, {"seed", *ENVIRONMENT_FIELDS}), []).append(run)
    groups: dict[str, dict[int, RunResult]] = {}
    left_out: dict[str, set[str]] = {}
    for kind, alike in kinds.items():
        places: dict[int, set[str]] = {}
        for run in alike:
            places.setdefault(run.seed, set()).add(_key(run, {"seed"}))
        several = any(len(keys) > 1 for keys in places.values())
        for run in alike:
            key = _key(run, {"seed"}) if several else kind
            left_out[key] = {"seed"} if several else {"seed", *ENVIRONMENT_FIELDS}
            twin = groups.setdefault(key, {}).setdefault(run.seed, run)
            if twin.values != run.values:
                raise InputError(
                    f"{twin.path or twin.name} and {run.path or run.name} are two different runs "
                    f"of {run.recipe} with {run.neuron} neurons and seed {run.seed}: leave one of "
                    "them out"
                )
    made = []
    for key, by_seed in groups.items():
        sorted_runs = tuple(by_seed[seed] for seed in sorted(by_seed))
        settings = sorted_runs[0].settings
        kept = {name: value for name, value in settings.items() if name not in left_out[key]}
        made.append(RunGroup(sorted_runs, kept))
    return made


def _key(run: RunResult, without: set[str]) -> str:
    """What tells runs apart; a field without a value is one that is not there."""
    settings = {k: v for k, v in run.settings.items() if k not in without and _is_given(v)}
    own = [run.recipe, run.dataset, run.model, run.neuron, run.rank, run.params, run.metric.name]
    return json.dumps([own, settings], sort_keys=True, default=str)


def _is_given(value: Any) -> bool:
    return value is not None and value != [] and value != {}


def varying(groups: Sequence[RunGroup]) -> list[str]:
    """Fields in which groups of one recipe differ, besides those that every table shows."""
    fields: dict[str, None] = {}
    for recipe in dict.fromkeys(each.first.recipe for each in groups):
        family = [each.settings for each in groups if each.first.recipe == recipe]
        # A linear network does not differ in what it has not.
        quadratic = [one for one in family if one.get(f"{_QUADRATIC}lr") is not None]
        for key in _differing(family):
            if not key.startswith(_QUADRATIC) or key in _differing(quadratic):
                fields[key] = None
    return [key for key in fields if key not in _SHOWN]


def _differing(family: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all of a family."""

    def value(settings: Mapping[str, Any], key: str) -> str | None:
        known = settings.get(key)
        return json.dumps(known, default=str) if _is_given(known) else None

    keys = dict.fromkeys(key for settings in family for key in settings)
    return [key for key in keys if len({value(settings, key) for settings in family}) > 1]


def by_dataset(runs: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """Runs that may be compared: on the same data, judged by the same metric."""
    alike_runs: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        alike_runs.setdefault((run.dataset, run.metric.name), []).append(run)
    names = [dataset for dataset, _ in alike_runs]
    return {
        dataset if names.count(dataset) == 1 else f"{dataset} ({metric})": alike
        for (dataset, metric), alike in alike_runs.items()
    }


def in_lines(runs: Sequence[RunResult]) -> list[RunGroup]:
    """The groups of runs for figures: data set by data set, along each line from small to large."""
    split: list[RunGroup] = []
    for dataset, alike in by_dataset(runs).items():
        groups = group(alike)
        lines = _lines(groups)
        named = [
            replace(each, dataset=dataset, line=line, differing=differing)
            for each, (line, differing) in zip(groups, lines, strict=True)
        ]
        named.sort(key=lambda each: (each.line != "linear", each.line, each.first.params or 0))
        split += named
    return split


def _lines(groups: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """The name of each group's line, and the settings in which it differs from its neuron's others.

    A name holds the settings while they are short, and else a number for them.
    """
    lines = []
    numbers: dict[str, dict[str, str]] = {}
    for each in groups:
        label = each.first.label
        family = [other.settings for other in groups if other.first.label == label]
        shown = {key: each.settings.get(key) for key in sorted(_differing(family))}
        loud = (key for key in shown if key not in (*_SIZES, "name"))
        differing = " ".join(f"{key}={shown[key]}" for key in loud if shown[key] is not None)
        known = numbers.setdefault(label, {})
        known.setdefault(differing, f"(settings {len(known) + 1})")
        short = differing if len(differing) <= _LONGEST else known[differing]
        lines.append((f"{label} {short}".rstrip(), differing))
    return lines


@dataclass(frozen=True)
class RunPair:
    """Two groups on the seeds that both have."""

    first: RunGroup  # the group that the other is compared with
    second: RunGroup  # the other one
    difference: Difference  # second minus first, in what both are judged by


def pair(first: RunGroup, second: RunGroup) -> RunPair | None:
    """Two groups by the seeds that finished in both; None if there are none."""
    theirs, ours = first.values(), second.values()
    seeds = sorted(set(ours) & set(theirs))
    if not seeds or first.metric != second.metric:
        return None
    return RunPair(first, second, mean_difference([ours[seed] - theirs[seed] for seed in seeds]))


def compare(groups: Sequence[RunGroup]) -> list[RunPair]:
    """Each group against the linear one of its recipe, or else the first; two groups always."""
    # Accuracies on different data are not to be subtracted.
    kinds: dict[Any, list[RunGroup]] = {}
    for each in groups:
        kinds.setdefault((each.first.recipe, each.first.dataset), []).append(each)
    families = [list(groups)] if len(groups) == 2 else list(kinds.values())
    pairs = []
    for family in families:
        base = next((each for each in family if each.first.neuron == "linear"), family[0])
        pairs += [pair(base, each) for each in family if each is not base]
    return [each for each in pairs if each is not None]
