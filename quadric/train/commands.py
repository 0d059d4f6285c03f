"""What the commands of training do: values in, data and texts out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quadric.errors import FileError, InputError
from quadric.models.weight_files import parse_selection
from quadric.runs.groups import ENVIRONMENT_FIELDS, group
from quadric.runs.reading import read_runs
from quadric.runs.tables import bleu_table, final_report, group_table, to_json
from quadric.support.process import keep_freed_memory
from quadric.support.writing import DISK, naming
from quadric.train import catalog, interface, training
from quadric.train import grid as sweeping
from quadric.train.directory import RUNS
from quadric.train.processes import INTERRUPTED, InterruptedTraining
from quadric.train.recipe import option_words

DIVERGED = 1
FAILED = 1


def overrides(named: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The fields that a command line changes."""
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
    code: Sequence[str] = (),
    profile: bool = False,
    given: Sequence[str] = (),
) -> tuple[dict[str, Any] | None, str, int]:
    """Trains a recipe, or continues a run, as `quadric.train.run` does."""
    run = interface.plan(name, changes, quick, run_dir, RUNS, resume, overwrite, code)
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
    text = final_report(run.directory.path, result, run.command)
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
        for field in ENVIRONMENT_FIELDS:  # which the directory says only once the run has begun
            if field != "code" and getattr(run.recipe, field) != getattr(before, field):
                words += option_words(field, getattr(run.recipe, field))
    else:
        words = shlex.split(run.command)
        words += [] if run_dir is None else ["--run-dir", str(run_dir)]
        words += ["--overwrite"] if overwrite else []
    return shlex.join([*words, *given])


def results(runs: Sequence[Path], markdown: bool = False) -> tuple[dict[str, Any], str, list[str]]:
    """Tabulates runs."""
    found, notes = read_runs(runs)
    groups = group(found)
    tables = [bleu_table(groups, markdown), group_table(groups, markdown)]
    return to_json(groups), "\n\n".join(table for table in tables if table), notes


def grid(named: Mapping[str, str | None], assignments: Sequence[str]) -> dict[str, list[Any]]:
    """The values that a sweep combines."""
    found = {f: sweeping.split_values(v) for f, v in named.items() if v is not None}
    for assignment in assignments:
        field, values = sweeping.split_assignment(assignment)
        if field in found or field == "seed":
            option = "--seeds" if field == "seed" else f"--{field}"
            raise InputError(f"{field} is swept by {option}: leave --set {field} out")
        found[field] = values
    return found


def sweep(runs: Sequence[training.Run], jobs: int = 1) -> tuple[dict[str, Any] | None, str, int]:
    """Trains the runs of a sweep, and says on stderr how each ended."""
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
