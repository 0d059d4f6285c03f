"""What the commands of training do: they take options and return texts and data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quadric.errors import InputError
from quadric.models.checkpoints import parse_selection
from quadric.process import keep_freed_memory
from quadric.train import catalog
from quadric.train import results as tables
from quadric.train import sweep as sweeping
from quadric.train.directory import RunDirectory
from quadric.train.processes import INTERRUPTED, InterruptedTraining
from quadric.train.report import final_report, rows

DIVERGED = 1
FAILED = 1


def overrides(named: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The fields that a command line changes.

    Args:
        named: options with names of their own; None for one that was not given.
        assignments: `field=value`.
    """
    found = {field: value for field, value in named.items() if value is not None}
    for field in ("include", "exclude"):
        if field in found:
            found[field] = parse_selection(found[field])
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
    named: Mapping[str, Any],
    assignments: Sequence[str],
    *,
    quick: bool = False,
    run_dir: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> tuple[dict[str, Any] | None, str, int]:
    """Trains a recipe, or continues a run.

    Returns:
        The result, the text to print and the exit code.
    """
    from quadric.train import run as running
    from quadric.train.directory import is_run_directory

    if (
        is_run_directory(name)
        and not (resume or overwrite)
        and not RunDirectory(Path(name)).is_finished
    ):
        raise InputError(f"{name} is a run directory: continue it with --resume")
    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other: leave one of them out")
    run = running.find_run(name, overrides(named, assignments), quick=quick, run_dir=run_dir)
    finished = run.directory.is_finished and not overwrite
    screen = running.progress_stream(quiet)
    keep_freed_memory()
    try:
        result = running.train(run, resume=resume, overwrite=overwrite, screen=screen)
    except (KeyboardInterrupt, InterruptedTraining):
        return None, _interrupted(run), INTERRUPTED
    if result is None:
        return None, "", 0
    text = final_report(run.directory, result, run.command)
    if finished:
        # Its numbers are those of the place where it was trained.
        moved = "" if run.moved is None else f" (now {run.moved})"
        text = f"already finished{moved}; --overwrite trains it again\n{text}"
    return result, text, DIVERGED if result["status"] == "diverged" else 0


def _interrupted(run: Any) -> str:
    done = run.epochs_done
    if not done:
        # While data were being fetched there is no directory yet to resume.
        begun = (run.directory.path / "recipe.yaml").exists()
        again = run.directory.resume_command if begun else run.command
        return f"interrupted in the first epoch: start it again with `{again}`"
    return (
        f"interrupted; {done} of {run.recipe.epochs} epochs are in "
        f"{run.directory.last_checkpoint}: continue with `{run.directory.resume_command}`"
    )


def evaluate(runs: Sequence[Path], data_dir: Path | None) -> list[dict[str, Any]]:
    """Tests the weights of runs."""
    from quadric.train import evaluation

    place = {} if data_dir is None else {"data_dir": str(data_dir)}
    return [evaluation.evaluate(run, **place) for run in runs]


def evaluation_text(found: Sequence[Mapping[str, Any]]) -> str:
    """What `evaluate` prints."""
    from quadric.texttable import text_table

    return "\n\n".join(text_table(["", str(one["run"])], rows(one)) for one in found)


def results(runs: Sequence[Path], markdown: bool) -> tuple[dict[str, Any], str, list[str]]:
    """Tabulates runs.

    Returns:
        The table as data, as text, and notes on runs that are not finished.
    """
    found, notes = tables.read_results(runs)
    if not found:
        names = ", ".join(str(run) for run in runs[:3])
        raise InputError(f"no finished run in {names}: train one with `quadric train`")
    arms = tables.group(found)
    return tables.to_json(arms), tables.tabulate(arms, markdown), notes


def sweep(
    recipes: Sequence[str],
    named: Mapping[str, str | None],
    assignments: Sequence[str],
    seeds: str,
    *,
    quick: bool,
    jobs: int,
    data_dir: Path | None,
    runs_dir: Path,
    dry_run: bool,
) -> tuple[dict[str, Any], str, int]:
    """Trains a grid of runs.

    Returns:
        The table of the runs as data, as text, and the exit code.
    """
    grid = {f: sweeping.split_values(v) for f, v in named.items() if v is not None}
    for assignment in assignments:
        field, values = sweeping.split_assignment(assignment)
        if field in grid or field == "seed":
            option = "--seeds" if field == "seed" else f"--{field}"
            raise InputError(f"{field} is swept by {option}: leave --set {field} out")
        grid[field] = values
    runs = sweeping.plan(
        recipes,
        grid,
        sweeping.seeds_of(seeds),
        fixed={} if data_dir is None else {"data_dir": str(data_dir)},
        quick=quick,
        runs=runs_dir,
    )
    if dry_run:
        lines = [f"{run.directory.path}  {run.command}" for run in runs]
        return {"runs": [str(run.directory.path) for run in runs]}, "\n".join(lines), 0
    print(f"{len(runs)} runs in {runs_dir}", file=sys.stderr)
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
        return {}, "interrupted: the same command goes on where the sweep was", INTERRUPTED
    finished = [run.directory.path for run in runs if run.directory.is_finished]
    if not finished:
        return {}, "no run was finished", FAILED
    data, text, _ = results(finished, markdown=False)
    return data, text, FAILED if failed else 0
