"""One run from a recipe to its result: the directory is checked, the processes are started."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from quadric.errors import InputError
from quadric.runs.groups import ENVIRONMENT_FIELDS
from quadric.support.extras import EXTRAS, require
from quadric.support.process import in_notebook
from quadric.train import catalog, checkpoints
from quadric.train.data import GIVEN, DataSet, load_data
from quadric.train.directory import (
    RUNS,
    RunDirectory,
    command_at,
    continued,
    is_run_directory,
)
from quadric.train.network import build_network
from quadric.train.processes import is_first_process, launch, launched
from quadric.train.recipe import Recipe
from quadric.train.run_code import code_words, load_code, modules_of, unnamed

# Besides tensors a run writes its recipe, names of parameters, and a record of each epoch, which
# stands in checkpoints, logs and the result: bytes of all of them, for each layer.
NAMES, RECORD = 3_500, 350


@dataclass(frozen=True)
class Run:
    """A recipe and its directory.

    Attributes:
        recipe: resolved.
        directory: where it is, or will be.
        command: that makes it.
        named: whether the user named the directory, rather than the recipe with its fields.
        code: all code that this call names; without the recipe's own a finished run can be looked
            at, and nothing else.
    """

    recipe: Recipe
    directory: RunDirectory
    command: str
    named: bool = True
    code: tuple[str, ...] = ()

    @property
    def moved(self) -> str | None:
        """What is at another place than when the directory was last written; None if nothing is."""
        if not self.directory.recipe_file.is_file():
            return None
        before = self.directory.recipe()
        field = self.recipe.first_difference(before)
        if field is None:
            return None
        return f"{field} is {getattr(self.recipe, field)!r}, it was {getattr(before, field)!r}"

    @property
    def resume_command(self) -> str:
        """The command that continues the run, with the code that the user has named already."""
        return shlex.join([*shlex.split(self.directory.resume_command), *code_words(self.recipe)])

    @property
    def epochs_done(self) -> int:
        """Epochs that the newest whole checkpoint holds."""
        found = checkpoints.find(self.directory)
        return 0 if found is None else found.epochs


def find_run(
    name: str,
    overrides: dict[str, Any] | None = None,
    *,
    quick: bool = False,
    run_dir: str | Path | None = None,
    runs: str | os.PathLike[str] = RUNS,
    code: Sequence[str] = (),
) -> Run:
    """The run of a recipe with overrides, or of a directory."""
    overrides = dict(overrides or {})
    if is_run_directory(name):
        directory = RunDirectory(Path(name))
        if quick or run_dir is not None:
            raise InputError(
                f"{name} is a run directory: --quick and --run-dir belong to a recipe, leave them "
                "out"
            )
        recipe = continued(directory.recipe(), overrides)
        if not (directory.is_finished and unnamed(recipe, code)):
            recipe = load_code(recipe, code, directory.path)
        place = {key: getattr(recipe, key) for key in ENVIRONMENT_FIELDS if key in overrides}
        command = command_at(directory.command(), place)
        return Run(recipe, directory, command, code=tuple(code))
    base = catalog.load(name, quick)
    started = launched()
    if started is not None:
        overrides.setdefault("devices", started.devices)
        overrides.setdefault("nodes", started.nodes)
    recipe = base.with_overrides(overrides)
    functions = modules_of(recipe, overrides)
    recipe = load_code(recipe, code, f"recipe {name}", functions=functions).resolved()
    path = Path(runs) / recipe.directory_name(base) if run_dir is None else Path(run_dir)
    source = None
    if catalog.is_path(name):
        source = [name, "--quick"] if quick else [name]
    command = recipe.command(base, source)
    named = (*code, *functions)
    return Run(recipe, RunDirectory(path), command, run_dir is not None, named)


def train(
    run: Run,
    *,
    resume: bool = False,
    overwrite: bool = False,
    data: DataSet | None = None,
    screen: TextIO | None = None,
    profile: bool = False,
) -> dict[str, Any] | None:
    """Trains a run to its end and returns its result; None in all processes but the first.

    A run that is finished is not trained again.
    """
    if data is not None:
        run = _on(data, run)
    recipe, directory = run.recipe, run.directory
    _check_processes(recipe)
    if not is_first_process():
        # The first process keeps the directory; this one follows it.
        if not directory.is_finished or overwrite:
            from quadric.train.loop import fit

            _load_code(run)
            fit(recipe, directory, again=overwrite, profile=profile)
        return None
    directory.check_owner(recipe, named=run.named)
    if directory.is_finished and not overwrite:
        return directory.result()
    _load_code(run)
    # All that can be wrong with the recipe or the data is found here, before anything is written.
    if recipe.logger in EXTRAS:
        require(recipe.logger, f"logger {recipe.logger!r}")
    prepared = load_data(recipe, data)
    network = build_network(recipe, prepared)
    with directory.lock() as lock:
        if directory.is_finished and not overwrite:
            return directory.result()  # another process has just finished it
        found = None if overwrite else checkpoints.find(directory)
        if found is not None and not resume:
            raise InputError(
                f"{directory.path} holds an unfinished run, {found.epochs} of {recipe.epochs} "
                f"epochs are {found.where}: continue it with `{run.resume_command}`, or "
                "start again with --overwrite"
            )
        moved = run.moved
        directory.create(recipe, run.command, bytes_of(recipe, network))
        if overwrite:  # only now: a mistake must not cost a trained network
            directory.clear()
        elif found is not None:
            checkpoints.take(directory, found)
        prepared.keep(directory.path)
        if screen is not None:
            print(f"{recipe.title}, in {directory.path}", file=screen)
            for note in (*prepared.notes, *_notes(recipe, moved, found)):
                print(f"note: {note}", file=screen)
        if recipe.devices > 1 and launched() is None:
            del prepared, network  # the processes load their own
            launch(
                directory,
                recipe.devices,
                lock,
                screen is not None,
                profile,
                resume_command=run.resume_command,
            )
        else:
            from quadric.train.loop import fit

            fit(recipe, directory, data=prepared, screen=screen, profile=profile)
        return directory.result()


def _notes(recipe: Recipe, moved: str | None, found: checkpoints.Found | None) -> Iterator[str]:
    """What is told before the first epoch, besides notes on the data."""
    if moved is not None:
        yield moved
    if found is not None and found.damage is not None:
        yield f"{found.damage}, going on from {found.path}"
    if recipe.schedule == "step" and recipe.milestones[0] >= recipe.epochs:
        yield (
            f"the rate never decays, as milestones {recipe.milestones} are not within "
            f"{recipe.epochs} epochs: give other ones, or another --schedule"
        )


def bytes_of(recipe: Recipe, network: nn.Module) -> int:
    """About the bytes of a finished run and of the checkpoint beside the others."""
    parameters = sum(p.numel() * p.element_size() for p in network.parameters())
    weights = parameters + sum(b.numel() * b.element_size() for b in network.buffers())
    momenta = int(recipe.momentum > 0) if recipe.optimizer == "sgd" else 2
    # The last one, the one before it and the next; with a validation part the best one, too.
    files = 4 if recipe.validation else 3
    if recipe.keep_every is not None:
        files += recipe.epochs // recipe.keep_every
    if recipe.ema is not None:
        momenta += 1  # the averaged weights are in each checkpoint
    layers = 5 + sum(1 for module in network.modules() if list(module.parameters(recurse=False)))
    small = layers * (NAMES * files + RECORD * recipe.epochs)
    # With `average` the weights of the last epochs are kept, and those of one more.
    kept = 1 + (0 if recipe.average is None else recipe.average + 1)
    return kept * weights + files * (weights + momenta * parameters) + small


def _on(data: DataSet, run: Run) -> Run:
    """A run on other data than its recipe names: what it records must not name those."""
    dataset = f"{GIVEN}{data.name}"
    command = run.command if GIVEN in run.command else f"{GIVEN}{data.name}, else {run.command}"
    return replace(run, recipe=run.recipe.model_copy(update={"dataset": dataset}), command=command)


def _load_code(run: Run) -> None:
    """Imports what the run names; a process of a sweep is handed runs of another process."""
    load_code(run.recipe, (), run.directory.path, functions=run.code)


def _check_processes(recipe: Recipe) -> None:
    started = launched()
    if started is None and recipe.nodes > 1:
        raise InputError(
            f"nodes must be 1 without a launcher, got {recipe.nodes}: start the same command on "
            "each machine with torchrun or srun"
        )
    if started is not None and (started.devices, started.nodes) != (recipe.devices, recipe.nodes):
        raise InputError(
            f"devices and nodes must be what the launcher started, {started.devices} and "
            f"{started.nodes}, got {recipe.devices} and {recipe.nodes}: leave them out"
        )


def progress_stream(quiet: bool) -> TextIO | None:
    """Where progress goes: in a notebook among the output, else to stderr."""
    if quiet or not is_first_process():
        return None
    return sys.stdout if in_notebook() else sys.stderr
