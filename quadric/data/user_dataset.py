"""Data of a user's own: what a function gave, as a data set with parts and batches.

A function gives one of our data sets, or a pair (train, test). Each of the two is a pair of tensors
(inputs, targets), or a torch `Dataset` of such samples. Whole numbers as targets are classes, all
others are numbers to predict. A matrix with one number to predict per row is a table, and is
standardized as all tables are; everything else reaches the network as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Subset, default_collate

from quadric.data.batches import (
    Batches,
    Batching,
    DatasetBatches,
    SplitDataset,
    TensorBatches,
)
from quadric.data.folders import FolderData
from quadric.data.images import ImageData
from quadric.data.tables import TableData
from quadric.errors import InputError, InputTypeError

FORMS = "return (train, test), each a pair of tensors (inputs, targets) or a torch Dataset"


class UserSamples:
    """The samples of a part: a pair of tensors, or a torch Dataset."""

    def __init__(self, inputs: Any, targets: Tensor | None = None) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Tensor) -> UserSamples:
        if self.targets is None:
            return UserSamples(Subset(self.inputs, index.tolist()))
        return UserSamples(self.inputs[index], self.targets[index])

    def first(self) -> tuple[Tensor, Tensor]:
        """One sample, as a batch of one gives it."""
        if self.targets is None:
            inputs, targets = default_collate([self.inputs[0]])
            return inputs[0], targets[0]
        return self.inputs[0], self.targets[0]


@dataclass(frozen=True)
class UserDataset(SplitDataset):
    """A data set of a user's own.

    Attributes:
        name: the data set's name.
        train_samples: samples to learn from; `test_samples` and `val_samples` to test on.
        num_classes: the number of classes; None if numbers are predicted.
        workers: processes that read a Dataset; 0 reads in the main process.
    """

    columns: ClassVar[tuple[str, ...]] = ("samples",)

    name: str
    train_samples: UserSamples
    test_samples: UserSamples
    num_classes: int | None
    workers: int = 0
    val_samples: UserSamples | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.train_samples.first()[0].shape)

    @property
    def num_targets(self) -> int:
        """Numbers to predict for each sample."""
        return self.train_samples.first()[1].numel()

    def classes(self) -> Tensor:
        """The labels of tensors; one class of everything else: `hold_out` then splits at random."""
        targets = self.train_samples.targets
        if targets is None or self.num_classes is None:
            return torch.zeros(self.train_size, dtype=torch.int64)
        return targets

    def batches(self, part: str, batching: Batching, augment: bool) -> Batches:
        """Batches of a part; what is to be augmented is up to the user's Dataset."""
        (samples,) = self.part(part)
        if samples.targets is not None:
            return TensorBatches(samples.inputs, samples.targets, batching)
        return DatasetBatches(samples.inputs, batching, self.workers)


def make_data(
    given: Any, name: str, workers: int | None = None
) -> ImageData | FolderData | TableData | UserDataset:
    """A data set of what a user's function gave."""
    if isinstance(given, ImageData | FolderData | TableData | UserDataset):
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputTypeError(f"data set {name!r} gave {_kind(given)}: {FORMS}")
    train, test = (_samples(part, name, what) for part, what in zip(given, PARTS, strict=True))
    inputs, target = train.first()
    if not isinstance(inputs, Tensor) or not isinstance(target, Tensor):
        raise InputTypeError(f"data set {name!r} has samples of {_kind(inputs)}: {FORMS}")
    numbers = target.is_floating_point()
    if numbers and train.targets is not None and inputs.dim() == 1 and target.numel() == 1:
        return _table(train, test, name)
    classes = None if numbers else _num_classes(train, test, name)
    return UserDataset(name, train, test, classes, workers or 0)


PARTS = ("train", "test")


def _samples(part: Any, name: str, what: str) -> UserSamples:
    if isinstance(part, tuple | list) and len(part) == 2:
        inputs, targets = (torch.as_tensor(values) for values in part)
        if len(inputs) != len(targets):
            raise InputError(
                f"data set {name!r} has {len(inputs)} inputs and {len(targets)} targets for "
                f"{what}: give as many of both"
            )
        # Numbers in rows, as a network gives them; labels as cross-entropy takes them.
        numbers = targets.is_floating_point()
        targets = targets.reshape(len(targets), -1).float() if numbers else targets.long()
        samples = UserSamples(inputs.float() if inputs.dtype == torch.float64 else inputs, targets)
    elif hasattr(part, "__getitem__") and hasattr(part, "__len__"):
        samples = UserSamples(part)
    else:
        raise InputTypeError(f"data set {name!r} gave {_kind(part)} for {what}: {FORMS}")
    if not len(samples):
        raise InputError(f"data set {name!r} has no samples for {what}: give some")
    return samples


def _table(train: Any, test: Any, name: str) -> TableData:
    return TableData(
        name=name,
        train_inputs=train.inputs.float(),
        train_targets=train.targets,
        test_inputs=test.inputs.float(),
        test_targets=test.targets,
        input_names=tuple(f"column {i}" for i in range(train.inputs.shape[1])),
        target_name="target",
    )


def _num_classes(train: UserSamples, test: UserSamples, name: str) -> int:
    if train.targets is not None and test.targets is not None:
        both = torch.cat([train.targets, test.targets])
        if both.dim() != 1 or int(both.min()) < 0:
            raise InputError(
                f"data set {name!r} must have one label per sample, counted from 0, got "
                f"{tuple(both.shape[1:])} from {int(both.min())}: give such labels"
            )
        return int(both.max()) + 1
    dataset = train.inputs
    known = getattr(dataset, "num_classes", None) or len(getattr(dataset, "classes", ()))
    if not known:
        raise InputError(
            f"data set {name!r} must say how many classes there are: give its Dataset an attribute "
            "num_classes, or classes"
        )
    return int(known)


def _kind(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{size}"
