"""One run from a recipe to its result: the directory is checked, the processes are started."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from quadric.errors import FileError, InputError
from quadric.runs.groups import ENVIRONMENT_FIELDS
from quadric.support.extras import EXTRAS, require
from quadric.support.process import in_notebook
from quadric.support.texttable import printable
from quadric.support.writing import DISK, naming
from quadric.train import catalog, checkpoints
from quadric.train.data import GIVEN, DataSet, load_data
from quadric.train.directory import RUNS, RunDirectory, continued, is_run_directory
from quadric.train.network import build_network
from quadric.train.processes import InterruptedTraining, is_first_process, launch, launched
from quadric.train.recipe import FIELDS, OF_NEURON, Recipe, option_words
from quadric.train.run_code import code_words, load_code, modules_of, unnamed
from quadric.train.second_order import check
from quadric.user_code import listed, name_of

# Besides tensors a run writes its recipe, names of parameters, and a record of each epoch, which
# stands in checkpoints, logs and the result: bytes of all of them, for each layer.
NAMES, RECORD = 3_500, 350
# The fields that take a function in place of its name.
FUNCTIONS = ("model", "dataset", "loss")


@dataclass(frozen=True)
class PlannedRun:
    """A resolved recipe and its directory."""

    recipe: Recipe  # resolved
    directory: RunDirectory  # where it is, or will be
    command: str  # that makes it
    # Whether the user named the directory, rather than the recipe with its fields.
    named: bool = True
    # All code that this call names; without the recipe's own a finished run can be looked at, and
    # nothing else.
    code: tuple[str, ...] = ()

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run, with the code that it needs."""
        if self.directory.recipe_file.is_file() and not self.directory.is_finished:
            words = [*shlex.split(self.directory.resume_command), *code_words(self.recipe)]
            return shlex.join(words + _environment_words(self.recipe, self.directory.recipe()))
        words = shlex.split(self.command)
        words += ["--run-dir", str(self.directory.path)] if self.named else []
        # What it holds is still the run before.
        return shlex.join([*words, *(["--overwrite"] if self.directory.is_finished else [])])

    @property
    def epochs_done(self) -> int:
        """Epochs that the newest whole checkpoint holds."""
        checkpoint = checkpoints.find(self.directory)
        return 0 if checkpoint is None else checkpoint.epochs


def plan_run(
    recipe_or_run: str | os.PathLike[str],
    fields: Mapping[str, Any] | None = None,
    *,
    quick: bool = False,
    run_dir: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] = RUNS,
    code: str | Sequence[str] = (),
) -> PlannedRun:
    """The run of a recipe with other values of some fields, or of a directory."""
    name, code, overrides = os.fspath(recipe_or_run), listed(code), as_kept(fields or {})
    if is_run_directory(name):
        directory = RunDirectory(Path(name))
        if quick or run_dir is not None:
            raise InputError(
                f"{name} is a run directory: --quick and --run-dir belong to a recipe, leave them "
                "out"
            )
        before = directory.recipe()
        recipe = continued(before, overrides)
        if not (directory.is_finished and unnamed(recipe, code)):
            recipe = load_code(recipe, code, directory.path)
        # An option that is given twice has its last value.
        command = [directory.command(), *map(shlex.quote, _environment_words(recipe, before))]
        return PlannedRun(recipe, directory, " ".join(command), code=tuple(code))
    base = catalog.load(name, quick)
    started = launched()
    if started is not None:
        overrides = {"devices": started.devices, "nodes": started.nodes} | overrides
    recipe = base.with_overrides(overrides)
    functions = modules_of(recipe, overrides)
    recipe = load_code(recipe, code, f"recipe {name}", functions=functions).resolved()
    plain = base.with_overrides({"neuron": recipe.neuron}).resolved()
    path = Path(runs) / recipe.directory_name(plain) if run_dir is None else Path(run_dir)
    words = ["quadric", "train", name if catalog.is_path(name) else recipe.name]
    words += ["--quick"] if quick and catalog.is_path(name) else []
    for field in FIELDS:
        if field in overrides and (field in OF_NEURON or overrides[field] != getattr(base, field)):
            words += option_words(field, overrides[field])
    words += option_words("code", code)
    named = (*code, *functions)
    return PlannedRun(recipe, RunDirectory(path), shlex.join(words), run_dir is not None, named)


