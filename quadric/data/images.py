"""Pictures in memory: one uint8 tensor, cropped, flipped and normalized as whole batches.

A data set of 60,000 pictures of 32x32 pixels is 184 MB of bytes: it needs no loader processes. A
batch is an index into the tensor; random crops and flips are one gather from the padded batch,
and the conversion to normalized floats comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quadric.data.batches import Batching, SplitDataset, TensorBatches
from quadric.errors import InputError


@dataclass(frozen=True)
class CropFlip:
    """Random shifts and mirror images of a batch, one draw per picture.

    Args:
        padding: black pixels put around each picture before it is cropped to its size again.
        flip: whether half of the pictures are mirrored.
    """

    padding: int = 4
    flip: bool = True

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Returns an augmented copy."""
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
class Turn:
    """Small random turns, slants, sizes and shifts of a batch, for written signs.

    Args:
        angle: the largest turn and slant, in radians.
        zoom: the largest change of the size.
        shift: the largest shift, in pixels.
    """

    angle: float = 0.2
    zoom: float = 0.1
    shift: float = 1.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Returns an augmented copy."""
        draw = 2 * torch.rand(5, len(images), generator=generator) - 1
        angle, slant, size = self.angle * draw[0], self.angle * draw[1], 1 + self.zoom * draw[2]
        turned = torch.stack([angle.cos() / size, slant - angle.sin()], 1)
        upright = torch.stack([angle.sin(), angle.cos() * size], 1)
        steps = torch.tensor([images.shape[-1], images.shape[-2]])
        moved = 2 * self.shift * draw[3:].T / steps
        maps = torch.cat([torch.stack([turned, upright], 1), moved[:, :, None]], 2)
        grid = F.affine_grid(maps.to(images.device), list(images.shape), align_corners=False)
        out = F.grid_sample(images.float(), grid, align_corners=False)
        return out.round().to(images.dtype)


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


@dataclass(frozen=True)
class ImageData(SplitDataset):
    """A data set of pictures in memory.

    Attributes:
        name: the data set's name.
        train_images: (N, C, H, W) uint8, as are `test_images` and `val_images`.
        train_labels: (N,) int64, as are `test_labels` and `val_labels`.
        mean: the mean of the pixels divided by `scale`, one per channel.
        std: their standard deviation, one per channel.
        class_names: one per class.
        augmentation: the augmentation of the training pictures, or None.
        scale: largest value of a pixel.
        val_images: the part that `hold_out` took from the training pictures, or None.
    """

    columns: ClassVar[tuple[str, ...]] = ("images", "labels")

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    augmentation: CropFlip | Turn | None = None
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
                f"mean and std must have {self.input_shape[0]} entries, one per channel, "
                f"got {self.mean} and {self.std}"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.train_images.shape[1:])

    @property
    def normalization(self) -> Normalization:
        """From the bytes of a picture to what a network gets."""
        return Normalization(self.mean, self.std, self.scale)

    def classes(self) -> Tensor:
        """The training labels."""
        return self.train_labels

    def batches(self, part: str, batching: Batching, augment: bool) -> TensorBatches:
        """Batches of a part: augmented, if so wanted, and normalized."""
        augmentation, normalization = self.augmentation if augment else None, self.normalization

        def transform(images: Tensor, generator: torch.Generator) -> Tensor:
            return normalization(augmentation(images, generator) if augmentation else images)

        images, labels = self.part(part)
        return TensorBatches(images, labels, batching, transform)
