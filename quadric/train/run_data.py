"""What all kinds of training data have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric.data.batches import Batches, make_generator
from quadric.errors import InputError
from quadric.train.recipe import Recipe
from quadric.train.tasks import Task

# Chooses the samples that `limit` keeps: the same for every seed of a run.
LIMIT_SEED = 0
FEWEST = 8
"""Samples that set the scale of the eigenvalues, where a batch has fewer."""


class RunData:
    """The data of a run: what all kinds of data have in common.

    A subclass makes the task, says what the network must be told, and has a place in `_KINDS` of
    `data.py`.

    Attributes:
        data: limited and split.
        source: what batches are made of.
        task: what is learned.
        input_shape: of one input.
        test_batch_size: samples per batch when the network is tested.
    """

    task: Task
    input_shape: tuple[int, ...]

    def __init__(self, recipe: Recipe, data: Any, seed: int) -> None:
        for part in ("train", "test"):
            count = len(data.part(part)[0])
            if recipe.limit is not None and recipe.limit < count:
                order = torch.randperm(count, generator=make_generator(LIMIT_SEED, count))
                data = data.take(part, order[: recipe.limit].sort().values)
        if recipe.validation:
            data = data.hold_out(recipe.validation, seed)
        self.recipe = recipe
        self.data = self.source = data
        self.test_batch_size = recipe.batch_size

    def model_options(self) -> dict[str, Any]:
        """What the network must be told about its inputs and outputs."""
        raise NotImplementedError

    @property
    def evaluated_part(self) -> str:
        """The part that is evaluated after each epoch: "val" or "test"."""
        return "val" if self.recipe.validation else "test"

    @property
    def accumulate(self) -> int:
        """Batches of a process whose gradients are added up to one step."""
        return 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the data, one line each."""
        return ()

    def keep(self, folder: Path) -> None:
        """Writes into a run directory what the trained network is of no use without."""

    def more_counts(self, network: nn.Module, macs: int) -> dict[str, int]:
        """What a network costs besides parameters and MACs, by name."""
        return {}

    def set_test_files(self, source: Path, target: Path) -> None:
        """Tests on other files."""
        raise InputError(
            f"test files are for translation, got {source} for the data set "
            f"{self.recipe.dataset!r}: leave --test out"
        )

    def example_inputs(self) -> tuple[Any, ...]:
        """Arguments of the network for one sample, of zeros."""
        return (torch.zeros(1, *self.input_shape),)

    def first_inputs(self) -> Any:
        """The inputs of the first step of all processes; of one sample alone nothing varies."""
        recipe = self.recipe
        batches = self.source.train_batches(
            max(recipe.batch_size * recipe.devices * recipe.nodes, FEWEST),
            seed=recipe.seed,
            shuffle=recipe.shuffle,
            augment=recipe.augment,
        )
        return next(iter(self._shaped(batches)))[0]

    def train(self, rank: int, world_size: int) -> Batches:
        """The batches that one of several processes learns from."""
        recipe = self.recipe
        batches = self.source.train_batches(
            recipe.batch_size,
            seed=recipe.seed,
            shuffle=recipe.shuffle,
            augment=recipe.augment,
            drop_last=recipe.drop_last,
            rank=rank,
            world_size=world_size,
        )
        return self._shaped(batches)

    def weight(self, batches: Any, number: int) -> float:
        """What the loss of a batch of `train` is multiplied with before a step takes the mean."""
        return 1.0

    def validation(self, rank: int, world_size: int) -> Batches | None:
        """The batches of the validation part; None if there is none."""
        if not self.recipe.validation:
            return None
        size = self.test_batch_size
        return self._shaped(self.source.val_batches(size, rank=rank, world_size=world_size))

    def test(self, rank: int, world_size: int) -> Batches:
        """The batches of the test part."""
        size = self.test_batch_size
        return self._shaped(self.source.test_batches(size, rank=rank, world_size=world_size))

    def _shaped(self, batches: Batches) -> Batches:
        return batches
