"""Data sets: pictures in memory or in folders, tables, physical laws, text.

`load` takes the names of recipes: `digits`, `mnist`, `cifar10`, `cifar100`, `folders`,
`law:<name>`, `uci:<name>`, `csv:<file>`, `text`, `multi30k` and `wmt14`. Pictures come as
`ImageData` or `FolderData`, which have the same methods, tables as `TableData`, sentence pairs as
`TextData`, and what a user's own function gives, through `user_dataset.make_data`, as
`UserDataset`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quadric.data import cifar, csv_tables, digits, folders, laws, mnist, uci
from quadric.data.batches import Batches as Batches
from quadric.data.batches import TensorBatches as TensorBatches
from quadric.data.folders import FolderBatches as FolderBatches
from quadric.data.folders import FolderData as FolderData
from quadric.data.images import CropFlip as CropFlip
from quadric.data.images import ImageData as ImageData
from quadric.data.images import Normalization as Normalization
from quadric.data.tables import Standardization as Standardization
from quadric.data.tables import TableData as TableData
from quadric.data.text import TextData as TextData
from quadric.data.text import corpus, wmt14
from quadric.data.user_dataset import UserDataset as UserDataset
from quadric.errors import InputError

DataSet = ImageData | FolderData | TableData | TextData | UserDataset
IMAGES = ("digits", "mnist", "cifar10", "cifar100", "folders")
TEXTS = ("text", "multi30k", "wmt14")


def names() -> list[str]:
    """Lists the data sets that `load` knows by name."""
    tables = [f"law:{name}" for name in laws.names()] + [f"uci:{name}" for name in uci.names()]
    return [*IMAGES, *tables, *TEXTS]


def load(name: str, data_dir: str | os.PathLike[str] | None = None, **options: Any) -> DataSet:
    """Loads a data set.

    Args:
        name: one of `names()`, `uci:` and the name of a folder in `data_dir`, or `csv:` and a
            file.
        data_dir: the folder of the files. CIFAR and WMT14 are downloaded without it; digits and
            laws need none.
        **options: options of the data set's own function: `digits.load`, `mnist.load`,
            `cifar.load`, `folders.load`, `laws.table`, `uci.load`, `csv_tables.load`,
            `text.corpus.load`.
    """
    function = _function(name, data_dir)
    valid = inspect.signature(function).parameters
    for option in options:
        if option not in valid:
            has = ", ".join(p.name for p in valid.values() if p.default is not p.empty)
            raise InputError(f"unknown option {option!r} for data set {name!r}: it has {has}")
    return function(**options)


def test_files(
    name: str, data_dir: str | os.PathLike[str] | None, source: str, target: str
) -> tuple[Path, Path] | None:
    """The test files of a text, without reading it.

    Args:
        name: one of `TEXTS`.
        data_dir: the folder of the files; None for the cache.
        source: the language of one file, its ending.
        target: the language of the other.

    Returns:
        The source and the target file; None if there are none.
    """
    root = Path(data_dir or wmt14.fetch())
    stem = corpus.test_stem(name)
    files = root / f"{stem}.{source}", root / f"{stem}.{target}"
    return files if all(file.is_file() for file in files) else None


def _function(name: str, data_dir: str | os.PathLike[str] | None) -> Callable[..., DataSet]:
    """What loads a data set, its options left open."""
    kind, _, rest = name.partition(":")
    if name == "digits":
        return digits.load
    if name in ("cifar10", "cifar100"):
        source = cifar.CIFAR10 if name == "cifar10" else cifar.CIFAR100
        return partial(cifar.load, source, data_dir)
    if kind == "csv" and rest:
        return partial(csv_tables.load, rest, data_dir)
    if kind == "law" and rest:
        return partial(laws.table, rest)
    if name == "wmt14":
        return partial(corpus.load, data_dir or wmt14.fetch(), name=name)
    if name in ("folders", "mnist", *TEXTS) or (kind == "uci" and rest):
        if data_dir is None:
            raise InputError(f"data set {name!r} needs a data directory: name it with data_dir")
        if name in TEXTS:
            return partial(corpus.load, data_dir, name=name, test=corpus.test_stem(name))
        if name == "mnist":
            return partial(mnist.load, data_dir)
        return partial(folders.load, data_dir) if not rest else partial(uci.load, rest, data_dir)
    raise InputError(f"unknown data set {name!r}: choose from {', '.join(names())}")