def as_kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as a recipe keeps them: functions by their names, paths as text."""
    kept = {name: name_of(v, name) if name in FUNCTIONS else v for name, v in fields.items()}
    return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in kept.items()}


def _environment_words(recipe: Recipe, before: Recipe) -> list[str]:
    """What another place needs as options, besides those of the recipe that a directory holds."""
    words: list[str] = []
    for field in ENVIRONMENT_FIELDS:
        value = getattr(recipe, field)
        if field != "code" and value != getattr(before, field):
            words += option_words(field, value)
    return words


def train(
    run: PlannedRun,
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
    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other: leave one of them out")
    if data is not None:
        run = _on(data, run)
    recipe, directory = run.recipe, run.directory
    _check_processes(recipe)
    if not is_first_process():
        # The first process keeps the directory; this one follows it.
        if not directory.is_finished or overwrite:
            from quadric.train.loop import fit

            _load_code(run)
            loaded = load_data(recipe)
            fit(recipe, directory, loaded, build_network(recipe, loaded), again=overwrite)
        return None
    directory.check_owner(recipe, named=run.named)
    if directory.is_finished and not overwrite:
        return directory.result()
    try:
        with naming(directory.path, DISK):
            if recipe.devices > 1 and launched() is None:
                launch(run, resume, overwrite, screen is None, profile)
            else:
                _train_here(run, resume, overwrite, data, screen, profile)
    except (KeyboardInterrupt, InterruptedTraining):
        done, again = run.epochs_done, run.resume_command
        where = f"interrupted in the first epoch: start it again with `{again}`"
        if done:
            where = (
                f"interrupted; {done} of {recipe.epochs} epochs are in "
                f"{directory.last_checkpoint}: continue with `{again}`"
            )
        raise InterruptedTraining(where) from None
    except FileError as error:
        raise FileError(f"{error}; then go on with `{run.resume_command}`") from None
    return directory.result()


def _train_here(
    run: PlannedRun,
    resume: bool,
    overwrite: bool,
    data: DataSet | None,
    screen: TextIO | None,
    profile: bool,
) -> None:
    """Trains in this process, the only one or the first of several."""
    from quadric.train.loop import fit

    recipe, directory = run.recipe, run.directory
    _load_code(run)
    # All that can be wrong with the recipe or the data is found here, before anything is written.
    if recipe.logger in EXTRAS:
        require(recipe.logger, f"logger {recipe.logger!r}")
    loaded = load_data(recipe, data)
    network = build_network(recipe, loaded)
    check(recipe, loaded, network)
    with directory.lock():
        if directory.is_finished and not overwrite:
            return  # another process has just finished it
        checkpoint = None if overwrite else checkpoints.find(directory)
        if checkpoint is not None and not resume:
            raise InputError(
                f"{directory.path} holds an unfinished run, {checkpoint.epochs} of {recipe.epochs} "
                f"epochs are {checkpoint.where}: continue it with `{run.resume_command}`, or "
                "start again with --overwrite"
            )
        directory.create(recipe, run.command, bytes_of(recipe, network))
        if overwrite:  # only now: a mistake must not cost a trained network
            directory.clear()
        elif checkpoint is not None:
            checkpoints.take(directory, checkpoint)
        loaded.keep(directory.path)
        if screen is not None:
            print(printable(f"{recipe.title}, in {directory.path}"), file=screen)
            for note in (*loaded.notes, *_notes(recipe, checkpoint)):
                print(f"note: {note}", file=screen)
        fit(recipe, directory, loaded, network, screen=screen, profile=profile)


def _notes(recipe: Recipe, checkpoint: checkpoints.WholeCheckpoint | None) -> Iterator[str]:
    """What is told before the first epoch, besides notes on the data."""
    if checkpoint is not None and checkpoint.damage is not None:
        yield f"{checkpoint.damage}, going on from {checkpoint.path}"
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
    means = 0 if recipe.average is None else 2  # in float64, in each checkpoint
    return weights + files * ((1 + means) * weights + momenta * parameters) + small


def _on(data: DataSet, run: PlannedRun) -> PlannedRun:
    """A run on other data than its recipe names: what it records must not name those."""
    dataset = f"{GIVEN}{data.name}"
    command = run.command if GIVEN in run.command else f"{GIVEN}{data.name}, else {run.command}"
    return replace(run, recipe=run.recipe.model_copy(update={"dataset": dataset}), command=command)


def _load_code(run: PlannedRun) -> None:
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
