"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 pictures of 32x32 pixels, in memory.

Read from the official archives, packed or unpacked, in the Python version (pickles) or the binary
version (records of label bytes and 3,072 pixel bytes). A pickle can run any code, so none is opened
that has not the published md5.
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

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    """A published version: its archive and md5, the folder it unpacks to, the end of file names."""

    url: str
    md5: str
    folder: str
    suffix: str = ""

    @property
    def file(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]

    @property
    def remedy(self) -> str:
        """What to do about a damaged file."""
        return f"get it from {self.url} (md5 {self.md5})"


@dataclass(frozen=True)
class DataFile:
    """One file of the data set: its name, the md5 of its Python version, and how many pictures."""

    name: str
    md5: str
    records: int


@dataclass(frozen=True)
class Source:
    """Everything that is published about one of the two data sets.

    Attributes:
        name: the data set's name.
        title: the name as people write it.
        python: the archive of pickles.
        binary: the archive of records.
        train: files with training pictures.
        test: the file with test pictures.
        label_key: the key of the labels in a pickle.
        label_bytes: the bytes before the pixels of a record; the last of them is the label.
        mean: the mean of the training pixels, one per channel.
        std: their standard deviation, one per channel.
        class_names: one per class.
    """

    name: str
    title: str
    python: Version
    binary: Version
    train: tuple[DataFile, ...]
    test: DataFile
    label_key: bytes
    label_bytes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    class_names: tuple[str, ...]

    @property
    def parts(self) -> tuple[DataFile, ...]:
        """All files, those for training first."""
        return (*self.train, self.test)


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    python=Version(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    binary=Version(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        ".bin",
    ),
    train=(
        DataFile("data_batch_1", "c99cafc152244af753f735de768cd75f", 10_000),
        DataFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", 10_000),
        DataFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", 10_000),
        DataFile("data_batch_4", "634d18415352ddfa80567beed471001a", 10_000),
        DataFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", 10_000),
    ),
    test=DataFile("test_batch", "40351d587109b95175f43aff81a1287e", 10_000),
    label_key=b"labels",
    label_bytes=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    class_names=tuple(
        "airplane automobile bird cat deer dog frog horse ship truck".split(),
    ),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    python=Version(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    binary=Version(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        ".bin",
    ),
    train=(DataFile("train", "16019d7e3df5f24257cddd939b257f8d", 50_000),),
    test=DataFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", 10_000),
    label_key=b"fine_labels",
    label_bytes=2,
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
    archive, files = _files(source, data_dir, progress)
    read = _read_pickle if archive is source.python else _read_records
    images, labels = zip(
        *(read(source, part, *files[part.name]) for part in source.parts), strict=True
    )
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


def _files(
    source: Source, data_dir: str | os.PathLike[str] | None, progress: bool
) -> tuple[Version, Files]:
    """Finds the data set, downloads it if no directory is named, and reads its files."""
    python, binary = source.python, source.binary
    if data_dir is None:
        path = download(python.url, f"md5:{python.md5}", source.title, progress)
        return python, _unpacked(source, python, path)
    root = directory(data_dir, f"name one that holds {source.title}, from {python.url}")
    for archive in (python, binary):
        for folder in (root / archive.folder, root):
            paths = {part.name: folder / f"{part.name}{archive.suffix}" for part in source.parts}
            # One file is enough to see what is meant; a missing other one is then an error.
            if any(path.is_file() for path in paths.values()):
                return archive, {
                    name: (str(path), read_bytes(path, archive.remedy))
                    for name, path in paths.items()
                }
    for archive in (python, binary):
        if (root / archive.file).is_file():
            check_md5(root / archive.file, archive.md5, archive.remedy)
            return archive, _unpacked(source, archive, root / archive.file)
    raise InputError(
        f"no {source.title} in {root}: expected {python.folder}/{source.test.name} or "
        f"{binary.folder}/{source.test.name}.bin and its like, or {python.file} "
        f"(md5 {python.md5}) from {python.url}"
    )


def _unpacked(source: Source, archive: Version, path: Path) -> Files:
    """Reads the files straight from an archive of the right md5; nothing is unpacked to disk."""
    names = {f"{archive.folder}/{part.name}{archive.suffix}": part.name for part in source.parts}
    files = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name in names else None
            if file is not None:
                files[names[member.name]] = f"{path}:{member.name}", file.read()
    return files


def _read_records(source: Source, part: DataFile, name: str, data: bytes) -> tuple[Tensor, Tensor]:
    """Reads a file of the binary version."""
    record = source.label_bytes + PIXELS
    if len(data) != part.records * record:
        raise InputError(
            f"{name} is truncated or not a file of {source.title}: {len(data):,} bytes, "
            f"expected {part.records * record:,}: {source.binary.remedy}"
        )
    table = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(part.records, record)
    labels = table[:, source.label_bytes - 1].long()
    if int(labels.max()) >= len(source.class_names):
        raise InputError(
            f"{name} is not a file of {source.title}: label {int(labels.max())}, "
            f"expected 0 ... {len(source.class_names) - 1}: {source.binary.remedy}"
        )
    return table[:, source.label_bytes :].reshape(-1, 3, 32, 32), labels


def _read_pickle(source: Source, part: DataFile, name: str, data: bytes) -> tuple[Tensor, Tensor]:
    """Reads a file of the Python version, after its checksum: its content is then known."""
    check_md5(name, part.md5, source.python.remedy, data)
    batch = pickle.loads(data, encoding="bytes")
    labels = torch.tensor(batch[source.label_key], dtype=torch.int64)
    return torch.from_numpy(batch[b"data"]).view(-1, 3, 32, 32), labels
