"""Pictures in memory: one uint8 tensor, cropped, flipped and normalized as whole batches.

A data set of 60,000 pictures of 32x32 pixels is 184 MB of bytes: it needs no loader processes. A
batch is an index into the tensor; random crops and flips are one gather from the padded batch,
and the conversion to normalized floats comes last. Everything random comes from (seed, epoch,
rank), so that a run can be repeated and continued, and no other random number is disturbed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from quadric.errors import InputError


class Batches(Protocol):
    """What trains a network: an iterable of (pictures, labels) that knows its epoch."""

    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class CropFlip:
    """Random shifts and mirror images of a batch, one draw a picture.

    Args:
        padding: black pixels put around each picture before it is cropped to its size again.
        flip: whether half of the pictures are mirrored.
    """

    padding: int = 4
    flip: bool = True

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Returns an augmented copy.

        Args:
            images: (N, C, H, W), any dtype and device.
            generator: a CPU generator, whatever the device, so that devices agree.
        """
        count, channels, height, width = images.shape
        device, padding = images.device, self.padding
        rows = torch.arange(height, device=device)
        columns = torch.arange(width, device=device).expand(count, width)
        if self.flip:
            mirrored = (torch.rand(count, generator=generator) < 0.5).to(device)
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        top = left = torch.zeros(count, dtype=torch.int64, device=device)
        if padding:
            top, left = torch.randint(2 * padding + 1, (2, count), generator=generator).to(device)
            images = F.pad(images, (padding,) * 4)
        # Crop and flip are one gather of the pixels of each picture, the same in every channel.
        rows = (top[:, None] + rows) * (width + 2 * padding)
        pixels = (rows[:, :, None] + (left[:, None] + columns)[:, None, :]).view(count, 1, -1)
        out = images.flatten(2).gather(2, pixels.expand(-1, channels, -1))
        return out.view(count, channels, height, width)


@dataclass(frozen=True)
class Normalization:
    """From bytes to floats: `(x / scale - mean) / std`, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    def __call__(self, images: Tensor) -> Tensor:
        """Returns float32 (N, C, H, W)."""
        shape = (1, -1, 1, 1)
        factor = [1 / (self.scale * s) for s in self.std]
        shift = [-m / s for m, s in zip(self.mean, self.std, strict=True)]
        out = images.to(torch.float32, copy=True)
        out.mul_(torch.tensor(factor, device=out.device).view(shape))
        return out.add_(torch.tensor(shift, device=out.device).view(shape))


def make_generator(*parts: int) -> torch.Generator:
    """A generator whose state depends on all the given integers and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def epoch_order(
    count: int, seed: int, epoch: int, shuffle: bool, rank: int, world_size: int, pad: bool
) -> Tensor:
    """Indices of the samples that one process sees in one epoch.

    The processes take turns, so that their i-th batches together are the i-th batch of one process
    with a batch `world_size` times as large.

    Args:
        count: samples in all.
        seed: of the run.
        epoch: counted from 0.
        shuffle: new order each epoch, or the order of the samples.
        rank: of this process.
        world_size: number of processes.
        pad: repeat the first samples until all processes have equally many; otherwise the last ones
            may have one fewer.
    """
    if shuffle:
        order = torch.randperm(count, generator=make_generator(seed, epoch))
    else:
        order = torch.arange(count)
    if pad and count % world_size:
        missing = world_size - count % world_size
        order = torch.cat([order, order.repeat(math.ceil(missing / count))[:missing]])
    return order[rank::world_size]


def check_batching(batch_size: int, rank: int, world_size: int) -> None:
    """Refuses batch sizes and processes that cannot be."""
    if batch_size < 1:
        raise InputError(f"batch_size must be >= 1, got {batch_size}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank must be in 0 ... {world_size - 1}, got {rank}")


