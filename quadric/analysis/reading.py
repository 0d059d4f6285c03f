"""Results of runs, read for figures and the page: from result.json and analysis.json alone.

What cannot be read is named in a note, and the rest is still shown. A value that is missing, or of
another kind than expected, is None: files of older versions have fewer fields, and a run that
diverged has nulls.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quadric.analysis.style import unit_text
from quadric.data import laws
from quadric.errors import InputError


@dataclass(frozen=True)
class Metric:
    """What runs are judged by.

    Attributes:
        key: in a result.
        epoch_key: in the record of an epoch, after `train_`, `val_` or `test_`.
        label: for an axis.
        scale: from the number in the file to the one that is shown.
        higher_is_better: as it says.
        digits: how it is shown.
    """

    key: str
    epoch_key: str
    label: str
    scale: float
    higher_is_better: bool
    digits: str


METRICS = (
    Metric("test_accuracy", "accuracy", "accuracy (%)", 100, True, ".2f"),
    Metric("test_rmse", "rmse", "RMSE", 1, False, ".4g"),
    # No epoch is translated: its curve is the perplexity.
    Metric("bleu", "perplexity", "BLEU", 1, True, ".2f"),
)
_EXPECTED = ("recipe", "dataset", "model", "seed", "status", "params", "macs", "epochs", "settings")


@dataclass(frozen=True)
class RunResult:
    """One run, as its files tell it.

    Attributes:
        name: of its directory or file.
        recipe: and so on: as in result.json, "?" or None where it is missing.
        metric: what it is judged by.
        score: that number as it is shown, in percent or in the target's unit; None if it diverged
            or was not tested.
        unit: of an error, if it is known.
        epochs: one record per epoch, only its numbers.
        settings: the resolved recipe.
        result: the whole file.
        analysis: the content of analysis.json, or None.
    """

    name: str
    recipe: str
    dataset: str
    model: str
    neuron: str
    rank: int | None
    seed: int | None
    status: str
    params: float | None
    macs: float | None
    metric: Metric
    score: float | None
    unit: str
    epochs: list[dict[str, float | None]]
    command: str
    settings: dict[str, Any] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    analysis: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """The neuron and its rank."""
        return self.neuron + (f"[{self.rank}]" if self.rank is not None else "")

    @property
    def diverged(self) -> bool:
        """Whether training ended in numbers that are not finite."""
        return self.status == "diverged"

    @property
    def score_label(self) -> str:
        """The score with its unit, for an axis."""
        name = self.metric.label
        if self.metric.key == "bleu":
            name = f"BLEU ({_first_number(self.result.get('bleu'))[0]})"
        return f"test {name}" + (f" ({unit_text(self.unit)})" if self.unit else "")

    @property
    def curve_label(self) -> str:
        """What its curves show beside the loss, for an axis."""
        if self.metric.epoch_key == "perplexity":
            return "perplexity"
        return self.score_label.removeprefix("test ")

    @property
    def curve_falls(self) -> bool:
        """Whether a smaller value of that is better."""
        return self.metric.epoch_key == "perplexity" or not self.metric.higher_is_better

    @property
    def arm(self) -> str:
        """All that decides a run but its seed and its place."""
        own = [self.dataset, self.recipe, self.model, self.neuron, self.rank, self.params]
        return json.dumps([own, self.decisive], sort_keys=True, default=str)

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that decide it, but its seed; a default is left out, as older runs do."""
        place, defaults = _recipe_fields()
        return {
            key: value
            for key, value in self.settings.items()
            if key not in place and (key not in defaults or value != defaults[key])
        }


@functools.cache
def _recipe_fields() -> tuple[frozenset[str], dict[str, Any]]:
    """Fields that say where a run was made, and the defaults of all fields.

    Without the packages of training none is known, and runs are told apart by every field.
    """
    try:
        from quadric.runs.groups import ENVIRONMENT_FIELDS as PLACE
        from quadric.train.recipe import DEFAULTS
    except ImportError:
        return frozenset({"seed"}), {}
    return frozenset({"seed", *PLACE}), DEFAULTS


def read(sources: Iterable[Any]) -> tuple[list[RunResult], list[str]]:
    """Reads runs.

    Examples:
        >>> runs, notes = read([{"recipe": "digits", "neuron": "eigen", "test_accuracy": 0.5}])
        >>> runs[0].score, notes[0][:36]
        (50.0, 'run 1 is of an older version: it has')
    """
    if isinstance(sources, (str, os.PathLike, Mapping, RunResult)) or hasattr(sources, "path"):
        sources = [sources]
    found: list[RunResult] = []
    notes: list[str] = []
    seen: set[Path] = set()
    for number, source in enumerate(sources, start=1):
        if isinstance(source, RunResult):
            found.append(source)
        elif isinstance(source, Mapping):
            _add(found, notes, f"run {number}", source, source.get("analysis"))
        else:
            path = Path(getattr(source, "path", source))  # or a Result of quadric.train
            if not path.exists():
                raise InputError(f"no such run: {path}: name run directories or result files")
            before = len(found), len(notes)
            for file in [path] if path.is_file() else _result_files(path, notes):
                if file.resolve() not in seen:
                    seen.add(file.resolve())
                    _read_file(file, found, notes)
            if (len(found), len(notes)) == before and path.is_dir():
                notes.append(f"{path} holds no results: train a run with quadric train")
    if not found:
        raise InputError("there is no result to show: " + ("; ".join(notes) or "name some runs"))
    return found, notes


