"""Encoded sentences: two bytes a piece, and where each sentence ends."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences."""

    pieces: Tensor  # of all sentences, one after the other; 16 bits without a sign
    starts: Tensor  # where each sentence starts, and the end of the last

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
        padded = torch.zeros(inside.shape, dtype=torch.int64)
        # Signed numbers, of which torch has all operations: the bits are the same.
        places = (starts.unsqueeze(1) + columns)[inside]
        padded[inside] = self.pieces.view(torch.int16)[places].long() & 0xFFFF
        if before is not None:
            padded[:, 0] = before
        if after is not None:
            padded[torch.arange(len(index)), lengths + front] = after
        return padded


class GrowingSentences:
    """Sentences that are added one after the other."""

    def __init__(self) -> None:
        self.pieces, self.starts = array("H"), array("q", [0])

    def add(self, rows: Iterable[Sequence[int]]) -> GrowingSentences:
        """Adds sentences."""
        for row in rows:
            self.pieces.extend(row)
            self.starts.append(len(self.pieces))
        return self

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The pieces and starts of `Sentences`."""
        none = torch.empty(0, dtype=torch.uint16)
        pieces = torch.frombuffer(self.pieces, dtype=torch.uint16) if self.pieces else none
        return pieces, torch.frombuffer(self.starts, dtype=torch.int64)


def from_lists(rows: Iterable[Sequence[int]]) -> Sentences:
    """Sentences in memory."""
    return Sentences(*GrowingSentences().add(rows).tensors())
