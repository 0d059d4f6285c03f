"""WMT14 English-German: the training text of Vaswani et al., 4.5 million pairs.

Europarl 7, Common Crawl and News Commentary 9 to learn from, newstest2013 to validate, newstest2014
(3,003 pairs) to test. The archives are those of statmt.org; their sha256 are the ones that
TensorFlow Datasets publishes (tensorflow_datasets/url_checksums/wmt14_translate.txt). We have not
downloaded them ourselves: no archive was at hand when this was written.
"""

from __future__ import annotations

import html
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quadric.data.files import cache_file, download
from quadric.errors import InputError
from quadric.support.writing import whole_file

LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Archive:
    """A published archive."""

    url: str  # where it is
    sha256: str  # its checksum
    # For each part of the data set the English and the German file in it.
    parts: dict[str, tuple[str, str]]


ARCHIVES = (
    Archive(
        "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        {"train": ("training/europarl-v7.de-en.en", "training/europarl-v7.de-en.de")},
    ),
    Archive(
        "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        {"train": ("commoncrawl.de-en.en", "commoncrawl.de-en.de")},
    ),
    Archive(
        "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        {"train": ("training/news-commentary-v9.de-en.en", "training/news-commentary-v9.de-en.de")},
    ),
    Archive(
        "http://data.statmt.org/wmt19/translation-task/dev.tgz",
        "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
        {
            "val": ("dev/newstest2013.en", "dev/newstest2013.de"),
            "test": ("dev/newstest2014-deen-ref.en.sgm", "dev/newstest2014-deen-src.de.sgm"),
        },
    ),
)


def fetch(progress: bool = True) -> Path:
    """Downloads the archives and writes `train`, `val` and `test` files, once."""
    first = cache_file("WMT14", "wmt14/train.en")
    if not first.is_file():
        with whole_file(first) as made:  # the other files are there before this one
            for archive in ARCHIVES:
                path = download(archive.url, f"sha256:{archive.sha256}", "WMT14", progress)
                _unpack(archive, path, made.parent)
    return first.parent


def _unpack(archive: Archive, path: Path, folder: Path) -> None:
    """Appends the files of an archive to those of their parts."""
    wanted = {
        name: f"{part}.{language}"
        for part, names in archive.parts.items()
        for name, language in zip(names, LANGUAGES, strict=True)
    }
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            file = tar.extractfile(member) if name in wanted else None
            if file is not None:
                with file, (folder / wanted.pop(name)).open("ab") as out:
                    for line in _segments(file) if name.endswith(".sgm") else file:
                        out.write(_clean(line))
    if wanted:
        raise InputError(
            f"{path} from {archive.url} must hold {next(iter(wanted))}, and does not: download it "
            "again"
        )


def _clean(line: bytes) -> bytes:
    """A line of UTF-8 text: in such a corpus single wrong bytes are no reason to stop."""
    text = line.decode("utf-8", "replace").replace("\0", " ").rstrip("\n")
    return f"{text}\n".encode()


def _segments(file: BinaryIO | Iterator[bytes]) -> Iterator[bytes]:
    """The sentences of a test set in SGML."""
    for line in file:
        for segment in re.findall(rb"<seg[^>]*>(.*?)</seg>", line):
            yield html.unescape(segment.decode("utf-8").strip()).encode()
