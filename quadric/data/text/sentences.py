"""Encoded sentences in memory-mapped files: two bytes a piece, and where each sentence ends.

A corpus larger than memory is read page by page as its sentences are needed.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quadric.errors import InputError


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences.

    Attributes:
        pieces: of all sentences, one after the other; 16 bits without a sign.
        starts: where each sentence starts, and the end of the last.
    """

    pieces: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Tensor:
        """Pieces of each sentence."""
        return self.starts[1:] - self.starts[:-1]

    def rows(self, index: Tensor, before: int | None = None, after: int | None = None) -> Tensor:
        """Some sentences as rows, filled up with zeros."""
        starts, lengths = self.starts[index], self.starts[index + 1] - self.starts[index]
        front = before is not None
        columns = torch.arange(int(lengths.max()) + front + (after is not None)) - int(front)
        inside = (columns >= 0) & (columns < lengths.unsqueeze(1))
        found = torch.zeros(inside.shape, dtype=torch.int64)
        # Signed numbers, of which torch has all operations: the bits are the same.
        places = (starts.unsqueeze(1) + columns)[inside]
        found[inside] = self.pieces.view(torch.int16)[places].long() & 0xFFFF
        if before is not None:
            found[:, 0] = before
        if after is not None:
            found[torch.arange(len(index)), lengths + front] = after
        return found


def from_lists(rows: Sequence[Sequence[int]]) -> Sentences:
    """Sentences in memory."""
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int64)
    pieces = torch.tensor([piece for row in rows for piece in row], dtype=torch.int32)
    return Sentences(pieces.to(torch.uint16), lengths.cumsum(0))


class SentenceWriter:
    """Writes the two files of one side of a corpus, a sentence after the other."""

    def __init__(self, path: Path) -> None:
        self._pieces = path.open("wb")
        self._starts = path.with_name(f"{path.name}.starts").open("wb")
        self._end = 0
        array("q", [0]).tofile(self._starts)

    def write(self, rows: Iterable[Sequence[int]]) -> None:
        """Adds sentences."""
        for row in rows:
            array("H", row).tofile(self._pieces)
            self._end += len(row)
            array("q", [self._end]).tofile(self._starts)

    def close(self) -> None:
        """Ends the files; they are on the disk when this returns."""
        for file in (self._pieces, self._starts):
            file.flush()
            os.fsync(file.fileno())
            file.close()


def open_sentences(path: Path) -> Sentences:
    """Maps the files of a `SentenceWriter` into memory; next to nothing is read yet."""
    starts = path.with_name(f"{path.name}.starts")
    found = Sentences(_mapped(path, torch.uint16), _mapped(starts, torch.int64))
    if not len(found.starts) or int(found.starts[-1]) != len(found.pieces):
        raise InputError(f"{path} and {starts} must be as they were written: write them again")
    return found


def _mapped(path: Path, kind: torch.dtype) -> Tensor:
    size = path.stat().st_size // kind.itemsize
    if not size:  # nothing can be mapped
        return torch.empty(0, dtype=kind)
    return torch.from_file(str(path), shared=False, size=size, dtype=kind)