class TensorBatches:
    """Batches of pictures from memory; iterating again repeats the epoch until `set_epoch`.

    Args:
        images: (N, C, H, W) uint8.
        labels: (N,) int64.
        batch_size: pictures a batch and process.
        normalization: applied last.
        augmentation: applied to each batch, or None.
        shuffle: new order each epoch.
        seed: of order and augmentation.
        drop_last: leave out the last batch if it is smaller.
        rank: of this process.
        world_size: number of processes.
        pad: see `epoch_order`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        normalization: Normalization,
        augmentation: CropFlip | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        pad: bool = False,
    ) -> None:
        check_batching(batch_size, rank, world_size)
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.normalization = normalization
        self.augmentation = augmentation
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.pad = pad
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _order(self) -> Tensor:
        return epoch_order(
            len(self.labels),
            self.seed,
            self.epoch,
            self.shuffle,
            self.rank,
            self.world_size,
            self.pad,
        )

    def __len__(self) -> int:
        count = len(range(self.rank, len(self.labels), self.world_size))
        if self.pad:
            count = math.ceil(len(self.labels) / self.world_size)
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order()
        generator = make_generator(self.seed, self.epoch, self.rank)
        for i in range(len(self)):
            index = order[i * self.batch_size : (i + 1) * self.batch_size].to(self.images.device)
            # On a CPU an order of magnitude faster than self.images[index].
            images = self.images.index_select(0, index)
            if self.augmentation is not None:
                images = self.augmentation(images, generator)
            yield self.normalization(images), self.labels[index]


@dataclass(frozen=True)
class ImageData:
    """A data set of pictures in memory.

    Attributes:
        name: of the data set.
        train_images: (N, C, H, W) uint8; `test_images` and `val_images` likewise.
        train_labels: (N,) int64; `test_labels` and `val_labels` likewise.
        mean: of the pixels divided by `scale`, one a channel.
        std: likewise.
        class_names: one a class.
        augmentation: of the training pictures, or None.
        scale: largest value of a pixel.
        val_images: the part that `hold_out` took from the training pictures, or None.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    augmentation: CropFlip | None = None
    scale: float = 255.0
    val_images: Tensor | None = None
    val_labels: Tensor | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test", "val"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images is None and labels is None and part == "val":
                continue
            if images.dtype != torch.uint8 or images.dim() != 4:
                raise InputError(
                    f"{part}_images must be a uint8 tensor (N, C, H, W), "
                    f"got {images.dtype} {tuple(images.shape)}"
                )
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
                raise InputError(
                    f"{part}_labels must be an int64 tensor ({len(images)},), "
                    f"got {labels.dtype} {tuple(labels.shape)}"
                )
            if images.shape[1:] != self.train_images.shape[1:]:
                raise InputError(
                    f"{part}_images must have the shape {self.input_shape} of the training "
                    f"pictures, got {tuple(images.shape[1:])}"
                )
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
                raise InputError(
                    f"{part}_labels must be in 0 ... {self.num_classes - 1}, "
                    f"got {int(labels.min())} ... {int(labels.max())}"
                )
        if not len(self.mean) == len(self.std) == self.input_shape[0]:
            raise InputError(
                f"mean and std must have {self.input_shape[0]} entries, one a channel, "
                f"got {self.mean} and {self.std}"
            )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.train_images.shape[1:])

    @property
    def train_size(self) -> int:
        return len(self.train_labels)

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.mean, self.std, self.scale)

    def hold_out(self, fraction: float, seed: int = 0) -> ImageData:
        """Takes a validation part from the training pictures, the same share of every class.

        Args:
            fraction: of the training pictures.
            seed: of the choice.
        """
        held, kept = stratified_split(self.train_labels, fraction, seed)
        return replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            val_images=self.train_images[held],
            val_labels=self.train_labels[held],
        )

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
    ) -> TensorBatches:
        """Batches for training: shuffled, augmented, equally many in every process.

        Args:
            batch_size: pictures a batch and process.
            seed: of order and augmentation.
            shuffle: new order each epoch.
            augment: apply the data set's augmentation.
            drop_last: leave out the last batch if it is smaller.
            rank: of this process.
            world_size: number of processes.
        """
        return TensorBatches(
            self.train_images,
            self.train_labels,
            batch_size,
            self.normalization,
            self.augmentation if augment else None,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            pad=True,
        )

    def test_batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> TensorBatches:
        """Every test picture once, in order, over all processes together."""
        return TensorBatches(
            self.test_images,
            self.test_labels,
            batch_size,
            self.normalization,
            rank=rank,
            world_size=world_size,
        )

    def val_batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> TensorBatches:
        """Every validation picture once, in order, over all processes together."""
        if self.val_images is None or self.val_labels is None:
            raise InputError(f"{self.name} has no validation part: make one with hold_out()")
        return TensorBatches(
            self.val_images,
            self.val_labels,
            batch_size,
            self.normalization,
            rank=rank,
            world_size=world_size,
        )


def stratified_split(
    labels: Tensor | Sequence[int], fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Splits indices in two, with the same share of every class.

    Args:
        labels: class of each sample.
        fraction: share of the first part.
        seed: of the choice.

    Returns:
        Indices of the first part and of the rest, both ascending.
    """
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
