"""The data of a recipe: loaded, limited and split, as batches that know their epoch and process.

Batches come from tensors in memory wherever the data fits (everything but picture folders), so
that no loader process is needed and no samples are collated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from quadric import data as datasets
from quadric import models
from quadric.data.batches import Batches, make_generator
from quadric.data.folders import FolderData
from quadric.data.images import ImageData
from quadric.data.tables import TableData
from quadric.data.text import TextData
from quadric.errors import InputError
from quadric.train.recipe import Recipe
from quadric.train.tasks import Classification, Regression, Task

# Chooses the samples that `limit` keeps: the same for every seed of a run.
LIMIT_SEED = 0
# Rows per batch when a table is tested: nothing is learned, so larger batches change nothing.
TABLE_BATCH = 4096

DataSet = ImageData | FolderData | TableData | TextData


class TrainingData:
    """The data of a run: what pictures and tables have in common.

    Args:
        recipe: its limit, validation part and batches apply.
        data: as loaded.
        seed: of the choice of the validation part.

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


class PicturePart(TrainingData):
    """Pictures with labels, from memory or from folders."""

    def __init__(self, recipe: Recipe, data: ImageData | FolderData) -> None:
        super().__init__(recipe, data, seed=0)
        self.task = Classification(data.num_classes, recipe.label_smoothing)
        # A perceptron takes a picture as a row of pixels.
        self.flat = len(models.input_shape(recipe.model)) == 1
        shape = data.input_shape
        self.input_shape = (math.prod(shape),) if self.flat else shape

    def model_options(self) -> dict[str, Any]:
        """Pixels or channels, and classes."""
        if self.flat:
            return {"in_features": self.input_shape[0], "out_features": self.data.num_classes}
        return {"in_channels": self.input_shape[0], "num_classes": self.data.num_classes}

    def _shaped(self, batches: Batches) -> Batches:
        return FlatBatches(batches) if self.flat else batches


class FlatBatches:
    """Batches of pictures as rows of pixels."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration gives."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for pictures, labels in self.batches:
            yield pictures.flatten(1), labels


class TablePart(TrainingData):
    """Rows of numbers with a number to predict, standardized by the training rows."""

    def __init__(self, recipe: Recipe, data: TableData) -> None:
        super().__init__(recipe, data, recipe.data_seed)
        if len(models.input_shape(recipe.model)) != 1:
            raise InputError(
                f"the table {recipe.dataset!r} needs a network for tables, got model "
                f"{recipe.model!r}: choose mlp"
            )
        self.scale = self.data.standardization()
        self.source = self.data.standardized()
        self.task = Regression(float(self.scale.target_std))
        self.input_shape = (data.num_inputs,)
        self.test_batch_size = max(recipe.batch_size, TABLE_BATCH)

    def model_options(self) -> dict[str, Any]:
        """Columns of the inputs, and one output."""
        return {"in_features": self.data.num_inputs, "out_features": 1}


def load_data(recipe: Recipe, data: DataSet | None = None) -> TrainingData:
    """Loads the data of a recipe.

    Args:
        recipe: what to load.
        data: use this instead of loading; the recipe's limit and validation part still apply.

    Returns:
        The data, limited and split.
    """
    if data is None:
        data = datasets.load(recipe.dataset, recipe.data_dir, **_options(recipe))
    if isinstance(data, TextData):
        raise InputError(f"the data set {recipe.dataset!r} cannot be trained on yet")
    return TablePart(recipe, data) if isinstance(data, TableData) else PicturePart(recipe, data)


# The options of each loader, and the fields of a recipe that they are taken from.
_OPTIONS = {
    "digits": {"augment": "augment"},
    "cifar10": {"augment": "augment", "resize": "resize"},
    "cifar100": {"augment": "augment", "resize": "resize"},
    "folders": {name: name for name in ("augment", "workers", "on_broken")} | {"size": "resize"},
    "law": {"train_size": "samples", "test_size": "samples", "seed": "data_seed"},
    "uci": {"split": "split"},
}
# What a data set without an own source needs.
_DIRECTORIES = {
    "folders": "a data directory with train and val folders",
    "uci": "the directory of the UCI tables",
}


def _options(recipe: Recipe) -> dict[str, Any]:
    """What the data set's own loader takes of a recipe."""
    kind = recipe.dataset.partition(":")[0]
    fields = _OPTIONS.get(kind, {})
    if recipe.resize is not None and "resize" not in fields.values():
        raise InputError(
            f"resize has no meaning for the data set {recipe.dataset!r}, got {recipe.resize}: "
            "leave it out"
        )
    if kind in _DIRECTORIES and recipe.data_dir is None:
        raise InputError(
            f"recipe {recipe.name} needs {_DIRECTORIES[kind]}: name it with --data-dir"
        )
    values = {option: getattr(recipe, field) for option, field in fields.items()}
    return {option: value for option, value in values.items() if value is not None}
