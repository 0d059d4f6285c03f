"""The squares as matrix products, for outputs whose channels lie next to each other in memory.

Every neuron adds `x^2 M` to the rows x of its output, where M is a sparse matrix of eigenvalues:
eigen has one column a neuron, shared one square block a group. Slices of a few channels are slow to
walk through in such rows, while a product with a small dense M runs at the speed of the processor.
So the channels are cut, between neurons, into chunks, and the rows into tiles whose squares stay in
the cache. Of an eigen layer only the y are computed, a narrow product that is added to every
(rank + 1)-th channel.

A dense product adds zero times every square, which for an infinite one is NaN in all outputs of the
chunk. The formula keeps it to its own neuron; rows with a square that is not finite are left to the
slices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NARROW = 64
"""Channels of a chunk of eigen neurons; a neuron that is wider is left to the slices."""

_SQUARE = 32
"""Channels of a chunk of shared groups, where a group is not wider itself."""

_WIDE_SQUARE = 64
"""The same in a layer of more than 128 channels, where the calls would become many."""

_TILE = 1 << 18
"""Numbers of a tile: its squares fit the second cache of a core or two."""


@dataclass(frozen=True)
class Entry:
    """Where an eigenvalue stands in M: it takes the square of `feature` to the output `target`."""

    feature: int
    target: int


@dataclass(frozen=True)
class _Chunk:
    """Some neighboring channels and what is added to them.

    Attributes:
        channels: which they are.
        outputs: those of them that something is added to, evenly spaced.
        rows: where these stand among the outputs of all chunks.
        first: their first eigenvalue.
        last: one behind their last.
        targets: the row of each eigenvalue in the chunk's matrix, which of its outputs.
        features: its column, counted from the first channel.
    """

    channels: slice
    outputs: slice
    rows: slice
    first: int
    last: int
    targets: Tensor
    features: Tensor

    def matrix(self, eigenvalues: Tensor) -> Tensor:
        """The chunk's part of M, (outputs, channels)."""
        width = self.channels.stop - self.channels.start
        matrix = eigenvalues.new_zeros(self.rows.stop - self.rows.start, width)
        matrix[self.targets, self.features] = eigenvalues[self.first : self.last]
        return matrix

    def values(self, matrix: Tensor) -> Tensor:
        """The entries of such a matrix, in the order of the eigenvalues."""
        return matrix[self.targets, self.features]


@dataclass(frozen=True)
class Plan:
    """How a layer's channels are cut into chunks; made by `eigen_plan` and `shared_plan`."""

    chunks: tuple[_Chunk, ...]

    @property
    def outputs(self) -> int:
        """How many channels something is added to."""
        return int(self.chunks[-1].rows.stop) if self.chunks else 0


