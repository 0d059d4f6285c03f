"""What the commands of training do: values in, data and texts out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quadric.errors import FileError, InputError
from quadric.models.checkpoints import parse_selection
from quadric.support.process import keep_freed_memory
from quadric.support.writing import DISK, naming
from quadric.train import arms, catalog, interface, training
from quadric.train import grid as sweeping
from quadric.train.bleu_table import bleu_table
from quadric.train.directory import RUNS
from quadric.train.processes import INTERRUPTED, InterruptedTraining
from quadric.train.recipe import PLACE, option_words
from quadric.train.report import final_report

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
    imports: Sequence[str] = (),
    trust: bool = False,
    profile: bool = False,
    given: Sequence[str] = (),
) -> tuple[dict[str, Any] | None, str, int]:
    """Trains a recipe, or continues a run, as `quadric.train.run` does.

    Args:
        name: a recipe, a recipe file, or a run directory.
        changes: other values of some fields.
        quick: train the recipe's quick variant.
        run_dir: the run's directory.
        resume: continue from the last checkpoint.
        overwrite: train again in the same directory.
        quiet: print no line for each epoch.
        imports: files or modules of the user's own.
        trust: run code that a run directory names, or that other users could have written.
        profile: measure the operators of a few steps.
        given: further words of the command line, which the command that goes on repeats.

    Returns:
        The result (None if it was interrupted), the text to print and the exit code.

    Raises:
        InputError: if the recipe, a field or the directory does not fit.
        FileError: if the disk fills.
    """
    run = interface.plan(name, changes, quick, run_dir, RUNS, resume, overwrite, imports, trust)
    finished = run.directory.is_finished and not overwrite
    keep_freed_memory()
    try:
        with naming(run.directory.path, DISK):
            result = interface.finish(run, resume, overwrite, not quiet, profile).values
    except (KeyboardInterrupt, InterruptedTraining):
        return None, _interrupted(run, _again(run, run_dir, overwrite, given)), INTERRUPTED
    except FileError as error:
        again = _again(run, run_dir, overwrite, given)
        raise FileError(f"{error}; then go on with `{again}`") from None
    if not result:  # not the first of several processes
        return None, "", 0
    text = final_report(run.directory, result, run.command)
    if finished:
        # Its numbers are those of the place where it was trained.
        moved = "" if run.moved is None else f" (now {run.moved})"
        text = f"already finished{moved}; --overwrite trains it again\n{text}"
    elif (run.directory.path / "profile.txt").is_file():
        text += f"\nwhere the time goes: {run.directory.path / 'profile.txt'}"
    return result, text, DIVERGED if result["status"] == "diverged" else 0


def _interrupted(run: training.Run, again: str) -> str:
    done = run.epochs_done
    if not done:
        return f"interrupted in the first epoch: start it again with `{again}`"
    return (
        f"interrupted; {done} of {run.recipe.epochs} epochs are in "
        f"{run.directory.last_checkpoint}: continue with `{again}`"
    )


def _again(run: training.Run, run_dir: Path | None, overwrite: bool, given: Sequence[str]) -> str:
    """The command that goes on with a run that was stopped."""
    directory = run.directory
    overwrite = overwrite and directory.is_finished  # what it holds is still the run before
    if directory.recipe_file.is_file() and not overwrite:
        words = shlex.split(run.resume_command)
        before = directory.recipe()
        for field in PLACE:  # which the directory says only once the run has begun
            if field != "imports" and getattr(run.recipe, field) != getattr(before, field):
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
    found, notes = arms.finished(runs)
    groups = arms.group(found)
    tables = [bleu_table(groups, markdown), arms.tabulate(groups, markdown)]
    return arms.to_json(groups), "\n\n".join(table for table in tables if table), notes


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


def sweep(runs: Sequence[training.Run], jobs: int = 1) -> tuple[dict[str, Any] | None, str, int]:
    """Trains the runs of a sweep, and says on stderr how each ended.

    Args:
        runs: what to train.
        jobs: how many to train at the same time.

    Returns:
        The table of the runs as data (None if there is none), as text, and the exit code.
    """
    keep_freed_memory()
    try:
        failed = interface.finish_all(runs, jobs)
    except (KeyboardInterrupt, InterruptedTraining):
        return None, "interrupted: the same command goes on where the sweep was", INTERRUPTED
    finished = [run.directory.path for run in runs if run.directory.is_finished]
    if not finished:
        return None, "no run was finished", FAILED
    data, text, _ = results(finished)
    return data, text, FAILED if failed else 0
