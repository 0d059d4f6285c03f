"""Finished runs, read from result.json and the analysis.json beside it: the one reader.

What cannot be read is named in a note that says why, and the rest is still there.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from quadric.data import laws
from quadric.data.text.scores import SETTINGS
from quadric.errors import InputError
from quadric.runs.metrics import METRICS, Metric, metric_of
from quadric.support.provenance import finite

ANALYSIS_VERSION = 1
"""Of the layout of analysis.json."""
_NEEDED = ("recipe", "neuron", "seed", "status", "settings")
_TEXTS = ("recipe", "neuron", "status", "dataset", "model", "command")
_NUMBERS = ("params", "params_without_embeddings", "macs", "seconds", "rank")


class RunResult:
    """One finished run.

    Attributes:
        name: of its directory or file.
        values: all that result.json holds; what every table shows is an attribute, too.
        metric: what it is judged by.
        path: its run directory, or a result file of another name; None for given values.
        analysis: the content of analysis.json, or None.
    """

    def __init__(
        self,
        name: str,
        values: dict[str, Any],
        path: Path | None = None,
        analysis: Mapping[str, Any] | None = None,
    ) -> None:
        metric = metric_of(values)
        assert metric is not None  # `read_runs` looks
        self.name, self.values, self.path, self.analysis = name, values, path, analysis
        self.metric = metric
        self.recipe: str = values["recipe"]
        self.dataset: str = values.get("dataset") or "?"
        self.model: str = values.get("model") or "?"
        self.neuron: str = values["neuron"]
        self.rank: int | None = values.get("rank")
        self.seed: int = values["seed"]
        self.params: float | None = values.get("params")
        self.macs: float | None = values.get("macs")
        self.settings: dict[str, Any] = values["settings"]
        self.epochs: list[dict[str, Any]] = values.get("epochs") or []

    @property
    def label(self) -> str:
        """The neuron and its rank."""
        return self.neuron + (f"[{self.rank}]" if self.rank is not None else "")

    @property
    def diverged(self) -> bool:
        """Whether training ended in numbers that are not finite."""
        return bool(self.values["status"] == "diverged")

    @property
    def score(self) -> float | None:
        """What it is judged by, as it is shown: in percent, or in the target's unit."""
        value = self.values.get(self.metric.key)
        return None if value is None or self.diverged else float(self.metric.scale * value)

    @property
    def unit(self) -> str:
        """Of the score, if it is known."""
        kind, _, name = self.dataset.partition(":")
        if self.metric.name != "rmse" or kind != "law" or name not in laws.LAWS:
            return self.metric.unit.strip()
        unit = laws.get(name).unit
        return "" if unit == "1" else unit

    @property
    def quadratic_share(self) -> float | None:
        """The mean over its layers; a result may also hold nothing but that mean."""
        share = self.values.get("quadratic_share")
        by_layer = share.values() if isinstance(share, Mapping) else [share]
        known = [value for value in map(number, by_layer) if value is not None]
        return statistics.fmean(known) if known else None

    def curve(self, part: str, what: str) -> list[tuple[float, float | None]]:
        """A number of each epoch, `what` being score or loss: (epoch, value or None)."""
        key, scale = "loss", 1.0
        if what == "score":
            key, scale = self.curve_metric.name, self.curve_metric.scale
        for name in (f"{each}_{key}" for each in ([part] if part == "train" else ["val", "test"])):
            points = [
                (float(record.get("epoch") or place), number(record[name]))
                for place, record in enumerate(self.epochs, start=1)
                if name in record
            ]
            if points:
                return [(x, None if y is None else scale * y) for x, y in points]
        return []

    @property
    def curve_metric(self) -> Metric:
        """What its curves show beside the loss."""
        return METRICS[self.metric.curve] if self.metric.curve else self.metric


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None


def read_runs(sources: Any) -> tuple[list[RunResult], list[str]]:
    """The runs of directories, folders of them, result files and mappings; and what was left out.

    Examples:
        >>> run = {"recipe": "digits", "neuron": "eigen", "seed": 0, "status": "ok", "settings": {}}
        >>> runs, notes = read_runs([run | {"test_accuracy": 0.5}, run])
        >>> runs[0].score, notes[0][:53]
        (50.0, "run 2 is not the result of a run, it has no 'test_acc")
    """
    if isinstance(sources, str | os.PathLike | Mapping | RunResult) or hasattr(sources, "path"):
        sources = [sources]
    runs: list[RunResult] = []
    notes: list[str] = []
    seen: set[Path] = set()
    named = []
    for place, source in enumerate(sources, start=1):
        if isinstance(source, RunResult):
            runs.append(source)
            continue
        if isinstance(source, Mapping):
            _add(runs, notes, f"run {place}", source, source.get("analysis"))
            continue
        path = Path(getattr(source, "path", source))  # or a Result of quadric.train
        named.append(str(path))
        if not path.exists():
            raise InputError(f"no such run: {path}: name run directories or result.json files")
        for file in [path] if path.is_file() else _result_files(path, notes):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                _read_file(file, runs, notes)
    if not runs:
        where = f" in {', '.join(named[:3])}" if named else ""
        remedy = "; ".join(notes) or "train one with `quadric train`"
        raise InputError(f"no finished run{where}: {remedy}")
    return runs, notes


