"""A run is a directory: recipe, metrics, checkpoints, weights, result.

    recipe.yaml             the resolved recipe; its first line is the command
    metrics.csv             one row per epoch
    tensorboard/            the same for TensorBoard, or what another logger writes
    checkpoints/last.ckpt   after every epoch; previous.ckpt is that of the epoch before, best.ckpt
                            that of the best one where a validation part is held out;
                            epoch-NNNN.ckpt of every n-th one with `keep_every`
    weights.safetensors     of the last, or of the best, epoch
    profile.txt             with --profile, and trace.json: what the operators of a step cost
    result.json             written at the end: a run that has one is finished

A directory belongs to one resolved recipe for ever; only the place of the data and the machine may
change when it is continued. A process that trains in it holds a lock, which ends with the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quadric.errors import FileError, InputError
from quadric.runs.groups import ENVIRONMENT_FIELDS
from quadric.runs.reading import wrong_field
from quadric.support.locks import locked
from quadric.support.writing import clear_partial, is_partial, write_text
from quadric.train import catalog
from quadric.train.recipe import Recipe, make_recipe

RUNS = Path("runs")
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.yaml"
        self.metrics_file = path / "metrics.csv"
        self.result_file = path / "result.json"
        self.weights_file = path / "weights.safetensors"
        self.checkpoints = path / "checkpoints"
        self.last_checkpoint = self.checkpoints / LAST
        self.previous_checkpoint = self.checkpoints / PREVIOUS
        self.best_checkpoint = self.checkpoints / BEST

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result."""
        return self.result_file.is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether an epoch of the run is done."""
        return self.last_checkpoint.is_file() or self.previous_checkpoint.is_file()

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return shlex.join(["quadric", "train", str(self.path), "--resume"])

    def recipe(self) -> Recipe:
        """The recipe that the directory belongs to."""
        if not self.recipe_file.is_file():
            raise InputError(
                f"{self.path} is not a run directory, it has no recipe.yaml: name a directory "
                "that quadric train made"
            )
        where = str(self.recipe_file)
        values = catalog.parse(catalog.read(self.recipe_file), where)
        if not isinstance(values, dict):
            raise InputError(f"{where} must hold a mapping of fields: restore it, or train again")
        return make_recipe(values, where)

    def command(self) -> str:
        """The command that made the run."""
        line = catalog.read(self.recipe_file).partition("\n")[0]
        return line.removeprefix("#").strip()

    def result(self) -> dict[str, Any]:
        """The result of a finished run."""
        try:
            values = json.loads(self.result_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is not finished, it has no result.json: continue it with "
                f"`{self.resume_command}`"
            ) from None
        except (ValueError, RecursionError):
            raise InputError(f"{self.result_file} is not JSON: remove it and train again") from None
        if not isinstance(values, dict):
            raise InputError(f"{self.result_file} must hold an object: remove it and train again")
        wrong = wrong_field(values)
        if wrong is not None:
            raise InputError(f"{self.result_file}: {wrong}: remove it and train again")
        return values

    def check_owner(self, recipe: Recipe, *, named: bool = True) -> None:
        """Refuses a directory that belongs to another recipe, or holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"run directory {self.path} is a file: choose another --run-dir")
        if not self.recipe_file.is_file():
            if self.path.is_dir() and not all(map(_is_leftover, self.path.iterdir())):
                raise InputError(
                    f"run directory {self.path} holds files but no recipe.yaml: choose an empty "
                    "--run-dir"
                )
            return
        theirs = self.recipe()
        field = recipe.first_difference(theirs, environment=not named)
        if field is None:
            return
        remedy = "choose another --run-dir"
        if field in ENVIRONMENT_FIELDS:
            remedy += f", or go on with that run by `{self.resume_command}`"
        raise InputError(
            f"run directory {self.path} holds another recipe ({field} is "
            f"{getattr(theirs, field)!r}, not {getattr(recipe, field)!r}): {remedy}"
        )

    def create(self, recipe: Recipe, command: str, need: int = 0) -> None:
        """Makes the directory and writes the recipe: what can fail fails now."""
        self._check_space(need)
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.recipe_file, recipe.to_yaml(command))
            self.checkpoints.mkdir(exist_ok=True)

    def _check_space(self, need: int) -> None:
        files = (file for file in self.path.rglob("*") if file.is_file())
        need -= sum(file.stat().st_size for file in files)
        # The disk of a folder that is not made yet is that of the first one above it.
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(there).free
        if free < need:
            raise InputError(
                f"run directory {self.path} has {free / 1e6:,.1f} MB of free space, this run "
                f"writes about {need / 1e6:,.1f} MB more: make room or choose another --run-dir"
            )

    def clear(self) -> None:
        """Removes what an earlier training of the same recipe left."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in ("tensorboard", "mlflow", "wandb"):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        others = [self.path / name for name in ("mlflow.db", "profile.txt", "trace.json")]
        for file in (self.metrics_file, self.weights_file, self.result_file, *others):
            file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[int | None]:
        """Holds the directory for this process; yields the lock's file descriptor."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        busy = f"another process trains in {self.path}: wait for it, or choose another --run-dir"
        with locked(self.path, busy) as handle:
            for folder in (self.path, self.checkpoints):
                clear_partial(folder)
            yield handle

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileError:  # which names the file, and the remedy
            raise
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"cannot write to run directory {self.path} ({reason}): choose another --run-dir"
            ) from None


def _is_leftover(entry: Path) -> bool:
    """Whether a run that could not write its recipe may have left this."""
    if entry.name == "checkpoints" and entry.is_dir():
        return not any(entry.iterdir())
    return entry.name == ".lock" or is_partial(entry)


def is_run_directory(text: str) -> bool:
    """Whether what the user named is a run directory rather than a recipe."""
    path = Path(text)
    return os.path.isdir(text) and ((path / "recipe.yaml").is_file() or os.sep in text)


def continued(recipe: Recipe, overrides: dict[str, Any]) -> Recipe:
    """The recipe of a run that is continued, perhaps at another place."""
    values = recipe.model_dump()
    changed = [
        k for k, v in overrides.items() if k not in ENVIRONMENT_FIELDS and values.get(k, v) != v
    ]
    if changed:
        raise InputError(
            f"a run keeps its recipe when it is continued, got {changed[0]}="
            f"{overrides[changed[0]]!r} instead of {values[changed[0]]!r}: leave it out, or start "
            "another run"
        )
    return make_recipe(values | overrides, f"recipe {recipe.name}")
