"""Batches that know their epoch and process, and the parts of a data set that they are made of.

Everything random comes from (seed, epoch, rank), so that a run can be repeated and continued, and
no other random number is disturbed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from quadric.errors import InputError
from quadric.support.checks import check_size

if TYPE_CHECKING:
    from typing_extensions import Self


class Batches(Protocol):
    """What trains a network: an iterable of (inputs, targets) that knows its epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration gives."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Any, Tensor]]: ...


def make_generator(*parts: int) -> torch.Generator:
    """Makes a generator whose state depends on the given integers and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@dataclass(frozen=True)
class Batching:
    """How samples become batches, in one process of several.

    The processes take turns, so that their i-th batches together are the i-th batch of one process
    with a batch `world_size` times as large.
    """

    batch_size: int  # samples per batch and process
    shuffle: bool = False  # whether each epoch has a new order
    seed: int = 0  # the seed of the order
    drop_last: bool = False  # whether a smaller last batch is left out
    rank: int = 0  # the number of this process
    world_size: int = 1  # number of processes
    # Whether the first samples are repeated until all processes have equally many. Without it the
    # last processes may have one sample fewer.
    pad: bool = False

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank must be in 0 ... {self.world_size - 1}, got {self.rank}")

    def order(self, count: int, epoch: int) -> Tensor:
        """Indices of the samples that this process sees in one epoch."""
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=make_generator(self.seed, epoch))
        if self.pad and count % self.world_size:
            missing = self.world_size - count % self.world_size
            order = torch.cat([order, order.repeat(math.ceil(missing / count))[:missing]])
        return order[self.rank :: self.world_size]

    def length(self, count: int) -> int:
        """Number of batches of this process."""
        own = len(range(self.rank, count, self.world_size))
        if self.pad:
            own = math.ceil(count / self.world_size)
        return own // self.batch_size if self.drop_last else math.ceil(own / self.batch_size)

    def indices(self, count: int, epoch: int) -> Sequence[Tensor]:
        """Indices of the samples of each batch of this process."""
        return self.order(count, epoch).split(self.batch_size)[: self.length(count)]


class EpochBatches:
    """Batches of samples; iterating again repeats the epoch until `set_epoch`."""

    def __init__(self, count: int, batching: Batching) -> None:
        self.count, self.batching = count, batching
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batching.length(self.count)

    def indices(self) -> Sequence[Tensor]:
        """Indices of the samples of each batch."""
        return self.batching.indices(self.count, self.epoch)

    def generator(self) -> torch.Generator:
        """What this epoch draws from in this process."""
        return make_generator(self.batching.seed, self.epoch, self.batching.rank)


class TensorBatches(EpochBatches):
    """Batches from memory; iterating again repeats the epoch until `set_epoch`.

    Args:
        inputs: one sample per row.
        targets: one per sample.
        batching: the size and order of the batches.
        transform: a function of a batch's inputs and the generator of this epoch and process.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batching: Batching,
        transform: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        super().__init__(len(targets), batching)
        self.inputs, self.targets, self.transform = inputs, targets, transform

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = self.generator()
        for index in self.indices():
            index = index.to(self.inputs.device)
            # On a CPU ten times as fast as self.inputs[index].
            inputs = self.inputs.index_select(0, index)
            if self.transform is not None:
                inputs = self.transform(inputs, generator)
            yield inputs, self.targets[index]


class DatasetBatches(EpochBatches):
    """Batches of a torch Dataset, read by a number of processes.

    What it draws with torch's generator, it draws again when a run is repeated or continued: in
    worker processes the seed is that of the epoch, and so it is in the main process while a network
    is trained.
    """

    def __init__(
        self,
        dataset: Any,
        batching: Batching,
        workers: int,
        collate: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(len(dataset), batching)
        self.dataset, self.workers, self.collate = dataset, workers, collate

    def __iter__(self) -> Iterator[Any]:
        yield from DataLoader(
            self.dataset,
            batch_sampler=[index.tolist() for index in self.indices()],
            num_workers=self.workers,
            collate_fn=self.collate,
            generator=self.generator(),
        )


class SplitDataset:
    """A data set with a training part, a test part and perhaps a validation part.

    A subclass is a frozen dataclass with the fields `train_<column>`, `test_<column>` and
    `val_<column>` for each of its columns.
    """

    columns: ClassVar[tuple[str, ...]]
    name: str

    def part(self, part: str) -> list[Any]:
        """The columns of a part: "train", "test" or "val"."""
        return [getattr(self, f"{part}_{column}") for column in self.columns]

    @property
    def train_size(self) -> int:
        """Number of training samples."""
        return len(self.part("train")[0])

    def take(self, part: str, index: Tensor) -> Self:
        """The same data set with these samples of a part only."""
        return self.with_part(part, [values[index] for values in self.part(part)])

    def with_part(self, part: str, values: list[Any]) -> Self:
        """The same data set with other columns of a part."""
        fields = [f"{part}_{column}" for column in self.columns]
        other: Self = replace(self, **dict(zip(fields, values, strict=True)))  # type: ignore[type-var]
        return other

    def classes(self) -> Tensor | Sequence[int]:
        """The class of each training sample, by which `hold_out` chooses."""
        raise NotImplementedError

    def batches(self, part: str, batching: Batching, augment: bool) -> Batches:
        """Batches of a part, as the subclass makes them."""
        raise NotImplementedError

    def hold_out(self, fraction: float, seed: int = 0) -> Self:
        """Takes a validation part from the training part, the same share of every class.

        Args:
            fraction: the share of the training samples to hold out.
            seed: the seed that chooses them.

        Returns:
            The data set with a validation part.

        Raises:
            InputError: if the fraction is not between 0 and 1, or leaves a part empty.
        """
        held, kept = stratified_split(self.classes(), fraction, seed)
        values = [column[held] for column in self.part("train")]
        return self.take("train", kept).with_part("val", values)

    def train_batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        augment: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> Any:
        """Batches for training: shuffled, augmented, equally many in every process.

        Args:
            batch_size: samples per batch and process.
            seed: the seed of order and augmentation.
            shuffle: whether each epoch has a new order.
            augment: apply the data set's augmentation, if it has one.
            drop_last: leave out the last batch if it is smaller.
            rank: the number of this process.
            world_size: number of processes.
        """
        batching = Batching(batch_size, shuffle, seed, drop_last, rank, world_size, pad=True)
        return self.batches("train", batching, augment)

    def test_batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Any:
        """Every test sample once, in order, over all processes together."""
        batching = Batching(batch_size, rank=rank, world_size=world_size)
        return self.batches("test", batching, augment=False)

    def val_batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Any:
        """Every validation sample once, in order, over all processes together."""
        if self.part("val")[0] is None:
            raise InputError(f"{self.name} has no validation part: make one with hold_out()")
        batching = Batching(batch_size, rank=rank, world_size=world_size)
        return self.batches("val", batching, augment=False)


def stratified_split(
    labels: Tensor | Sequence[int], fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Splits indices in two, with the same share of every class."""
    if not 0 < fraction < 1:
        raise InputError(f"fraction must be between 0 and 1, got {fraction}")
    labels = torch.as_tensor(labels)
    generator = make_generator(seed)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        take = round(fraction * len(members))
        chosen[members[torch.randperm(len(members), generator=generator)[:take]]] = True
    if not chosen.any() or chosen.all():
        raise InputError(
            f"fraction {fraction} of {len(labels)} samples leaves one part empty: "
            "choose another fraction"
        )
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()
