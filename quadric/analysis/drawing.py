"""Figures as files: PNG and PDF, the numbers beside them as CSV, and as LaTeX tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quadric.analysis import figures
from quadric.analysis.style import RC, score_label
from quadric.errors import InputError
from quadric.runs.groups import in_lines
from quadric.runs.reading import RunResult
from quadric.support.checks import file_name
from quadric.support.extras import load_extra
from quadric.support.progress import duration
from quadric.support.texttable import csv_cell
from quadric.support.writing import whole_file, write_text

if TYPE_CHECKING:
    import pandas as pd

NAMES = (*figures.OF_RUNS, *figures.OF_ANALYSES)
"""Every figure by its name."""
SECONDS = 0.6
"""What a figure takes, roughly."""
_QUANTILES = ("min", "5%", "25%", "50%", "75%", "95%", "max")


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
        before = len(files)
        for stem, function, source in jobs:
            try:
                figure, table = function(source, **size), numbers(name, source)
            except InputError as error:
                if name in figures.OF_RUNS or len(jobs) == 1:
                    notes.append(f"{name}: {error}")
            else:
                files += [*save(figure, folder / stem), *_write(table, folder / stem, latex)]
            progress(1, f"drawing {name}")
        if jobs and len(files) == before and len(jobs) > 1:
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


def _file_names(runs: Sequence[RunResult]) -> list[str]:
    """The runs' names, as far as they may stand in the name of a file; a repeat has a number."""
    names: list[str] = []
    for run in runs:
        name = file_name(run.name)
        more = (f"{name}-{number}" for number in itertools.count(2))
        names.append(next(each for each in itertools.chain([name], more) if each not in names))
    return names


def save(figure: Any, path: Path) -> list[Path]:
    """Writes a figure as PNG and PDF, with its fonts inside."""
    from matplotlib import rc_context

    files = [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
    with rc_context(RC):
        for file in files:
            # Without a date the same runs give the same file.
            metadata = {"CreationDate": None} if file.suffix == ".pdf" else None
            with whole_file(file) as partial:
                figure.savefig(partial, format=file.suffix[1:], metadata=metadata)
    return files


def _write(table: pd.DataFrame, path: Path, latex: bool) -> list[Path]:
    plain = table.map(csv_cell).rename(columns=csv_cell)
    contents = {".csv": plain.to_csv(index=False, lineterminator="\n")}
    if latex:
        # Names come from files: what TeX would read as a command is escaped.
        text = table.to_latex(index=False, escape=True, na_rep="--", float_format="%.4g")
        contents[".tex"] = f"% needs \\usepackage{{booktabs}}\n{text}"
    files = [path.with_name(path.name + suffix) for suffix in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_text(file, content)
    return files


def numbers(name: str, source: Any) -> pd.DataFrame:
    """The numbers of a figure."""
    pandas: Any = load_extra("pandas", "the numbers of a figure", "plots")
    rows = _ROWS[name](source) if name in _ROWS else _group_rows(source)
    # A column of whole numbers in which some are missing stays one of whole numbers.
    frame: pd.DataFrame = pandas.DataFrame(rows).convert_dtypes()
    return frame


def _group_rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    return [
        {
            "data set": each.dataset, "network": each.network, "neuron": each.line,
            "parameters": each.first.params, "MACs": each.first.macs, "score": each.mean,
            "unit": score_label(each.first), "std": each.std, "seeds": len(each.runs),
            "diverged": each.diverged, "settings": each.differing,
        }
        for each in in_lines(runs)
    ]  # fmt: skip


def _law_rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    return _group_rows([run for run in runs if not run.metric.higher_is_better])


def _curve_rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.name, "data set": run.dataset, "neuron": run.label, "seed": run.seed,
            "status": run.values["status"], "epoch": x, "curve": f"{part} {what}", "value": y,
        }
        for run in runs
        for what in ("score", "loss")
        for part in ("train", "test")
        for x, y in run.curve(part, what)
    ]  # fmt: skip


def _layers(run: RunResult) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """The first cells of the rows of each layer, and what is known of it."""
    assert run.analysis is not None
    layers = enumerate(run.analysis["layers"], start=1)
    return [({"layer": place, "name": layer["name"]}, layer) for place, layer in layers]


def _distribution_rows(run: RunResult) -> list[dict[str, Any]]:
    return [
        {**first, "what": kind, **{key: layer[kind][key] for key in ("count", "mean", "std")},
         **dict(zip(_QUANTILES, layer[kind]["quantiles"], strict=True))}
        for first, layer in _layers(run)
        for kind in ("weights", "quadratic", "eigenvalues", "effective_rank")
        if layer.get(kind)
    ]  # fmt: skip


def _frequency_rows(run: RunResult) -> list[dict[str, Any]]:
    rows = []
    for first, layer in _layers(run):
        low = layer.get("low_frequency", {})
        row = {**first, "quadratic share": layer.get("share"), "correlation": layer["correlation"]}
        for part in ("linear", "quadratic"):
            row |= {f"low {part}": low.get(part, {}).get("mean")}
            row |= {f"std {part}": low.get(part, {}).get("std")}
        gap = low.get("difference", {})
        rows.append(row | {"difference": gap.get("mean"), "half width 95%": gap.get("half_width")})
    return rows


def _coupling_rows(run: RunResult) -> list[dict[str, Any]]:
    assert run.analysis is not None
    coupled = run.analysis["couplings"]
    return [
        {
            **dict(zip(("column", "with"), entry["columns"], strict=True)),
            "by quadratic forms": entry["strength"], "by the whole network": entry["total"],
            "unit": coupled["target_unit"], "factor of the product": entry.get("coefficient"),
            "unit of the factor": entry.get("unit", ""),
        }
        for entry in (*coupled["pairs"], *coupled["squares"])
    ]  # fmt: skip


_ROWS: Mapping[str, Callable[[Any], list[dict[str, Any]]]] = {
    "stability": _curve_rows,
    "laws": _law_rows,
    "distribution": _distribution_rows,
    "responses": _frequency_rows,
    "frequencies": _frequency_rows,
    "couplings": _coupling_rows,
}
