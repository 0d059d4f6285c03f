"""Pictures in class folders, as ImageNet is kept: `train/<class>/...` and `val/<class>/...`.

Pillow decodes in worker processes, which hand over bytes; the main process normalizes whole
batches. Training takes a random part of each picture (8 to 100 % of the area, sides from 3:4 to
4:3) and flips half of them, testing takes the middle of the picture resized to 8/7 of the size,
both as in Szegedy et al. 2015. A crop depends on (seed, epoch, picture) alone: the number of
workers changes nothing.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quadric.data.batches import Batching, DatasetBatches, SplitDataset
from quadric.data.files import directory
from quadric.data.images import Normalization
from quadric.errors import InputError, in_one_line
from quadric.support.checks import check_size
from quadric.support.extras import load_extra

if TYPE_CHECKING:
    from PIL.Image import Image

# The statistics of ImageNet that all its published networks use.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
LAYOUT = "expected <directory>/train/<class>/*.jpg and <directory>/val/<class>/*.jpg"


@dataclass(frozen=True)
class Files:
    """Pictures on the disk with their labels."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Tensor) -> Files:
        chosen = index.tolist()
        return Files(tuple(self.paths[i] for i in chosen), tuple(self.labels[i] for i in chosen))


class Broken(NamedTuple):
    """A picture that could not be decoded."""

    path: str
    reason: str


def random_resized_crop(image: Image, size: int, draw: random.Random) -> Image:
    """Takes a random part of a picture, resized to `size` pixels per side."""
    from PIL.Image import Resampling

    width, height = image.size
    box = _random_box(width, height, draw)
    if image.format == "JPEG":
        # A JPEG decodes to a half, a quarter or an eighth for a fraction of the time: ask for the
        # smallest that still gives the crop `size` pixels.
        scale = max(size / (box[2] - box[0]), size / (box[3] - box[1]))
        image.draft("RGB", (math.ceil(width * scale), math.ceil(height * scale)))
    image = image.convert("RGB")
    fx, fy = image.width / width, image.height / height
    scaled = (box[0] * fx, box[1] * fy, box[2] * fx, box[3] * fy)
    return image.resize((size, size), Resampling.BILINEAR, box=scaled)


