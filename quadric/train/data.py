"""The data of a recipe: loaded, limited and split, as batches that know their epoch and process.

Batches come from tensors in memory wherever the data fits (everything but picture folders): no
loader process, no collation of samples, nothing to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from quadric import data as datasets
from quadric import models
from quadric.data.folders import FolderData
from quadric.data.images import Batches, ImageData, epoch_order, make_generator, stratified_split
from quadric.data.tables import TableData
from quadric.errors import InputError
from quadric.train.recipe import Recipe
from quadric.train.tasks import Classification, Regression, Task

# Chooses the samples that `limit` keeps: the same for every seed of a run.
LIMIT_SEED = 0

DataSet = ImageData | FolderData | TableData


class TrainingData(Protocol):
    """The data of a run, whatever it is made of."""

    task: Task

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    def model_options(self) -> dict[str, Any]: ...
    def train(self, rank: int, world_size: int) -> Batches: ...
    def validation(self, rank: int, world_size: int) -> Batches | None: ...
    def test(self, rank: int, world_size: int) -> Batches: ...


def load_data(recipe: Recipe, data: DataSet | None = None) -> TrainingData:
    """Loads the data of a recipe.

    Args:
        recipe: what to load.
        data: use this instead of loading; the recipe's limit and validation part still apply.
    """
    if data is None:
        data = datasets.load(recipe.dataset, recipe.data_dir, **_options(recipe))
    if isinstance(data, TableData):
        return TablePart(recipe, data)
    return PicturePart(recipe, data)


def _options(recipe: Recipe) -> dict[str, Any]:
    """What the data set's own loader takes of a recipe."""
    kind = recipe.dataset.partition(":")[0]
    if recipe.resize is not None and kind not in ("cifar10", "cifar100", "folders"):
        raise InputError(
            f"resize has no meaning for the data set {recipe.dataset!r}, got {recipe.resize}: "
            "leave it out"
        )
    if kind == "digits":
        return {"augment": recipe.augment}
    if kind in ("cifar10", "cifar100"):
        return {"augment": recipe.augment, "resize": recipe.resize}
    if kind == "folders":
        if recipe.data_dir is None:
            raise InputError(
                f"recipe {recipe.name} needs a data directory with train and val folders: name "
                "it with --data-dir"
            )
        options: dict[str, Any] = {"augment": recipe.augment, "workers": recipe.workers}
        options["on_broken"] = recipe.on_broken
        return options | ({} if recipe.resize is None else {"size": recipe.resize})
    if kind == "law":
        size = recipe.samples
        return {"train_size": size, "test_size": size, "seed": recipe.data_seed}
    if kind == "uci":
        if recipe.data_dir is None:
            raise InputError(
                f"recipe {recipe.name} needs the directory of the UCI tables: name it with "
                "--data-dir"
            )
        return {"split": recipe.split}
    return {}


def _chosen(count: int, limit: int | None) -> Tensor | None:
    """The samples that a limit keeps, in their order; None for all."""
    if limit is None or limit >= count:
        return None
    order = torch.randperm(count, generator=make_generator(LIMIT_SEED, count))
    return order[:limit].sort().values


def _limited(data: ImageData | FolderData, limit: int | None) -> ImageData | FolderData:
    changes: dict[str, Any] = {}
    for part in ("train", "test"):
        fields = [f"{part}_files"]
        if isinstance(data, ImageData):
            fields = [f"{part}_images", f"{part}_labels"]
        index = _chosen(len(getattr(data, fields[0])), limit)
        if index is not None:
            for field in fields:
                value = getattr(data, field)
                changes[field] = value[index] if isinstance(value, Tensor) else value.take(index)
    return replace(data, **changes)


class PicturePart:
    """Pictures with labels, from memory or from folders."""

    def __init__(self, recipe: Recipe, data: ImageData | FolderData) -> None:
        self.recipe = recipe
        self.data = _limited(data, recipe.limit)
        if recipe.validation:
            self.data = self.data.hold_out(recipe.validation)
        self.task: Task = Classification(data.num_classes, recipe.label_smoothing)
        # A perceptron takes a picture as a row of pixels.
        self.flat = len(models.input_shape(recipe.model)) == 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        shape = self.data.input_shape
        return (math.prod(shape),) if self.flat else shape

    def model_options(self) -> dict[str, Any]:
        if self.flat:
            return {"in_features": self.input_shape[0], "out_features": self.data.num_classes}
        return {"in_channels": self.input_shape[0], "num_classes": self.data.num_classes}

    def train(self, rank: int, world_size: int) -> Batches:
        recipe = self.recipe
        return self._shaped(
            self.data.train_batches(
                recipe.batch_size,
                seed=recipe.seed,
                shuffle=recipe.shuffle,
                augment=recipe.augment,
                drop_last=recipe.drop_last,
                rank=rank,
                world_size=world_size,
            )
        )

    def validation(self, rank: int, world_size: int) -> Batches | None:
        if not self.recipe.validation:
            return None
        batches = self.data.val_batches(self.recipe.batch_size, rank=rank, world_size=world_size)
        return self._shaped(batches)

    def test(self, rank: int, world_size: int) -> Batches:
        batches = self.data.test_batches(self.recipe.batch_size, rank=rank, world_size=world_size)
        return self._shaped(batches)

    def _shaped(self, batches: Batches) -> Batches:
        return FlatBatches(batches) if self.flat else batches


