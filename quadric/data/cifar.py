"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 pictures of 32x32 pixels, in memory.

Read from the official archives, packed or unpacked, in the Python version (pickles) or the binary
version (records of label bytes and 3,072 pixel bytes). A pickle can run any code, so its
published md5 is checked first, and it is then read by an unpickler that knows numpy arrays and
nothing else.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadric.data.files import check_md5, directory, download, read_bytes
from quadric.data.images import CropFlip, ImageData
from quadric.errors import InputError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Archive:
    """A published archive: where it is, its md5, and the folder that it unpacks to."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Part:
    """One file of the data set: its name, the md5 of its Python version, and how many pictures."""

    name: str
    md5: str
    records: int


@dataclass(frozen=True)
class Source:
    """Everything that is published about one of the two data sets.

    Attributes:
        name: of the data set.
        title: as people write it.
        python: the archive of pickles.
        binary: the archive of records.
        train: files with training pictures.
        test: the file with test pictures.
        label_key: of the labels in a pickle.
        label_bytes: before the pixels of a record; the last of them is the label.
        mean: of the training pixels, one per channel.
        std: their standard deviation, one per channel.
        class_names: one per class.
    """

    name: str
    title: str
    python: Archive
    binary: Archive
    train: tuple[Part, ...]
    test: Part
    label_key: bytes
    label_bytes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    class_names: tuple[str, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All files, those for training first."""
        return (*self.train, self.test)


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    python=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    binary=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
    ),
    train=(
        Part("data_batch_1", "c99cafc152244af753f735de768cd75f", 10_000),
        Part("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", 10_000),
        Part("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", 10_000),
        Part("data_batch_4", "634d18415352ddfa80567beed471001a", 10_000),
        Part("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", 10_000),
    ),
    test=Part("test_batch", "40351d587109b95175f43aff81a1287e", 10_000),
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
    python=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    binary=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
    ),
    train=(Part("train", "16019d7e3df5f24257cddd939b257f8d", 50_000),),
    test=Part("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", 10_000),
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


def cifar10(data_dir: str | os.PathLike[str] | None = None, **options: Any) -> ImageData:
    """Loads CIFAR-10; the arguments are those of `load`."""
    return load(CIFAR10, data_dir, **options)


def cifar100(data_dir: str | os.PathLike[str] | None = None, **options: Any) -> ImageData:
    """Loads CIFAR-100 with its 100 fine labels; the arguments are those of `load`."""
    return load(CIFAR100, data_dir, **options)