def _random_box(width: int, height: int, draw: random.Random) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, top, left + w, top + h
    # A very wide or very high picture: the middle, with the nearest allowed ratio.
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def center_crop(image: Image, size: int, resize: int) -> Image:
    """Resizes the shorter side to `resize` pixels and takes `size` x `size` in the middle."""
    from PIL.Image import Resampling

    image = image.convert("RGB")
    shorter = min(image.size)
    # The shorter side becomes `resize` exactly.
    width, height = (round(side * resize / shorter) for side in image.size)
    image = image.resize((width, height), Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


class FolderDataset(Dataset[Any]):
    """Decoded pictures; which part of them, depends on the epoch."""

    def __init__(
        self, files: Files, size: int, resize: int, *, random_crop: bool, seed: int = 0
    ) -> None:
        self.files = files
        self.size = size
        self.resize = resize
        self.random_crop = random_crop
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Broken:
        from PIL import Image as pil

        path = self.files.paths[index]
        try:
            with pil.open(path) as image:
                if self.random_crop:
                    draw = random.Random(f"{self.seed} {self.epoch} {index}")
                    image = random_resized_crop(image, self.size, draw)
                    if draw.random() < 0.5:
                        image = image.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
                else:
                    image = center_crop(image, self.size, self.resize)
                pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        # What Pillow raises for a broken file depends on its format and on where it is broken.
        except (OSError, SyntaxError, ValueError, EOFError, pil.DecompressionBombError) as error:
            return Broken(path, in_one_line(error))
        picture = pixels.view(self.size, self.size, 3).permute(2, 0, 1)
        return picture.contiguous(), self.files.labels[index]


def _collate(
    samples: Sequence[tuple[Tensor, int] | Broken],
) -> tuple[Tensor | None, Tensor, list[Broken]]:
    broken = [sample for sample in samples if isinstance(sample, Broken)]
    good = [sample for sample in samples if not isinstance(sample, Broken)]
    pictures = torch.stack([picture for picture, _ in good]) if good else None
    return pictures, torch.tensor([label for _, label in good], dtype=torch.int64), broken


class FolderBatches(DatasetBatches):
    """Batches of pictures decoded by worker processes.

    Args:
        dataset: the pictures, which it decodes.
        batching: the size and order of the batches.
        normalization: the normalization of each batch.
        on_broken: "skip" a picture that cannot be decoded, with a warning, or "refuse" it.
        workers: processes that decode; 0 decodes in the main process.

    Attributes:
        broken: reason of each picture that could not be decoded so far, by path.
    """

    def __init__(
        self,
        dataset: FolderDataset,
        batching: Batching,
        normalization: Normalization,
        *,
        on_broken: str,
        workers: int,
    ) -> None:
        super().__init__(dataset, batching, workers, _collate)
        self.normalization = normalization
        self.on_broken = on_broken
        self.broken: dict[str, str] = {}

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.dataset.epoch = self.epoch
        equal_batches = self.batching.pad and self.batching.world_size > 1
        empty = True
        for pictures, labels, broken in super().__iter__():
            for path, reason in broken:
                self._report(path, reason)
            if pictures is not None:
                empty = False
                yield self.normalization(pictures), labels
            elif equal_batches:
                raise InputError(
                    f"all {len(broken)} pictures of a batch are broken, and the processes must "
                    f"have equally many batches; the first is {broken[0].path} "
                    f"({broken[0].reason}): replace them"
                )
        if empty and self.broken:
            path, reason = next(iter(self.broken.items()))
            raise InputError(
                f"all {len(self.broken)} pictures are broken, the first is {path} ({reason}): "
                "replace them"
            )

    def _report(self, path: str, reason: str) -> None:
        if self.on_broken == "refuse":
            raise InputError(
                f"broken picture {path} ({reason}): replace it, or skip such pictures with "
                "on_broken='skip'"
            )
        if path not in self.broken:
            self.broken[path] = reason
            warnings.warn(
                f"skipped broken picture {path} ({reason}); {len(self.broken)} so far",
                stacklevel=3,
            )


@dataclass(frozen=True)
class FolderData(SplitDataset):
    """A data set of pictures in class folders; the methods are those of `ImageData`.

    Attributes:
        name: the data set's name.
        train_files: pictures to learn from; `test_files` and `val_files` to test on.
        class_names: the folders' names, sorted.
        size: pixels per side of what the network gets.
        resize: shorter side before the crop in the middle.
        mean: the mean of the pixels divided by 255, one per channel.
        std: their standard deviation, one per channel.
        on_broken: "skip" a picture that cannot be decoded, with a warning, or "refuse" it.
        workers: processes that decode; 0 decodes in the main process.
        augment: random parts and flips for training, or the middle.
    """

    columns: ClassVar[tuple[str, ...]] = ("files",)

    name: str
    train_files: Files
    test_files: Files
    class_names: tuple[str, ...]
    size: int
    resize: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    on_broken: str = "skip"
    workers: int = 0
    augment: bool = True
    val_files: Files | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return (3, self.size, self.size)

    @property
    def normalization(self) -> Normalization:
        """From the bytes of a picture to what a network gets."""
        return Normalization(self.mean, self.std)

    def classes(self) -> Sequence[int]:
        """The training labels."""
        return self.train_files.labels

    def batches(self, part: str, batching: Batching, augment: bool) -> FolderBatches:
        """Batches of a part: random parts and flips, or the middle of each picture."""
        (files,) = self.part(part)
        crop = augment and self.augment
        return FolderBatches(
            FolderDataset(files, self.size, self.resize, random_crop=crop, seed=batching.seed),
            batching,
            self.normalization,
            on_broken=self.on_broken,
            workers=self.workers,
        )


def load(
    data_dir: str | os.PathLike[str],
    *,
    size: int = 224,
    resize: int | None = None,
    augment: bool = True,
    on_broken: str = "skip",
    workers: int | None = None,
) -> FolderData:
    """Finds the pictures below a directory; nothing is decoded yet."""
    load_extra("PIL", "a data set of pictures in folders")
    if on_broken not in ("skip", "refuse"):
        raise InputError(f"on_broken must be 'skip' or 'refuse', got {on_broken!r}")
    check_size("size", size)
    resize = round(size * 8 / 7) if resize is None else resize
    if resize < size:
        raise InputError(f"resize must be >= size {size}, got {resize}")
    if workers is not None and workers < 0:
        raise InputError(f"workers must be >= 0, got {workers}")
    root = directory(data_dir, LAYOUT)
    train = directory(root / "train", LAYOUT)
    there = [part for part in ("val", "test") if (root / part).is_dir()]
    test = directory(root / (there or ["val"])[0], LAYOUT)
    class_names = _class_names(train)
    unknown = sorted(set(_class_names(test)) - set(class_names))
    if unknown:
        raise InputError(f"{test / unknown[0]} has no counterpart in {train}: {LAYOUT}")
    if workers is None:
        affinity = getattr(os, "sched_getaffinity", None)
        workers = min(len(affinity(0)) if affinity else os.cpu_count() or 1, 8)
    return FolderData(
        name="folders",
        train_files=_scan(train, class_names, every=True),
        test_files=_scan(test, class_names, every=False),
        class_names=class_names,
        size=size,
        resize=resize,
        augment=augment,
        on_broken=on_broken,
        workers=workers,
    )


def _class_names(part: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in os.scandir(part) if entry.is_dir())
    if not names:
        raise InputError(f"no class folders in {part}: {LAYOUT}")
    return tuple(names)


def _scan(part: Path, class_names: Sequence[str], every: bool) -> Files:
    """Lists the pictures of the class folders, sorted; `every` class must have one."""
    paths: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        folder = part / class_name
        pictures = sorted(
            os.path.join(where, file)
            for where, _, files in os.walk(folder)
            for file in files
            if file.lower().endswith(EXTENSIONS)
        )
        if not pictures and (every or folder.is_dir()):
            raise InputError(
                f"no pictures in {folder}: expected files ending in {', '.join(EXTENSIONS)}"
            )
        paths += pictures
        labels += [label] * len(pictures)
    return Files(tuple(paths), tuple(labels))