class FlatBatches:
    """Batches of pictures as rows of pixels."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for pictures, labels in self.batches:
            yield pictures.flatten(1), labels


class TablePart:
    """Rows of numbers with a number to predict, standardized by the training rows."""

    def __init__(self, recipe: Recipe, data: TableData) -> None:
        self.recipe = recipe
        index = _chosen(data.train_size, recipe.limit)
        if index is not None:
            data = replace(
                data,
                train_inputs=data.train_inputs[index],
                train_targets=data.train_targets[index],
            )
        index = _chosen(len(data.test_inputs), recipe.limit)
        if index is not None:
            data = replace(
                data, test_inputs=data.test_inputs[index], test_targets=data.test_targets[index]
            )
        self.held: tuple[Tensor, Tensor] | None = None
        if recipe.validation:
            # One class of all rows: a plain random split.
            one = torch.zeros(data.train_size, dtype=torch.int64)
            held, kept = stratified_split(one, recipe.validation, recipe.data_seed)
            self.held = data.train_inputs[held], data.train_targets[held]
            data = replace(
                data, train_inputs=data.train_inputs[kept], train_targets=data.train_targets[kept]
            )
        self.data = data
        self.scale = data.standardization()
        self.task: Task = Regression(float(self.scale.target_std))
        if len(models.input_shape(recipe.model)) != 1:
            raise InputError(
                f"the table {recipe.dataset!r} needs a network for tables, got model "
                f"{recipe.model!r}: choose mlp"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.data.num_inputs,)

    def model_options(self) -> dict[str, Any]:
        return {"in_features": self.data.num_inputs, "out_features": 1}

    def _batches(
        self, inputs: Tensor, targets: Tensor, rank: int, world_size: int, train: bool = False
    ) -> RowBatches:
        recipe = self.recipe
        return RowBatches(
            self.scale.inputs(inputs),
            self.scale.targets(targets),
            recipe.batch_size if train else max(recipe.batch_size, 4096),
            shuffle=train and recipe.shuffle,
            seed=recipe.seed,
            drop_last=train and recipe.drop_last,
            rank=rank,
            world_size=world_size,
            pad=train,
        )

    def train(self, rank: int, world_size: int) -> Batches:
        rows = self.data.train_inputs, self.data.train_targets
        return self._batches(*rows, rank, world_size, train=True)

    def validation(self, rank: int, world_size: int) -> Batches | None:
        return None if self.held is None else self._batches(*self.held, rank, world_size)

    def test(self, rank: int, world_size: int) -> Batches:
        return self._batches(self.data.test_inputs, self.data.test_targets, rank, world_size)


@dataclass
class RowBatches:
    """Batches of rows of two tensors.

    Attributes:
        inputs: (N, columns).
        targets: (N, columns).
        batch_size: rows a batch and process.
        shuffle: new order each epoch.
        seed: of the order.
        drop_last: leave out the last batch if it is smaller.
        rank: of this process.
        world_size: number of processes.
        pad: see `quadric.data.images.epoch_order`.
    """

    inputs: Tensor
    targets: Tensor
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    pad: bool = False
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _count(self) -> int:
        count = len(self.inputs)
        if self.pad:
            return math.ceil(count / self.world_size)
        return len(range(self.rank, count, self.world_size))

    def __len__(self) -> int:
        parts = self._count() / self.batch_size
        return math.floor(parts) if self.drop_last else math.ceil(parts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = epoch_order(
            len(self.inputs),
            self.seed,
            self.epoch,
            self.shuffle,
            self.rank,
            self.world_size,
            self.pad,
        )
        # One gather an epoch; batches are then slices of it.
        inputs, targets = self.inputs[order], self.targets[order]
        for i in range(len(self)):
            part = slice(i * self.batch_size, (i + 1) * self.batch_size)
            yield inputs[part], targets[part]