def _result_files(folder: Path, notes: list[str], known: set[Path] | None = None) -> Iterator[Path]:
    """The files of a directory and those below it that may hold results."""
    top, known = known is None, known or set()
    if folder.resolve() in known:  # by a link
        return
    known.add(folder.resolve())
    if (folder / "result.json").is_file():
        yield folder / "result.json"
    elif (folder / "recipe.yaml").is_file():
        command = f"quadric train {quote(str(folder))} --resume"
        notes.append(f"{folder} is not finished: {command}")
    else:
        compared = folder / "compare.json"
        if compared.is_file():
            notes.append(f"{folder}: {_verdict(compared, notes)}")
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _result_files(entry, notes, known)
            elif compared.is_file():
                continue  # of its own kind
            elif top and entry.suffix == ".json" and not entry.name.endswith("analysis.json"):
                yield entry  # a folder in which results are kept, one file per run


def _verdict(compared: Path, notes: list[str]) -> str:
    """What `quadric compare` said."""
    return str((_content(compared, notes) or {}).get("verdict", "a comparison"))


def _read_file(file: Path, runs: list[RunResult], notes: list[str]) -> None:
    own = file.name == "result.json"
    # In a folder of result files, NAME.analysis.json stands beside NAME.json.
    beside = file.with_name("analysis.json" if own else f"{file.stem}.analysis.json")
    values = _content(file, notes)
    if values is not None:
        analysis = _content(beside, notes) if beside.is_file() else None
        name = file.absolute().parent.name if own else file.stem
        _add(runs, notes, name, values, analysis, file)


def _content(file: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        return read_json(file)
    except InputError as error:
        notes.append(f"{error}: it was left out")
        return None


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file holds."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not JSON") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} does not hold an object")
    return content


def _add(
    runs: list[RunResult],
    notes: list[str],
    name: str,
    result: Mapping[str, Any],
    analysis: Any,
    file: Path | None = None,
) -> None:
    values = finite({key: value for key, value in result.items() if key != "analysis"})
    where = name if file is None else str(file)
    fault = _missing(values) or wrong_field(values)
    if fault is not None:
        notes.append(f"{where} is not the result of a run, {fault}: it was left out")
        return
    if analysis is not None and not _is_known(analysis):
        version = analysis.get("version") if isinstance(analysis, Mapping) else None
        notes.append(
            f"the analysis of {where} is of version {version!r}, it was left out: make it again "
            "with quadric analyze"
        )
        analysis = None
    path = file.parent if file is not None and file.name == "result.json" else file
    runs.append(RunResult(name, values, path, analysis))


def _is_known(analysis: Any) -> bool:
    known = isinstance(analysis, Mapping) and analysis.get("version") == ANALYSIS_VERSION
    return known and isinstance(analysis.get("layers"), list)


def _missing(values: Mapping[str, Any]) -> str | None:
    for key in _NEEDED:
        if key not in values:
            return f"it has no {key!r}"
    if not isinstance(values["settings"], Mapping):
        return "it has no mapping 'settings'"
    if metric_of(values) is None:
        return "it has no " + " or ".join(repr(metric.key) for metric in METRICS.values())
    return None


def wrong_field(result: Mapping[str, Any]) -> str | None:
    """What is wrong with the fields of a result that are calculated with; None if nothing is."""
    numbers = [name for name in result if name.startswith("test_")]
    for name, is_right, rule in (
        *((name, lambda value: isinstance(value, str), "be text") for name in _TEXTS),
        *((name, _is_number, "be a number or null") for name in (*numbers, *_NUMBERS)),
        ("seed", lambda value: isinstance(value, int) and _is_number(value), "be a whole number"),
        ("epochs", _are_records, "be a list of records"),
        ("bleu", _are_scores, f"be null, or hold a number for each of {', '.join(SETTINGS)}"),
    ):
        if name in result and not is_right(result[name]):
            return f"{name} must {rule}, got {result[name]!r:.80}"
    if result.get("bleu") and not result.get("params_without_embeddings"):
        return "it has 'bleu' and no 'params_without_embeddings'"
    return None


def _is_number(value: Any) -> bool:
    return value is None or number(value) is not None


def _are_scores(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping) and all(number(value.get(name)) is not None for name in SETTINGS)
    )


def _are_records(value: Any) -> bool:
    """Whether these are the records of epochs, or nothing is there."""
    return value is None or (
        isinstance(value, list)
        and all(isinstance(record, Mapping) for record in value)
        and all(_is_number(record.get(key)) for record in value for key in ("epoch", "seconds"))
    )