def _result_files(folder: Path, notes: list[str], top: bool = True) -> Iterator[Path]:
    if (folder / "result.json").is_file():
        yield folder / "result.json"
        return
    if (folder / "recipe.yaml").is_file():
        notes.append(
            f"{folder} has no result, the run is not finished: go on with quadric train {folder} "
            "--resume"
        )
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _result_files(entry, notes, top=False)
        elif top and entry.suffix == ".json" and not entry.name.endswith("analysis.json"):
            yield entry


def _read_file(file: Path, found: list[RunResult], notes: list[str]) -> None:
    run = file.name == "result.json"
    # In a folder of result files, NAME.analysis.json stands beside NAME.json.
    beside = file.with_name("analysis.json" if run else f"{file.stem}.analysis.json")
    result = _json(file, notes)
    if result is not None:
        analysis = _json(beside, notes) if beside.is_file() else None
        _add(found, notes, file.parent.name or "run" if run else file.stem, result, analysis, file)


def _json(file: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        notes.append(f"{file} is not JSON, it was left out: make it again")
        return None
    except OSError as error:
        notes.append(f"{file} cannot be read ({error.strerror}), it was left out")
        return None
    if not isinstance(content, dict):
        notes.append(f"{file} does not hold an object, it was left out: make it again")
        return None
    return content


def _add(
    found: list[RunResult],
    notes: list[str],
    name: str,
    result: Mapping[str, Any],
    analysis: Any,
    file: Path | None = None,
) -> None:
    where = str(file) if file is not None else name
    metric = next((m for m in METRICS if m.key in result), None)
    if metric is None or not isinstance(result.get("neuron"), str):
        notes.append(
            f"{where} is not the result of a run, it has no "
            f"{'score' if metric is None else 'neuron'}: it was left out"
        )
        return
    missing = [key for key in _EXPECTED if key not in result]
    if missing:
        notes.append(
            f"{where} is of an older version: it has no {', '.join(missing)}, and is shown with "
            "what it has"
        )
    settings = result.get("settings")
    dataset = _text(result.get("dataset"))
    seed, rank = number(result.get("seed")), number(result.get("rank"))
    found.append(
        RunResult(
            name,
            _text(result.get("recipe")),
            dataset,
            _text(result.get("model")),
            str(result["neuron"]),
            None if rank is None else int(rank),
            None if seed is None else int(seed),
            _text(result.get("status"), "ok"),
            number(result.get("params")),
            number(result.get("macs")),
            metric,
            _score(result, metric),
            _unit(metric, dataset),
            _records(result.get("epochs")),
            _text(result.get("command"), ""),
            settings if isinstance(settings, dict) else {},
            dict(result),
            _known_analysis(analysis, where, notes),
        )
    )


def _known_analysis(analysis: Any, where: str, notes: list[str]) -> dict[str, Any] | None:
    if analysis is None:
        return None
    if not isinstance(analysis, dict) or not isinstance(analysis.get("layers"), list):
        notes.append(f"the analysis beside {where} has no layers, it was left out: make it again")
        return None
    if analysis.get("version") != 1:
        notes.append(
            f"the analysis beside {where} is of version {analysis.get('version')!r}, it was left "
            "out: make it again with quadric analyze"
        )
        return None
    return analysis


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _text(value: Any, default: str = "?") -> str:
    return value if isinstance(value, str) else default


def _first_number(found: Any) -> tuple[str, float | None]:
    if isinstance(found, Mapping):
        for name, value in found.items():
            if number(value) is not None:
                return str(name), number(value)
    return "", number(found)


def _score(result: Mapping[str, Any], metric: Metric) -> float | None:
    if result.get("status") == "diverged":
        return None
    value = _first_number(result.get(metric.key))[1]
    return None if value is None else metric.scale * value


def _unit(metric: Metric, dataset: str) -> str:
    name = dataset.partition(":")[2]
    if metric.key != "test_rmse" or name not in laws.LAWS or not dataset.startswith("law:"):
        return ""
    unit = laws.get(name).unit
    return "" if unit == "1" else unit


def _records(epochs: Any) -> list[dict[str, float | None]]:
    if not isinstance(epochs, list):
        return []
    return [
        {key: number(value) for key, value in record.items() if not isinstance(value, Mapping)}
        for record in epochs
        if isinstance(record, Mapping)
    ]


def curve(run: RunResult, part: str, what: str) -> list[tuple[float, float | None]]:
    """A number of each epoch: (epoch, value), None where it was not finite."""
    key, scale = "loss", 1.0
    if what == "score":
        key, scale = run.metric.epoch_key, run.metric.scale
    parts = [part] if part == "train" else ["val", "test"]
    for name in (f"{each}_{key}" for each in parts):
        points = [
            (float(record.get("epoch") or place), record[name])
            for place, record in enumerate(run.epochs, start=1)
            if name in record
        ]
        if points:
            return [(x, None if y is None else scale * y) for x, y in points]
    return []


def by_dataset(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Runs that may be compared: on the same data, judged by the same metric."""
    found: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        found.setdefault((run.dataset, run.metric.key), []).append(run)
    names = [dataset for dataset, _ in found]
    return {
        dataset if names.count(dataset) == 1 else f"{dataset} ({key})": alike
        for (dataset, key), alike in found.items()
    }
