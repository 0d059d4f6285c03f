"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 pictures of 32x32 pixels, in memory.

Read from the official archives of the Python version, packed or unpacked. They hold pickles, which
can run any code, so none is opened that has not the published md5.
"""

from __future__ import annotations

import os
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from quadric.data.files import check_md5, directory, download, read_bytes
from quadric.data.images import CropFlip, ImageData
from quadric.errors import InputError


@dataclass(frozen=True)
class Source:
    """Everything that is published about one of the two data sets."""

    name: str  # the data set's name
    title: str  # the name as people write it
    url: str  # where the archive is
    md5: str  # of the archive
    folder: str  # the folder that it unpacks to
    files: dict[str, str]  # its files with their md5, the last one for testing
    label_key: bytes  # the key of the labels in a file
    mean: tuple[float, float, float]  # the mean of the training pixels, one per channel
    std: tuple[float, float, float]  # their standard deviation, one per channel
    class_names: tuple[str, ...]  # one per class

    @property
    def archive(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]

    @property
    def remedy(self) -> str:
        """What to do about a damaged file."""
        return f"get it from {self.url} (md5 {self.md5})"


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    label_key=b"labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    class_names=tuple(
        "airplane automobile bird cat deer dog frog horse ship truck".split(),
    ),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    files={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
    label_key=b"fine_labels",
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    class_names=tuple(
        """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house
        kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
        mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
        plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
        shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
        tank telephone television tiger tractor train trout tulip turtle wardrobe whale
        willow_tree wolf woman worm""".split(),
    ),
)


def load(
    source: Source,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    resize: int | None = None,
    augment: bool = True,
    progress: bool = True,
) -> ImageData:
    """Loads one of the two data sets; CIFAR-100 has its 100 fine labels."""
    if resize is not None and (not isinstance(resize, int) or resize < 1 or 32 % resize):
        raise InputError(f"resize must be a divisor of 32 (16, 8, ...), got {resize!r}")
    files = _files(source, data_dir, progress)
    images, labels = zip(*(_read(source, name, *files[name]) for name in source.files), strict=True)
    size = resize or 32
    return ImageData(
        name=source.name,
        train_images=average_down(torch.cat(images[:-1]), 32 // size),
        train_labels=torch.cat(labels[:-1]),
        test_images=average_down(images[-1], 32 // size),
        test_labels=labels[-1],
        mean=source.mean,
        std=source.std,
        class_names=source.class_names,
        augmentation=CropFlip(padding=size // 8, flip=True) if augment else None,
    )


def average_down(images: Tensor, factor: int) -> Tensor:
    """Averages squares of `factor` pixels per side, rounded to the nearest byte."""
    if factor == 1:
        return images
    pieces = []
    for piece in images.split(5_000):  # floats take four times the bytes
        pieces.append((F.avg_pool2d(piece.float(), factor) + 0.5).to(torch.uint8))
    return torch.cat(pieces)


Files = dict[str, tuple[str, bytes]]
"""For each part of a data set the name of its file, for messages, and its content."""


def _files(source: Source, data_dir: str | os.PathLike[str] | None, progress: bool) -> Files:
    """Finds the data set, downloads it if no directory is named, and reads its files."""
    if data_dir is None:
        return _unpacked(source, download(source.url, f"md5:{source.md5}", source.title, progress))
    root = directory(data_dir, f"name one that holds {source.title}, from {source.url}")
    for folder in (root / source.folder, root):
        paths = {name: folder / name for name in source.files}
        # One file is enough to see what is meant; a missing other one is then an error.
        if any(path.is_file() for path in paths.values()):
            return {
                name: (str(path), read_bytes(path, source.remedy)) for name, path in paths.items()
            }
    packed = root / source.archive
    if packed.is_file():
        check_md5(packed, source.md5, source.remedy)
        return _unpacked(source, packed)
    raise InputError(
        f"no {source.title} in {root}: expected {source.folder} or {source.archive} "
        f"(md5 {source.md5}) from {source.url}"
    )


def _unpacked(source: Source, path: Path) -> Files:
    """Reads the files straight from an archive of the right md5; nothing is unpacked to disk."""
    files = {}
    with tarfile.open(path) as tar:
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            file = tar.extractfile(member) if name in source.files else None
            if file is not None and folder == source.folder:
                files[name] = f"{path}:{member.name}", file.read()
    return files


def _read(source: Source, name: str, shown: str, data: bytes) -> tuple[Tensor, Tensor]:
    """Reads a file after its checksum: its content is then known."""
    check_md5(shown, source.files[name], source.remedy, data)
    batch = pickle.loads(data, encoding="bytes")
    labels = torch.tensor(batch[source.label_key], dtype=torch.int64)
    return torch.from_numpy(batch[b"data"]).view(-1, 3, 32, 32), labels