def load(
    source: Source,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    resize: int | None = None,
    augment: bool = True,
    progress: bool = True,
) -> ImageData:
    """Loads one of the two data sets."""
    if resize is not None and (not isinstance(resize, int) or resize < 1 or 32 % resize):
        raise InputError(f"resize must be a divisor of 32 (16, 8, ...), got {resize!r}")
    parts = _read(source, data_dir, progress)
    images = torch.cat([parts[part.name][0] for part in source.train])
    labels = torch.cat([parts[part.name][1] for part in source.train])
    test_images, test_labels = parts[source.test.name]
    size = resize or 32
    return ImageData(
        name=source.name,
        train_images=average_down(images, 32 // size),
        train_labels=labels,
        test_images=average_down(test_images, 32 // size),
        test_labels=test_labels,
        mean=source.mean,
        std=source.std,
        class_names=source.class_names,
        augmentation=CropFlip(padding=size // 8, flip=True) if augment else None,
    )


def average_down(images: Tensor, factor: int) -> Tensor:
    """Averages squares of `factor` pixels per side, rounded to the nearest byte."""
    if factor == 1:
        return images
    # Integer sums over the pixels of a square; in pieces, because they take four times the bytes.
    pieces = []
    for piece in images.split(5_000):
        total = torch.zeros_like(piece[:, :, ::factor, ::factor], dtype=torch.int32)
        for i in range(factor):
            for j in range(factor):
                total += piece[:, :, i::factor, j::factor]
        pieces.append(((total + factor**2 // 2) // factor**2).to(torch.uint8))
    return torch.cat(pieces)


def _read(
    source: Source, data_dir: str | os.PathLike[str] | None, progress: bool
) -> dict[str, tuple[Tensor, Tensor]]:
    """Finds the data set and reads all of its parts."""
    if data_dir is None:
        return _read_archive(source, source.python, _download(source, progress), _read_pickle)
    root = directory(data_dir, f"name one that holds {source.title}, from {source.python.url}")
    layouts: tuple[tuple[Archive, str, Reader], ...] = (
        (source.python, "", _read_pickle),
        (source.binary, ".bin", _read_records),
    )
    for archive, suffix, reader in layouts:
        for folder in (root / archive.folder, root):
            files = {part.name: folder / f"{part.name}{suffix}" for part in source.parts}
            # One file is enough to see what is meant; a missing other one is then an error.
            if any(file.is_file() for file in files.values()):
                remedy = _remedy(archive)
                return {
                    part.name: reader(
                        source, part, str(files[part.name]), read_bytes(files[part.name], remedy)
                    )
                    for part in source.parts
                }
    for archive, _, reader in layouts:
        if (root / archive.file).is_file():
            return _read_archive(source, archive, root / archive.file, reader)
    raise InputError(
        f"no {source.title} in {root}: expected {source.python.folder}/{source.test.name} or "
        f"{source.binary.folder}/{source.test.name}.bin and its like, or {source.python.file} "
        f"(md5 {source.python.md5}) from {source.python.url}"
    )


def _remedy(archive: Archive) -> str:
    return f"get it from {archive.url} (md5 {archive.md5})"


def _download(source: Source, progress: bool) -> Path:
    """Fetches the Python archive into the user's cache, or finds it there; the md5 is checked."""
    archive = source.python
    return download(archive.url, f"md5:{archive.md5}", source.title, progress)


Reader = Callable[[Source, Part, str, bytes], "tuple[Tensor, Tensor]"]


def _read_archive(
    source: Source, archive: Archive, path: Path, reader: Reader
) -> dict[str, tuple[Tensor, Tensor]]:
    """Reads the parts straight from the archive; nothing is unpacked to the disk."""
    remedy = _remedy(archive)
    check_md5(path, archive.md5, remedy)
    suffix = ".bin" if archive is source.binary else ""
    wanted = {f"{archive.folder}/{part.name}{suffix}": part for part in source.parts}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            part = wanted.get(member.name.removeprefix("./"))
            content = tar.extractfile(member) if part is not None else None
            if part is not None and content is not None:
                name = f"{path}:{member.name}"
                found[part.name] = reader(source, part, name, content.read())
    for name, part in wanted.items():
        if part.name not in found:
            raise InputError(f"missing file {name} in {path}: {remedy}")
    return found


def _read_records(source: Source, part: Part, name: str, data: bytes) -> tuple[Tensor, Tensor]:
    """Reads a file of the binary version."""
    record = source.label_bytes + PIXELS
    remedy = _remedy(source.binary)
    if len(data) != part.records * record:
        raise InputError(
            f"{name} is truncated or not a file of {source.title}: {len(data):,} bytes, "
            f"expected {part.records * record:,}: {remedy}"
        )
    table = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(part.records, record)
    labels = table[:, source.label_bytes - 1].long()
    if int(labels.max()) >= len(source.class_names):
        raise InputError(
            f"{name} is not a file of {source.title}: label {int(labels.max())}, "
            f"expected 0 ... {len(source.class_names) - 1}: {remedy}"
        )
    return table[:, source.label_bytes :].reshape(-1, 3, 32, 32), labels


def _read_pickle(source: Source, part: Part, name: str, data: bytes) -> tuple[Tensor, Tensor]:
    """Reads a file of the Python version, after its checksum."""
    remedy = _remedy(source.python)
    check_md5(name, part.md5, remedy, data)
    try:
        batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        images = torch.from_numpy(batch[b"data"])
        labels = torch.tensor(batch[source.label_key], dtype=torch.int64)
        if images.dtype != torch.uint8 or images.shape != (part.records, PIXELS):
            raise InputError(f"pixels {tuple(images.shape)}, expected {(part.records, PIXELS)}")
        if labels.shape != (part.records,):
            raise InputError(f"{len(labels)} labels, expected {part.records}")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name} is not a file of {source.title} ({error}): {remedy}") from None
    return images.view(-1, 3, 32, 32), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles built-in containers and numpy arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        # Python 2's numpy wrote numpy.core, today's writes numpy._core; we import neither.
        arrays = ("numpy.core.multiarray", "numpy._core.multiarray")
        if name == "_reconstruct" and module in arrays:
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        # How Python 3 writes bytes in the protocols that Python 2 can read.
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no part of an array")


def _encode_latin1(text: str | bytes, encoding: str | bytes = b"latin1") -> bytes:
    # With encoding="bytes" the codec's name arrives as bytes or text, depending on who wrote it.
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text if isinstance(text, bytes) else text.encode("latin1")
