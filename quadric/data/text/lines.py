"""Text files: one sentence per line, UTF-8, and a second file with the same lines translated.

The rules. A file that is missing, is not UTF-8 or holds a zero byte is refused, with its line. Two
files that belong together must have equally many lines. Lines end with a line feed and nothing
else, because real corpora have other separators inside sentences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from quadric.data.files import unreadable
from quadric.errors import InputError

BLOCK = 1 << 20


@dataclass(frozen=True)
class TextFile:
    """A text file that was looked through."""

    path: Path  # where it is
    lines: int  # how many it has
    sha256: str  # of its content


def inspect(path: Path, remedy: str) -> TextFile:
    """Counts the lines of a file and takes its checksum."""
    checksum, lines, last = hashlib.sha256(), 0, b"\n"
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                checksum.update(block)
                lines += block.count(b"\n")
                last = block[-1:]
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    lines += last != b"\n"
    if not lines:
        raise InputError(f"{path} must hold a sentence on each line, got an empty file: {remedy}")
    return TextFile(path, lines, checksum.hexdigest())


def inspect_pair(source: Path, target: Path, remedy: str) -> tuple[TextFile, TextFile]:
    """Looks through two files that must have equally many lines."""
    one, other = inspect(source, remedy), inspect(target, remedy)
    if one.lines != other.lines:
        raise InputError(
            f"{source} and {target} must have equally many lines, got {one.lines:,} and "
            f"{other.lines:,}: line n of one must translate line n of the other"
        )
    return one, other


def decode_lines(file: BinaryIO | Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of an open file as text."""
    for number, raw in enumerate(file, start=1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = raw[error.start]
            raise InputError(
                f"{name} must be UTF-8 text, got the byte 0x{byte:02x} in line {number:,}: convert "
                "the file, or name another one"
            ) from None
        if "\0" in line:
            raise InputError(
                f"{name} must be UTF-8 text, got a zero byte in line {number:,}: name a text file"
            )
        yield line.strip()


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, one after the other."""
    with path.open("rb") as file:
        yield from decode_lines(file, str(path))


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of lines of two files that have been found to be equally long."""
    for one, other in zip_longest(read_lines(source), read_lines(target)):
        if one is None or other is None:
            raise InputError(f"{source} or {target} has changed while it was read: try again")
        yield one, other
