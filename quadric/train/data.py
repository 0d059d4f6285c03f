"""The data of a recipe: loaded, limited and split, as batches that know their epoch and process.

Batches come from tensors in memory wherever the data fits (everything but picture folders), so
that no loader process is needed and no samples are collated.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from quadric import data as datasets
from quadric import models
from quadric.data import DataSet as DataSet
from quadric.data.batches import Batches
from quadric.data.files import read_bytes
from quadric.data.folders import FolderData
from quadric.data.images import ImageData
from quadric.data.tables import TableData
from quadric.data.text import TextData, Tokenizer
from quadric.data.user_dataset import UserDataset, make_data
from quadric.errors import InputError
from quadric.train.recipe import Recipe
from quadric.train.run_code import function_of
from quadric.train.run_data import RunData as RunData
from quadric.train.tasks import Classification, Loss, Regression
from quadric.train.text_run_data import TextRunData
from quadric.train.translation import TOKENIZER

# Rows per batch when a table is tested: nothing is learned, so larger batches change nothing.
TABLE_BATCH = 4096

# What the data set of a run is called that was given its data, before their name.
GIVEN = "given:"


class SampleRunData(RunData):
    """Samples as they are, with classes or numbers: pictures, or a data set of a user's own."""

    def __init__(self, recipe: Recipe, data: ImageData | FolderData | UserDataset) -> None:
        super().__init__(recipe, data, recipe.data_seed if isinstance(data, UserDataset) else 0)
        shape = data.input_shape
        if len(shape) == 1 and not takes_rows(recipe):
            raise _not_for_tables(recipe)
        if data.num_classes is None:
            self.task = Regression(1.0, own_loss(recipe))
        else:
            self.task = Classification(data.num_classes, recipe.label_smoothing, own_loss(recipe))
        # A perceptron takes what is not a row as one, a picture as its pixels.
        self.flat = "model" not in recipe.functions() and takes_rows(recipe)
        self.input_shape = (math.prod(shape),) if self.flat else shape

    def model_options(self) -> dict[str, Any]:
        """Columns or channels, and outputs."""
        outputs = self.data.num_classes or self.data.num_targets
        if len(self.input_shape) == 1:
            return {"in_features": self.input_shape[0], "out_features": outputs}
        return {"in_channels": self.input_shape[0], "num_classes": outputs}

    def _shaped(self, batches: Batches) -> Batches:
        return FlatBatches(batches) if self.flat else batches


class FlatBatches:
    """Batches of samples as rows of numbers."""

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


class TableRunData(RunData):
    """Rows of numbers with a number to predict, standardized by the training rows."""

    def __init__(self, recipe: Recipe, data: TableData) -> None:
        super().__init__(recipe, data, recipe.data_seed)
        if not takes_rows(recipe):
            raise _not_for_tables(recipe)
        self.scale = self.data.standardization()
        self.source = self.data.standardized()
        self.task = Regression(float(self.scale.target_std), own_loss(recipe))
        self.input_shape = (data.num_inputs,)
        self.test_batch_size = max(recipe.batch_size, TABLE_BATCH)

    def model_options(self) -> dict[str, Any]:
        """Columns of the inputs, and one output."""
        return {"in_features": self.data.num_inputs, "out_features": 1}


def kept_data(recipe: Recipe, folder: Path) -> RunData | None:
    """The data of a trained run as far as the run directory has it; None if it has none."""
    if recipe.dataset not in datasets.TEXTS:
        return None
    remedy = "a translation run needs it: copy the whole run directory, or train again"
    file = folder / TOKENIZER
    return TextRunData(recipe, None, Tokenizer(read_bytes(file, remedy), str(file)))


def takes_rows(recipe: Recipe) -> bool:
    """Whether the recipe's network takes rows of numbers; a user's own may take anything."""
    return "model" in recipe.functions() or len(models.input_shape(recipe.model)) == 1


def _not_for_tables(recipe: Recipe) -> InputError:
    return InputError(
        f"the table {recipe.dataset!r} needs a network for tables, got model {recipe.model!r}: "
        "choose mlp"
    )


def own_loss(recipe: Recipe) -> Loss | None:
    """The user's own loss, if the recipe names one."""
    if recipe.loss is None:
        return None
    if "loss" not in recipe.functions():
        raise InputError(
            f"loss must be named as package.module:function, got {recipe.loss!r}: leave it out "
            "for cross-entropy or the squared error"
        )
    loss: Loss = function_of(recipe, "loss")
    return loss


# What is trained on each kind of data.
_KINDS: dict[type, Callable[[Recipe, Any], RunData]] = {
    ImageData: SampleRunData,
    FolderData: SampleRunData,
    UserDataset: SampleRunData,
    TableData: TableRunData,
    TextData: TextRunData,
}


def load_data(recipe: Recipe, data: DataSet | None = None) -> RunData:
    """Loads the data of a recipe."""
    if data is None and recipe.dataset.startswith(GIVEN):
        raise InputError(
            f"the run was trained on data that Python code gave it, {recipe.dataset!r}: give them "
            "again with train(run, data=...)"
        )
    if data is None and "dataset" in recipe.functions():
        data = _call(recipe)
    elif data is None:
        options = _options(recipe) | recipe.dataset_options
        data = datasets.load(recipe.dataset, recipe.data_dir, **options)
    return _KINDS[type(data)](recipe, data)


def _call(recipe: Recipe) -> DataSet:
    """The data that a user's own function gives."""
    function, name = function_of(recipe, "dataset"), recipe.dataset
    options = dict(recipe.dataset_options)
    if recipe.data_dir is not None:
        options["data_dir"] = recipe.data_dir
    check_call(function, options, f"data set {name!r}", "dataset_options")
    return make_data(function(**options), name, recipe.workers)


def check_call(
    function: Callable[..., Any], options: Mapping[str, Any], what: str, field: str
) -> None:
    """Refuses options that a user's function does not take, or one that it misses."""
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise InputError(
            f"{what} cannot be called with {', '.join(options) or 'no options'} ({error}): change "
            f"{field}, or the function"
        ) from None
    except ValueError:
        pass  # it has no signature to read: calling it will tell


# The options of each loader, and the fields of a recipe that they are taken from.
_OPTIONS = {
    "digits": {"augment": "augment"},
    "mnist": {"augment": "augment"},
    "cifar10": {"augment": "augment", "resize": "resize"},
    "cifar100": {"augment": "augment", "resize": "resize"},
    "folders": {name: name for name in ("augment", "workers", "on_broken")} | {"size": "resize"},
    "law": {"train_size": "samples", "test_size": "samples", "seed": "data_seed"},
    "uci": {"split": "split"},
    "csv": {"seed": "data_seed"},
    **{name: {"source": "source", "target": "target"} for name in datasets.TEXTS},
}
# What a data set without an own source needs.
_DIRECTORIES = {
    "folders": "a data directory with train and val folders",
    "uci": "the directory of the UCI tables",
    "mnist": "the directory of MNIST's four files",
    "text": "a data directory with train files of both languages",
    "multi30k": "the directory of Multi30k, with train.en and train.de",
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
