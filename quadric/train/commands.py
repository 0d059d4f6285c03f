"""What the commands of training do: values in, data and texts out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quadric.errors import FileError, InputError
from quadric.models.checkpoints import parse_selection
from quadric.process import keep_freed_memory
from quadric.train import catalog
from quadric.train import results as tables
from quadric.train import run as running
from quadric.train import sweep as sweeping
from quadric.train.directory import RunDirectory, is_run_directory
from quadric.train.processes import INTERRUPTED, InterruptedTraining
from quadric.train.recipe import PLACE, option_words
from quadric.train.report import final_report
from quadric.writing import DISK, naming

DIVERGED = 1
FAILED = 1


def overrides(named: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The fields that a command line changes.

    Args:
        named: options with names of their own.
        assignments: `field=value`.

    Returns:
        The new values, by field.

    Raises:
        InputError: if a field is given twice, or an assignment is not one.
    """
    found = dict(named)
    for field in ("include", "exclude"):
        if field in found:
            found[field] = parse_selection(list(found[field]))
    if "data_dir" in found:
        found["data_dir"] = str(found["data_dir"])
    for assignment in assignments:
        field, value = catalog.parse_assignment(assignment)
        if field in found:
            raise InputError(
                f"{field} is given twice, as an option and with --set: leave one of them out"
            )
        found[field] = value
    return found


def train(
    name: str,
    changes: dict[str, Any],
    *,
    quick: bool = False,
    run_dir: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    given: Sequence[str] = (),
) -> tuple[dict[str, Any] | None, str, int]:
    """Trains a recipe, or continues a run.

    Args:
        name: a recipe, a recipe file, or a run directory.
        changes: other values of some fields.
        quick: train the recipe's quick variant.
        run_dir: the run's directory.
        resume: continue from the last checkpoint.
        overwrite: train again in the same directory.
        quiet: print no line for each epoch.
        given: further words of the command line, which the command that goes on repeats.

    Returns:
        The result (None if it was interrupted), the text to print and the exit code.

    Raises:
        InputError: if the recipe, a field or the directory does not fit.
        FileError: if the disk fills.
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other: leave one of them out")
    if is_run_directory(name) and not (resume or overwrite or RunDirectory(Path(name)).is_finished):
        raise InputError(f"{name} is a run directory: continue it with --resume")
    run = running.find_run(name, changes, quick=quick, run_dir=run_dir)
    finished = run.directory.is_finished and not overwrite
    screen = running.progress_stream(quiet)
    keep_freed_memory()
    try:
        with naming(run.directory.path, DISK):
            result = running.train(run, resume=resume, overwrite=overwrite, screen=screen)
    except (KeyboardInterrupt, InterruptedTraining):
        return None, _interrupted(run, _again(run, run_dir, overwrite, given)), INTERRUPTED
    except FileError as error:
        again = _again(run, run_dir, overwrite, given)
        raise FileError(f"{error}; then go on with `{again}`") from None
    if result is None:
        return None, "", 0
    text = final_report(run.directory, result, run.command)
    if finished:
        # Its numbers are those of the place where it was trained.
        moved = "" if run.moved is None else f" (now {run.moved})"
        text = f"already finished{moved}; --overwrite trains it again\n{text}"
    return result, text, DIVERGED if result["status"] == "diverged" else 0


def _interrupted(run: running.Run, again: str) -> str:
    done = run.epochs_done
    if not done:
        return f"interrupted in the first epoch: start it again with `{again}`"
    return (
        f"interrupted; {done} of {run.recipe.epochs} epochs are in "
        f"{run.directory.last_checkpoint}: continue with `{again}`"
    )


def _again(run: running.Run, run_dir: Path | None, overwrite: bool, given: Sequence[str]) -> str:
    """The command that goes on with a run that was stopped."""
    directory = run.directory
    overwrite = overwrite and directory.is_finished  # what it holds is still the run before
    if directory.recipe_file.is_file() and not overwrite:
        words = shlex.split(directory.resume_command)
        before = directory.recipe()
        for field in PLACE:  # which the directory says only once the run has begun
            if getattr(run.recipe, field) != getattr(before, field):
                words += option_words(field, getattr(run.recipe, field))
    else:
        words = shlex.split(run.command)
        words += [] if run_dir is None else ["--run-dir", str(run_dir)]
        words += ["--overwrite"] if overwrite else []
    return shlex.join([*words, *given])


def results(runs: Sequence[Path], markdown: bool = False) -> tuple[dict[str, Any], str, list[str]]:
    """Tabulates runs.

    Args:
        runs: run directories, folders of them, or result files.
        markdown: write the table in markdown.

    Returns:
        The table as data, as text, and notes on runs that are not finished.

    Raises:
        InputError: if no run is finished.
    """
    found, notes = tables.read_results(runs)
    if not found:
        names = ", ".join(str(run) for run in runs[:3])
        raise InputError(f"no finished run in {names}: train one with `quadric train`")
    arms = tables.group(found)
    return tables.to_json(arms), tables.tabulate(arms, markdown), notes


def grid(named: Mapping[str, str | None], assignments: Sequence[str]) -> dict[str, list[Any]]:
    """The values that a sweep combines.

    Args:
        named: lists such as `3,9`, by field; None for a field that is not swept.
        assignments: further fields, as `field=value,value`.

    Returns:
        The values, by field.

    Raises:
        InputError: if a field is swept twice, or an assignment is not one.
    """
    found = {f: sweeping.split_values(v) for f, v in named.items() if v is not None}
    for assignment in assignments:
        field, values = sweeping.split_assignment(assignment)
        if field in found or field == "seed":
            option = "--seeds" if field == "seed" else f"--{field}"
            raise InputError(f"{field} is swept by {option}: leave --set {field} out")
        found[field] = values
    return found


def sweep(runs: Sequence[running.Run], jobs: int = 1) -> tuple[dict[str, Any] | None, str, int]:
    """Trains the runs of a sweep, and says on stderr how each ended.

    Args:
        runs: what to train.
        jobs: how many to train at the same time.

    Returns:
        The table of the runs as data (None if there is none), as text, and the exit code.
    """
    keep_freed_memory()
    failed = 0
    try:
        for i, outcome in enumerate(sweeping.sweep(runs, jobs, sys.stderr), start=1):
            line = f"[{i}/{len(runs)}] {outcome.run.directory.path.name}: {outcome.text}"
            if outcome.kind != "done":
                line += f" ({outcome.kind})"
            print(line, file=sys.stderr, flush=True)
            failed += outcome.kind in ("failed", "busy")
    except (KeyboardInterrupt, InterruptedTraining):
        return None, "interrupted: the same command goes on where the sweep was", INTERRUPTED
    finished = [run.directory.path for run in runs if run.directory.is_finished]
    if not finished:
        return None, "no run was finished", FAILED
    data, text, _ = results(finished)
    return data, text, FAILED if failed else 0
