"""Figures as files: PNG and PDF, the numbers beside them as CSV, and as LaTeX tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quadric.analysis import figures
from quadric.analysis.arms import Table, arm_table, arms
from quadric.analysis.reading import RunResult, curve
from quadric.analysis.style import RC
from quadric.errors import InputError
from quadric.support.progress import duration
from quadric.support.writing import whole_file, write_text

NAMES = (*figures.OF_RUNS, *figures.OF_ANALYSES)
"""Every figure by its name."""
SECONDS = 0.6
"""What a figure takes, roughly."""


def draw(
    runs: Sequence[RunResult],
    which: Sequence[str],
    folder: Path,
    *,
    latex: bool = False,
    width: float | None = None,
    progress: Callable[..., None] = lambda *args, **kwargs: None,
) -> tuple[list[Path], list[str]]:
    """Draws figures and writes their numbers."""
    for name in which:
        if name not in NAMES:
            raise InputError(f"--which must be of {', '.join(NAMES)}, got {name!r}")
    folder.mkdir(parents=True, exist_ok=True)
    size = {} if width is None else {"width": width}
    files: list[Path] = []
    notes: list[str] = []
    planned = {name: _jobs(name, runs) for name in which}
    total = sum(map(len, planned.values()))
    line = f"up to {total} figures, about {duration(total * SECONDS)}" if total else None
    progress(0, total=total, line=line)
    for name, jobs in planned.items():
        if not jobs:
            notes.append(f"{name}: no run has been analyzed: use quadric analyze first")
        drawn = len(files)
        for stem, function, source in jobs:
            try:
                figure, table = function(source, **size), numbers(name, source)
            except InputError as error:
                if name in figures.OF_RUNS or len(jobs) == 1:
                    notes.append(f"{name}: {error}")
            except (LookupError, TypeError, ValueError, AttributeError):
                if name in figures.OF_RUNS:
                    raise
                notes.append(f"{stem}: the analysis is damaged: make it again with quadric analyze")
            else:
                files += save(figure, folder / stem)
                files += _write(table, folder / stem, latex)
            progress(1, f"drawing {name}")
        if jobs and len(files) == drawn and len(jobs) > 1:
            notes.append(f"{name}: no analysis of these runs has what it shows")
    if not files:
        raise InputError("no figure could be drawn: " + "; ".join(notes))
    return files, notes


def _jobs(name: str, runs: Sequence[RunResult]) -> list[tuple[str, Any, Any]]:
    """What a figure is drawn as: the name of a file, the function, and what it shows."""
    if name in figures.OF_RUNS:
        return [(name, figures.OF_RUNS[name], runs)]
    analyzed = [run for run in runs if run.analysis is not None]
    return [
        (f"{name}-{stem}", figures.OF_ANALYSES[name], run)
        for stem, run in zip(_file_names(analyzed), analyzed, strict=True)
    ]


def save(figure: Any, path: Path) -> list[Path]:
    """Writes a figure as PNG and PDF, with its fonts inside."""
    from matplotlib import rc_context

    found = []
    with rc_context(RC):
        for suffix in (".png", ".pdf"):
            file = path.with_name(path.name + suffix)
            # Without a date the same runs give the same file.
            metadata = {"CreationDate": None} if suffix == ".pdf" else None
            with whole_file(file) as partial:
                figure.savefig(partial, format=suffix[1:], metadata=metadata)
            found.append(file)
    return found


def _write(table: Table, path: Path, latex: bool) -> list[Path]:
    contents = {".csv": table.to_csv()} | ({".tex": table.to_latex()} if latex else {})
    files = [path.with_name(path.name + suffix) for suffix in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_text(file, content.encode(errors="replace").decode())
    return files


def _file_names(runs: Sequence[RunResult]) -> list[str]:
    """The runs' names, as far as they may stand in the name of a file; a repeat has a number."""
    found: list[str] = []
    for run in runs:
        name = re.sub(r"[^\w.-]+", "_", run.name)[:120] or "run"
        more = (f"{name}-{number}" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], more) if each not in found))
    return found


def numbers(name: str, source: Any) -> Table:
    """The numbers of a figure."""
    if name == "stability":
        return _curves(source)
    if name in figures.OF_RUNS:
        kept = source
        if name == "laws":
            kept = [run for run in source if not run.metric.higher_is_better]
        return arm_table(arms(kept))
    analysis = source.analysis
    if name == "couplings":
        return _couplings(analysis["couplings"])
    if name == "distribution":
        return _distributions(analysis["layers"])
    return _frequencies(analysis["layers"])


def _curves(runs: Sequence[RunResult]) -> Table:
    header = ("run", "data set", "neuron", "seed", "status", "epoch", "curve", "value")
    rows = [
        (run.name, run.dataset, run.label, run.seed, run.status, x, f"{part} {what}", y)
        for run in runs
        for what in ("score", "loss")
        for part in ("train", "test")
        for x, y in curve(run, part, what)
    ]
    return Table(header, tuple(rows))


def _distributions(layers: Sequence[dict[str, Any]]) -> Table:
    header = ("layer", "name", "what", "count", "mean", "std")
    levels = ("min", "5%", "25%", "50%", "75%", "95%", "max")
    rows = [
        (place, layer["name"], kind, *(found[key] for key in _SUMMARY), *found["quantiles"])
        for place, layer in enumerate(layers, start=1)
        for kind in ("weights", "quadratic", "eigenvalues", "effective_rank")
        if (found := layer.get(kind))
    ]
    return Table(header + levels, tuple(rows))


def _frequencies(layers: Sequence[dict[str, Any]]) -> Table:
    first = ("layer", "name", "quadratic share", "correlation", "low linear", "std linear")
    header = (*first, "low quadratic", "std quadratic", "difference", "half width 95%")
    rows = []
    for place, layer in enumerate(layers, start=1):
        low = layer.get("low_frequency", {})
        cells = [low.get(part, {}).get(key) for part in ("linear", "quadratic") for key in _KEYS]
        gap = low.get("difference", {})
        cells += [gap.get("mean"), gap.get("half_width")]
        rows.append((place, layer["name"], layer.get("share"), layer.get("correlation"), *cells))
    return Table(header, tuple(rows))


_KEYS = ("mean", "std")
_SUMMARY = ("count", "mean", "std")
_STRENGTHS = ("strength", "total")


def _couplings(found: dict[str, Any]) -> Table:
    header = ("column", "with", "by quadratic forms", "by the whole network", "unit")
    rows = [
        (
            *entry["columns"],
            *(entry[key] for key in _STRENGTHS),
            found["target_unit"],
            entry.get("coefficient"),
            entry.get("unit", ""),
        )
        for entry in (*found["pairs"], *found["squares"])
    ]
    return Table((*header, "factor of the product", "unit of the factor"), tuple(rows))
