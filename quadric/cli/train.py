"""Commands on training: `quadric recipes`, `train`, `evaluate`, `results` and `sweep`."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.progress import say

FAILED = 1
"""The exit code of a run that diverged, and of a sweep in which runs failed."""
INTERRUPTED = 130


def recipes(
    name: str | None = Argument(None, help="Show this recipe's file."),
    json_file: options.JsonFile = None,
) -> None:
    """List the recipes of quadric train and what they reproduce, or show one.

    Every recipe but the quick variants (--quick) has the paper's settings, where it has any.

    Example: quadric recipes
    """
    require("train", "quadric recipes")
    from quadric.train import catalog

    text = catalog.table() if name is None else catalog.text(name).rstrip()
    options.show(text, catalog.facts(name), json_file)


def train(
    recipe: str = Argument(help="A recipe, a .yaml file, or with --resume a run directory."),
    quick: options.Quick = False,
    set_: list[str] | None = Option(
        None, "--set", metavar="FIELD=VALUE", help="Any field of the recipe (repeatable)."
    ),
    run_dir: Path | None = Option(None, help="By default runs/<recipe>-<neuron>...-s<seed>."),
    resume: bool = Option(False, "--resume", help="Continue from the last checkpoint."),
    overwrite: bool = Option(False, "--overwrite", help="Train again in the same directory."),
    code: options.Code = None,
    profile: bool = Option(False, "--profile", help="Write what the operators of a step cost."),
    quiet: bool = Option(False, "--quiet", help="No line for each epoch."),
    json_file: options.JsonFile = None,
    **fields: Any,
) -> None:
    """Train a network by a recipe, in a run directory that holds everything about it.

    Ctrl-C, or a kill, loses at most the current epoch: quadric train RUN_DIRECTORY --resume goes
    on. A finished run is not trained again, its result is shown. Several machines: the same
    command under torchrun or srun. Curves while it runs: tensorboard --logdir runs.

    Example: quadric train digits --neuron eigen
    """
    require("train", "quadric train")
    from quadric.runs.tables import final_report
    from quadric.support.process import keep_freed_memory
    from quadric.train import catalog
    from quadric.train.processes import InterruptedTraining
    from quadric.train.runner import plan_run, progress_stream
    from quadric.train.runner import train as train_run

    changes = {name: value for name, value in fields.items() if value not in (None, [])}
    for name in {"include", "exclude"} & set(changes):
        changes[name] = options.selection(changes[name])
    for name, value in catalog.parse_assignments(set_ or []).items():
        if name in changes:
            raise InputError(
                f"{name} is given twice, as an option and with --set: leave one of them out"
            )
        changes[name] = value
    if resume and os.sep in recipe and not Path(recipe).exists():
        raise InputError(f"there is no run directory {recipe}: name one of quadric train")
    planned = plan_run(recipe, changes, quick=quick, run_dir=run_dir, code=code or [])
    path, is_known = planned.directory.path, planned.directory.is_finished and not overwrite
    keep_freed_memory()
    try:
        screen = progress_stream(quiet or json_file == "-")
        result = train_run(
            planned, resume=resume, overwrite=overwrite, screen=screen, profile=profile
        )
    except InterruptedTraining as error:
        options.show(str(error), None, json_file)
        raise typer.Exit(INTERRUPTED) from None
    if result is None:  # not the first of several processes
        return
    text = final_report(path, result, planned.command)
    if is_known:
        text = f"already finished; --overwrite trains it again\n{text}"
    elif (path / "profile.txt").is_file():
        text += f"\nwhere the time goes: {path / 'profile.txt'}"
    options.show(text, result, json_file)
    raise typer.Exit(0 if result["status"] == "ok" else FAILED)


def recipe_fields() -> dict[str, Any]:
    """The fields of a recipe that are options of `quadric train`; to load them takes a moment."""
    require("train", "quadric train")
    from quadric.train.recipe import OPTIONS

    return OPTIONS


def with_fields(command: Callable[..., None], fields: Mapping[str, Any]) -> Callable[..., None]:
    """A command with an option for each field, instead of its parameter `**fields`."""

    @functools.wraps(command)
    def filled(**values: Any) -> None:
        command(**values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, field in fields.items():
        kind, choices = _kind(field.annotation)
        told = field.description
        if choices:
            told = f"{told.removesuffix('.')}: {', '.join(choices)}."
        option = Option(None, f"--{name.replace('_', '-')}", help=told)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=option, annotation=kind))
    filled.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    filled.__annotations__ = {one.name: one.annotation for one in parameters}
    return filled


def _kind(annotation: Any) -> tuple[Any, list[str]]:
    """What an option of a field takes, and the values to choose from."""
    branches: list[Any] = [annotation]
    kinds: list[type] = []
    choices: list[str] = []
    for branch in branches:
        origin = typing.get_origin(branch) or branch
        if origin is typing.Annotated:
            branches.append(typing.get_args(branch)[0])
        elif origin is typing.Literal:
            choices += typing.get_args(branch)
        elif origin in (bool, int, float, str, list):
            kinds.append(origin)
        else:
            branches += typing.get_args(branch)
    if list in kinds:
        return list[str] | None, []
    return (kinds or [str])[0] | None, choices


def evaluate(
    runs: list[Path] = Argument(help="Run directories."),
    test: tuple[Path, Path] | None = Option(
        None, help="Of translation runs: test on these two files, SOURCE TARGET."
    ),
    data_dir: options.DataDir = None,
    code: options.Code = None,
    json_file: options.JsonFile = None,
) -> None:
    """Test the weights of runs on their test data, and count what the networks cost.

    Example: quadric evaluate runs/digits-eigen-k9-s0
    """
    require("train", "quadric evaluate")
    from quadric.runs.tables import facts
    from quadric.support.texttable import text_table
    from quadric.train.evaluation import evaluate

    measured = []
    for run in runs:
        with options.progress_bar(None, f"testing {run}, batches") as advance:
            environment = options.environment(data_dir)
            measured.append(
                evaluate(run, test=test, code=code or [], progress=advance, **environment)
            )
    text = "\n\n".join(text_table(["", str(one["run"])], facts(one)) for one in measured)
    options.show(text, measured if len(measured) > 1 else measured[0], json_file)


def results(
    runs: list[Path] = Argument(help="Run directories, folders of them, or result files."),
    markdown: options.Markdown = False,
    json_file: options.JsonFile = None,
) -> None:
    """Tabulate runs, mean ± standard deviation over seeds, and the differences between arms.

    Arms of a recipe are compared on the seeds that they share, with the linear one if it is there:
    the mean of the paired differences and its 95 % interval.

    Example: quadric results runs/digits-*
    """
    _tabulate(runs, json_file, markdown)


def _tabulate(runs: list[Path], json_file: str | None, markdown: bool = False) -> None:
    from quadric.runs.groups import group, without_twins
    from quadric.runs.reading import read_runs
    from quadric.runs.tables import bleu_table, group_table, to_json

    finished, notes = read_runs(runs)
    finished, twins = without_twins(finished)
    for note in (*notes, *twins):
        say(note)
    groups = group(finished)
    tables = [bleu_table(groups, markdown), group_table(groups, markdown)]
    options.show("\n\n".join(filter(None, tables)), to_json(groups), json_file)


def sweep(
    recipe: list[str] = Argument(help="Recipes."),
    neuron: str | None = Option(None, help="Neurons, such as linear,eigen."),
    rank: str | None = Option(None, help="Ranks, such as 3,9."),
    seeds: str = Option("1", help="How many, or which: 3 means 0,1,2."),
    set_: list[str] | None = Option(
        None, "--set", metavar="FIELD=VALUES", help="Values of a field, such as lr=0.1,0.2."
    ),
    quick: options.Quick = False,
    jobs: int = Option(1, help="Runs at the same time; from 2 on each has one thread."),
    data_dir: options.DataDir = None,
    runs_dir: Path = Option(Path("runs"), help="Where the run directories are made."),
    code: options.Code = None,
    dry_run: bool = Option(False, "--dry-run", help="List the runs and train none."),
    json_file: options.JsonFile = None,
) -> None:
    """Train every combination of neurons, ranks, values and seeds, and tabulate them.

    Finished runs are skipped. A killed sweep goes on where it was if it is started again.

    Example: quadric sweep digits --neuron linear,eigen --seeds 3 --set quadratic_lr=1e-3,1e-2
    """
    require("train", "quadric sweep")
    from quadric.support.process import keep_freed_memory
    from quadric.train import grid
    from quadric.train.processes import InterruptedTraining
    from quadric.train.runner import progress_stream

    values = grid.grid_values({"neuron": neuron, "rank": rank}, set_ or [])
    fields = values | options.environment(data_dir)
    runs = grid.plan_sweep(
        recipe, fields, grid.seeds_of(seeds), quick=quick, runs=runs_dir, code=code or []
    )
    if dry_run:
        paths = [str(run.directory.path) for run in runs]
        lines = [f"{path}  {run.command}" for path, run in zip(paths, runs, strict=True)]
        options.show("\n".join(lines), {"runs": paths}, json_file)
        return
    print(f"{len(runs)} runs in {runs_dir}", file=sys.stderr)
    keep_freed_memory()
    try:
        failed = grid.train_all(runs, jobs, progress_stream(False))
    except (KeyboardInterrupt, InterruptedTraining):
        told = "interrupted: the same command goes on where the sweep was"
        options.show(told, None, json_file)
        raise typer.Exit(INTERRUPTED) from None
    finished = [run.directory.path for run in runs if run.directory.is_finished]
    if finished:
        _tabulate(finished, json_file)
    else:
        options.show("no run was finished", None, json_file)
    raise typer.Exit(FAILED if failed or not finished else 0)
