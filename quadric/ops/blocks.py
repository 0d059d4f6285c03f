"""Where every eigenvalue stands: S in z + S z^2, as blocks along the channels.

S is block-diagonal. Its blocks lie one after another along the output channels, and the split into
blocks starts again in each convolution group. There are two shapes of block:

- *star* (the eigen neuron): a block of s channels is one neuron. Its first channel y receives the
  weighted squares of the s - 1 features after it, so a block has s - 1 eigenvalues.
- *full* (the shared neuron): each of the s channels receives the weighted squares of all s of them,
  so a block has s^2 eigenvalues, row by row. With s = 1 this is the square neuron.

The eigenvalues are one flat vector, block by block. Whoever needs to know which eigenvalue belongs
to which channels asks this class; nothing else derives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quadric.errors import InputError


@dataclass(frozen=True)
class BlockRun:
    """Blocks of one size that follow each other in a convolution group."""

    start: int  # the first channel, counted from the start of the group
    count: int  # how many blocks
    size: int  # channels of one block
    first: int  # the first eigenvalue, counted from the group's own
    per_block: int  # eigenvalues of one block

    @property
    def stop(self) -> int:
        """The channel after the last one."""
        return self.start + self.count * self.size

    @property
    def last(self) -> int:
        """The eigenvalue after the last one."""
        return self.first + self.count * self.per_block


@dataclass(frozen=True)
class Blocks:
    """The blocks of S for a layer; made by `eigen_blocks`, `shared_blocks` and `square_blocks`."""

    shape: Literal["star", "full"]  # "star" or "full"
    channels: int  # output channels of the layer
    size: int  # channels of a block; the last block of a convolution group takes what is left
    groups: int = 1  # convolution groups

    def _in_block(self, size: int) -> int:
        """Eigenvalues of a block of `size` channels."""
        return size - 1 if self.shape == "star" else size * size

    @property
    def runs(self) -> tuple[BlockRun, ...]:
        """The blocks of one convolution group, as at most two runs of equal blocks."""
        full, rest = divmod(self.channels // self.groups, self.size)
        runs: list[BlockRun] = []
        start = first = 0
        for count, size in ((full, self.size), (1, rest)):
            if count and size:
                run = BlockRun(start, count, size, first, self._in_block(size))
                runs.append(run)
                start, first = run.stop, run.last
        return tuple(runs)

    @property
    def num_eigenvalues(self) -> int:
        """The length of the eigenvalue vector."""
        full, rest = divmod(self.channels // self.groups, self.size)
        last = self._in_block(rest) if rest else 0
        return self.groups * (full * self._in_block(self.size) + last)

    def check(self, eigenvalues: Tensor) -> None:
        """Raises unless there are as many eigenvalues as S has entries."""
        if eigenvalues.shape != (self.num_eigenvalues,):
            rank = self.size - 1 if self.shape == "star" else self.size
            raise InputError(
                f"eigenvalues must be a vector of length {self.num_eigenvalues} for "
                f"{self.channels} outputs at rank {rank} and groups {self.groups}, got shape "
                f"{tuple(eigenvalues.shape)}: give that many"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of channels of each block, in channel order."""
        return tuple(run.size for run in self.runs for _ in range(run.count)) * self.groups

    @property
    def table(self) -> tuple[tuple[int, int, int], ...]:
        """First channel, number of channels and first eigenvalue of each block."""
        rows, channel, eigenvalue = [], 0, 0
        for size in self.sizes:
            rows.append((channel, size, eigenvalue))
            channel += size
            eigenvalue += self._in_block(size)
        return tuple(rows)

    def entries(self) -> Iterator[tuple[int, int]]:
        """Output channel and feature channel of each eigenvalue, in the eigenvalues' order."""
        for start, size, _ in self.table:
            if self.shape == "star":
                yield from ((start, start + j) for j in range(1, size))
            else:
                yield from ((start + i, start + j) for i in range(size) for j in range(size))

    def places(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """`entries` as two index tensors: the output channels and the feature channels."""
        pairs = torch.tensor(list(self.entries()), dtype=torch.long, device=device).reshape(-1, 2)
        outputs, features = pairs.unbind(1)
        return outputs, features

    def matrix(self, eigenvalues: Tensor) -> Tensor:
        """S as a dense (channels, channels) matrix."""
        dense = eigenvalues.new_zeros(self.channels, self.channels)
        dense[self.places(eigenvalues.device)] = eigenvalues
        return dense

    @property
    def heads(self) -> list[int]:
        """The first channel of each block: the y channels of eigen neurons."""
        return [start for start, _, _ in self.table]

    @property
    def features(self) -> list[int]:
        """The channels after the first of each block: the feature channels of eigen neurons."""
        return [start + j for start, size, _ in self.table for j in range(1, size)]


def eigen_blocks(channels: int, rank: int, groups: int = 1) -> Blocks:
    """Neurons of one y and `rank` features each; the last neuron of a group may have fewer.

    Examples:
        >>> eigen_blocks(7, rank=2).sizes
        (3, 3, 1)
        >>> list(eigen_blocks(5, rank=2).entries())
        [(0, 1), (0, 2), (3, 4)]
    """
    return Blocks("star", channels, rank + 1, groups)


def shared_blocks(channels: int, rank: int, groups: int = 1) -> Blocks:
    """Groups of `rank` outputs that are features for each other; the last one may be smaller.

    Examples:
        >>> list(shared_blocks(3, rank=2).entries())
        [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
    """
    return Blocks("full", channels, rank, groups)


def square_blocks(channels: int) -> Blocks:
    """Every output is its own feature: z + a z^2."""
    return shared_blocks(channels, 1)