class _Cutter:
    """Puts blocks of channels together into chunks."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.chunks: list[_Chunk] = []
        self.start = self.stop = self.first = self.row = 0
        self.entries: list[Entry] = []
        self.outputs: list[int] = []

    def add(self, size: int, outputs: Sequence[int], entries: Sequence[Entry]) -> None:
        """One more block, its outputs and entries counted from its first channel."""
        if self.stop - self.start + size > self.width or not self._even(outputs):
            self.cut()
        self.outputs += [self.stop + output for output in outputs]
        self.entries += [Entry(self.stop + e.feature, self.stop + e.target) for e in entries]
        self.stop += size

    def _even(self, outputs: Sequence[int]) -> bool:
        """Whether the spacing of the outputs goes on into this block."""
        all_outputs = [*self.outputs, *(self.stop + output for output in outputs)]
        return len({b - a for a, b in itertools.pairwise(all_outputs)}) <= 1

    def cut(self) -> None:
        """Ends a chunk; one of linear channels alone has no outputs."""
        if self.stop > self.start:
            step = self.outputs[1] - self.outputs[0] if len(self.outputs) > 1 else 1
            begin, end = (self.outputs[0], self.outputs[-1] + 1) if self.outputs else (0, 0)
            place = {channel: i for i, channel in enumerate(self.outputs)}
            # On the CPU whatever the default device is: the plan outlives it.
            targets = [place[e.target] for e in self.entries]
            features = [e.feature - self.start for e in self.entries]
            chunk = _Chunk(
                channels=slice(self.start, self.stop),
                outputs=slice(begin, end, step),
                rows=slice(self.row, self.row + len(self.outputs)),
                first=self.first,
                last=self.first + len(self.entries),
                targets=torch.tensor(targets, dtype=torch.long, device="cpu"),
                features=torch.tensor(features, dtype=torch.long, device="cpu"),
            )
            self.chunks.append(chunk)
            self.first, self.row = chunk.last, chunk.rows.stop
        self.start, self.outputs, self.entries = self.stop, [], []


@functools.lru_cache(maxsize=1024)
def eigen_plan(ranks: tuple[int, ...]) -> Plan | None:
    """Neurons of these ranks one behind the other, or None where M would be mostly empty."""
    if max(ranks, default=0) >= _NARROW:
        return None
    cutter = _Cutter(_NARROW)
    for rank in ranks:
        cutter.add(rank + 1, [0] if rank else [], [Entry(j, 0) for j in range(1, rank + 1)])
    cutter.cut()
    return Plan(tuple(cutter.chunks))


@functools.lru_cache(maxsize=1024)
def shared_plan(sizes: tuple[int, ...]) -> Plan:
    """Groups of these sizes one behind the other."""
    cutter = _Cutter(_WIDE_SQUARE if sum(sizes) > 128 else _SQUARE)
    for size in sizes:
        entries = [Entry(j, i) for i in range(size) for j in range(size)]
        cutter.add(size, range(size), entries)
    cutter.cut()
    return Plan(tuple(cutter.chunks))


def rows(tensor: Tensor, dim: int) -> Tensor | None:
    """The tensor as a view of rows of channels, or None if it does not lie so in memory.

    Args:
        tensor: the output of a linear map.
        dim: its channel dimension, counted from the end.
    """
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return None
    last = tensor.movedim(dim, -1)
    if tensor.numel() == 0 or not last.is_contiguous():
        return None
    return last.view(-1, last.shape[-1])


def _tiles(rows: Tensor) -> Iterator[slice]:
    step = max(1, _TILE // rows.shape[1])
    for start in range(0, len(rows), step):
        yield slice(start, min(start + step, len(rows)))


def add(out: Tensor, eigenvalues: Tensor, plan: Plan, result: Tensor) -> int:
    """Writes the rows `out` with the weighted squares added into `result`, which may be `out`.

    Args:
        out: rows of channels.
        eigenvalues: one flat vector of the same dtype.
        plan: the layer's chunks.
        result: rows; `out` itself unless every channel is an output.

    Returns:
        How many rows are done: all, or fewer where a square is not finite, and none behind it.
    """
    matrices = [chunk.matrix(eigenvalues) for chunk in plan.chunks]
    if plan.outputs == out.shape[1]:
        return _add_to_all(out, matrices, plan, result)
    # Outputs first: a product of so few with so many rows is faster this way around.
    sums = out.new_empty(plan.outputs, len(out))
    squares = out.new_empty(0)
    for tile in _tiles(out):
        x = out[tile]
        torch.mul(x, x, out=squares.resize_(x.shape))
        for chunk, matrix in zip(plan.chunks, matrices, strict=True):
            torch.mm(matrix, squares[:, chunk.channels].t(), out=sums[chunk.rows, tile])
    # Each square of a chunk meets each of its outputs: one that is not finite shows in all.
    if not math.isfinite(sums.sum().item()):
        return 0
    for chunk in plan.chunks:
        result.t()[chunk.outputs].add_(sums[chunk.rows])
    return len(out)


def _add_to_all(out: Tensor, matrices: Sequence[Tensor], plan: Plan, result: Tensor) -> int:
    """The same where every channel is an output."""
    matrices = [matrix.t().contiguous() for matrix in matrices]
    squares = out.new_empty(0)
    copied = result.data_ptr() != out.data_ptr()
    for tile in _tiles(out):
        x, r = out[tile], result[tile]
        torch.mul(x, x, out=squares.resize_(x.shape))
        if not math.isfinite(squares.sum().item()):
            return int(tile.start)
        for chunk, matrix in zip(plan.chunks, matrices, strict=True):
            cut = chunk.channels
            if copied:
                torch.mm(squares[:, cut], matrix, out=r[:, cut])
            else:
                r[:, cut].addmm_(squares[:, cut], matrix)
        if copied:
            r.add_(x)
    return len(out)


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, plan: Plan, result: Tensor
) -> Tensor | None:
    """Writes the gradient of the linear map's output into `result`, returns the eigenvalues'.

    None means that something was not finite: `result` then holds nothing of use.

    Args:
        grad: the gradient of the output, as rows.
        kept: where the squares are taken from, as rows.
        eigenvalues: one flat vector of the same dtype.
        plan: the layer's chunks.
        result: rows, overwritten.
    """
    doubled = [chunk.matrix(eigenvalues).mul_(2) for chunk in plan.chunks]
    totals = [torch.zeros_like(matrix) for matrix in doubled]
    linear = [chunk.channels for chunk in plan.chunks if chunk.rows.start == chunk.rows.stop]
    squares = kept.new_empty(0)
    into = grad.t()
    if plan.outputs < kept.shape[1]:
        into = grad.new_empty(plan.outputs, len(grad))
        for chunk in plan.chunks:
            into[chunk.rows].copy_(grad.t()[chunk.outputs])
    for tile in _tiles(kept):
        x, g, r = kept[tile], grad[tile], result[tile]
        torch.mul(x, x, out=squares.resize_(x.shape))
        for chunk, total, matrix in zip(plan.chunks, totals, doubled, strict=True):
            cut, own = squares[:, chunk.channels], into[chunk.rows, tile]
            total.addmm_(own, cut)
            torch.mm(own.t(), matrix, out=cut)
        torch.addcmul(g, x, squares, out=r)
        for part in linear:  # zero times an infinite output would be NaN, and no sum would show it
            r[:, part].copy_(g[:, part])
    # Each square of a chunk meets each gradient in its sums: they are finite only if all were.
    if not all(math.isfinite(total.sum().item()) for total in totals):
        return None
    return torch.cat([c.values(total) for c, total in zip(plan.chunks, totals, strict=True)])
