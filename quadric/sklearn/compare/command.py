"""`quadric compare`: from the words of the command line to a report, with a bar on stderr."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quadric.errors import InputError
from quadric.sklearn.compare.models import Plan, parse_neurons
from quadric.sklearn.compare.report import Comparison
from quadric.sklearn.compare.run import Options, check_table, compare
from quadric.sklearn.compare.saving import check_path, save_best
from quadric.sklearn.compare.sources import load_source
from quadric.sklearn.networks import ACTIVATIONS


def compare_command(
    source: str,
    *,
    target: str | None,
    task: str | None,
    neurons: str,
    hidden: str,
    activation: str,
    folds: int,
    seeds: int,
    seed: int,
    epochs: int | None,
    rows: int | None,
    delimiter: str | None,
    drop: str,
    categories: str,
    data_dir: Path | None,
    run_dir: Path | None,
    with_baselines: bool,
    save: Path | None,
    json_file: str | None = None,
) -> tuple[Comparison, list[str]]:
    """Runs the comparison that these words describe; returns it with lines on what was written."""
    contenders = parse_neurons(neurons)
    widths = _widths(hidden)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if folds < 2:
        raise InputError(f"folds must be >= 2, got {folds}: 5 is usual")
    if save is not None:
        check_path(save, json_file)
    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        folder = str(Path(str(json_file)).parent)
        raise InputError(f"--json needs an existing directory, got {folder!r}: make it")
    table = load_source(
        source,
        target=target,
        task=task,
        data_dir=data_dir,
        rows=rows,
        delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter),
        drop=_words(drop),
        categories=_words(categories),
        seed=seed,
    )
    table = check_table(table, folds)
    plan = Plan(table.task, widths, activation, epochs)
    options = Options(tuple(contenders), plan, folds, seeds, seed, with_baselines)
    with _bar(options.fits()) as advance:
        records = compare(table, options, directory=run_dir, progress=advance)
    found = Comparison(table, options, records)
    found.write()
    written = [f"{records.path / 'compare.json'}: all numbers"]
    if importlib.util.find_spec("matplotlib") is not None:
        from quadric.sklearn.compare.picture import draw

        draw(found, records.path / "compare.png")
        written.append(f"{records.path / 'compare.png'}: the picture")
    else:
        written.append("no picture: pip install 'quadric[plots]'")
    if save is not None:
        written += save_best(found, save)
    return found, written


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(word) for word in _words(text))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise InputError(f"hidden must be positive whole numbers, as in 64,64, got {text!r}")
    return widths


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int, str], Any]]:
    """A progress bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("fits"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("comparing", total=total)

        def advance(done: int, what: str) -> None:
            bar.update(task, advance=done, description=what or "comparing")

        yield advance
