"""The squares as matrix products, for outputs whose channels lie next to each other in memory.

Every neuron adds `x^2 M` to the rows x of its output, where M is a sparse matrix of eigenvalues:
eigen has one column a neuron, shared one square block a group. Slices of a few channels are slow to
walk through in such rows, while a product with a small dense M runs at the speed of the processor.
So the channels are cut, between neurons, into chunks, and the rows into tiles, of which the squares
stay in the cache where much is done to them. Of an eigen layer only the y are computed, a narrow
product that is added to every (rank + 1)-th channel. Libraries compute a product with so few
outputs, and one that sums over so many rows, on a single core; cut into parts, as a batch of
products, all cores take part.

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

from quadric import kernels

_NARROW = 64
"""Channels of a chunk of eigen neurons; a neuron that is wider is left to the slices."""

_SQUARE = 32
"""Channels of a chunk of shared groups, where a group is not wider itself."""

_WIDE_SQUARE = 64
"""The same in a layer of more than 128 channels, where the calls would become many."""

_TILE = 1 << 19
"""Numbers of a tile: its squares fit the second caches of a few cores, or a shared one with ease.
Smaller ones cost more than they save: cores wait for each other at the end of every operator.
"""

_WIDE_TILE = 1 << 22
"""The same where the outputs are only some of the channels, 16 MB in float32. So little is done to
such a tile that waiting at the end of every operator costs more than squares that leave the near
caches.
"""

_PART = 1 << 15 if torch.backends.mkl.is_available() else _TILE
"""Numbers of a part of a tile, which one core takes. Without MKL torch calls the library for one
part after the other, and nothing is gained.
"""


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
    """

    channels: slice
    outputs: slice
    rows: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Of the chunk's part of M: outputs, channels."""
        return self.rows.stop - self.rows.start, self.channels.stop - self.channels.start


@dataclass(frozen=True, eq=False)  # one is the same only as itself, which is found faster
class Plan:
    """How a layer's channels are cut into chunks; made by `eigen_plan` and `shared_plan`.

    Attributes:
        chunks: one behind the other.
        places: where each eigenvalue stands among the entries of all chunks' matrices.
    """

    chunks: tuple[_Chunk, ...]
    places: Tensor

    @property
    def outputs(self) -> int:
        """How many channels something is added to."""
        return int(self.chunks[-1].rows.stop) if self.chunks else 0

    @functools.cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        return [chunk.shape for chunk in self.chunks]

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self._shapes]

    @functools.cached_property
    def _size(self) -> int:
        return sum(self._sizes)

    def matrices(self, eigenvalues: Tensor) -> list[Tensor]:
        """Each chunk's part of M, (outputs, channels)."""
        # Not `put_`, which torch refuses where algorithms have to be deterministic.
        entries = eigenvalues.new_zeros(self._size).scatter_(0, self.places, eigenvalues)
        if len(self.chunks) == 1:
            return [entries.view(self._shapes[0])]
        parts = zip(entries.split(self._sizes), self._shapes, strict=True)
        return [part.view(shape) for part, shape in parts]

    def values(self, entries: Tensor) -> Tensor:
        """Of the entries of such matrices, one behind the other, those of the eigenvalues."""
        return entries.gather(0, self.places)


class _Cutter:
    """Puts blocks of channels together into chunks."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.chunks: list[_Chunk] = []
        self.places: list[int] = []
        self.start = self.stop = self.size = self.row = 0
        self.entries: list[Entry] = []
        self.outputs: list[int] = []

    def add(self, size: int, outputs: Sequence[int], entries: Sequence[Entry]) -> None:
        """One more block, its outputs and entries counted from its first channel."""
        if self.stop - self.start + size > self.width or not self._even(outputs):
            self._cut()
        self.outputs += [self.stop + output for output in outputs]
        self.entries += [Entry(self.stop + e.feature, self.stop + e.target) for e in entries]
        self.stop += size

    def plan(self) -> Plan:
        """All that was added."""
        self._cut()
        # On the CPU whatever the default device is: the plan outlives it.
        places = torch.tensor(self.places, dtype=torch.long, device="cpu")
        return Plan(tuple(self.chunks), places)

    def _even(self, outputs: Sequence[int]) -> bool:
        """Whether the spacing of the outputs goes on into this block."""
        all_outputs = [*self.outputs, *(self.stop + output for output in outputs)]
        return len({b - a for a, b in itertools.pairwise(all_outputs)}) <= 1

    def _cut(self) -> None:
        """Ends a chunk; one of linear channels alone has no outputs."""
        if self.stop > self.start:
            step = self.outputs[1] - self.outputs[0] if len(self.outputs) > 1 else 1
            begin, end = (self.outputs[0], self.outputs[-1] + 1) if self.outputs else (0, 0)
            chunk = _Chunk(
                channels=slice(self.start, self.stop),
                outputs=slice(begin, end, step),
                rows=slice(self.row, self.row + len(self.outputs)),
            )
            self.chunks.append(chunk)
            place = {channel: i for i, channel in enumerate(self.outputs)}
            height, width = chunk.shape
            self.places += [
                self.size + place[e.target] * width + e.feature - self.start for e in self.entries
            ]
            self.size += height * width
            self.row += height
        self.start, self.outputs, self.entries = self.stop, [], []


@functools.lru_cache(maxsize=1024)
def eigen_plan(ranks: tuple[int, ...]) -> Plan | None:
    """Neurons of these ranks one behind the other, or None where M would be mostly empty."""
    if max(ranks, default=0) >= _NARROW:
        return None
    cutter = _Cutter(_NARROW)
    for rank in ranks:
        cutter.add(rank + 1, [0] if rank else [], [Entry(j, 0) for j in range(1, rank + 1)])
    return cutter.plan()


@functools.lru_cache(maxsize=1024)
def shared_plan(sizes: tuple[int, ...]) -> Plan:
    """Groups of these sizes one behind the other."""
    cutter = _Cutter(_WIDE_SQUARE if sum(sizes) > 128 else _SQUARE)
    for size in sizes:
        entries = [Entry(j, i) for i in range(size) for j in range(size)]
        cutter.add(size, range(size), entries)
    return cutter.plan()


def in_rows(tensor: Tensor, dim: int) -> bool:
    """Whether the tensor lies in memory as rows of channels, of a dtype that is served here.

    Args:
        tensor: the output of a linear map.
        dim: its channel dimension, counted from the end.
    """
    if not tensor.is_cpu or tensor.dtype not in (torch.float32, torch.float64):
        return False
    return tensor.numel() > 0 and kernels.channels_last(tensor, dim)


def as_rows(tensor: Tensor, dim: int) -> Tensor:
    """A view of the rows of such a tensor."""
    channels = tensor.shape[dim]
    return tensor.as_strided((tensor.numel() // channels, channels), (channels, 1))


def _part(channels: int) -> int:
    """The rows of a part."""
    return max(1, _PART // channels)


def _cuts(rows: int, part: int, parts: int) -> list[int]:
    """The rows of each tile of so many parts; a last one may be smaller than a part."""
    full, rest = divmod(rows, part * parts)
    sizes = (*[part * parts] * full, rest - rest % part, rest % part)
    return [size for size in sizes if size]


def _tiles(rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of each, tile by tile, and room for as many squares."""
    sizes = _cuts(len(rows), _part(rows.shape[1]), _TILE // _PART)
    room = rows.new_empty(sizes[0], rows.shape[1])
    for tile in zip(*(tensor.split(sizes) for tensor in (rows, *others)), strict=True):
        yield *tile, room[: len(tile[0])]


def _in_parts(tile: Tensor, part: int) -> Tensor:
    """A tile as a view (parts, rows, channels)."""
    rows, channels = tile.shape
    return tile.view(-1, min(part, rows), channels)


# ------------------------------------------------------------------------------------------------
# Where the outputs are only some of the channels
# ------------------------------------------------------------------------------------------------

_View = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and first number of a view."""


@dataclass(frozen=True)
class _Tile:
    """Some rows and the outputs of each chunk in them, as views (parts, channels, rows).

    Channels first: a product of so few outputs with so many rows is faster this way around.
    """

    rows: int
    numbers: _View
    outputs: tuple[_View, ...]


# A layer asks at every call, when the processor's caches are full of other things: all that can be
# known before is kept.
@functools.lru_cache(maxsize=1024)
def _views(plan: Plan, rows: int, channels: int, part: int, parts: int) -> list[_Tile]:
    """The tiles of so many rows."""
    tiles, start = [], 0
    for size in _cuts(rows, part, parts):
        inner = min(part, size)
        outer, stride = size // inner, inner * channels
        numbers = ((outer, channels, inner), (stride, 1, channels), start * channels)
        outputs = tuple(
            (
                (outer, chunk.shape[0], inner),
                (stride, chunk.outputs.step, channels),
                start * channels + chunk.outputs.start,
            )
            for chunk in plan.chunks
        )
        tiles.append(_Tile(size, numbers, outputs))
        start += size
    return tiles


def add_to_some_(out: Tensor, eigenvalues: Tensor, plan: Plan, dim: int) -> int:
    """Adds the weighted squares in place.

    Args:
        out: a tensor that lies in rows.
        eigenvalues: one flat vector of the same dtype.
        plan: the layer's chunks.
        dim: the channel dimension.

    Returns:
        How many rows are done: all, or fewer where a square is not finite, and none behind it.
    """
    channels, first, done = out.shape[dim], out.storage_offset(), 0
    matrices = plan.matrices(eigenvalues)
    part = _part(channels)
    for tile in _views(plan, out.numel() // channels, channels, part, _WIDE_TILE // _PART):
        shape, strides, start = tile.numbers
        x = out.as_strided(shape, strides, first + start)
        squares = torch.mul(x, x)
        sums = []
        for chunk, matrix in zip(plan.chunks, matrices, strict=True):
            own = squares[:, chunk.channels] if len(matrices) > 1 else squares
            each = torch.bmm(matrix.expand(shape[0], -1, -1), own)
            # A square meets each output of its chunk: one that is not finite shows in the first.
            if len(matrix) and not math.isfinite(each.select(1, 0).sum().item()):
                return done
            sums.append(each)
        for (shape, strides, start), each in zip(tile.outputs, sums, strict=True):
            out.as_strided(shape, strides, first + start).add_(each)
        done += tile.rows
    return done


# ------------------------------------------------------------------------------------------------
# Where they are all channels
# ------------------------------------------------------------------------------------------------


def add_to_all(out: Tensor, eigenvalues: Tensor, plan: Plan, result: Tensor) -> int:
    """Writes the rows `out` with the weighted squares added into `result`, which may be `out`.

    Args:
        out: rows of channels.
        eigenvalues: one flat vector of the same dtype.
        plan: the layer's chunks.
        result: rows.

    Returns:
        How many rows are done: all, or fewer where a square is not finite, and none behind it.
    """
    matrices = plan.matrices(eigenvalues)
    copied = result.data_ptr() != out.data_ptr()
    done = 0
    for x, r, squares in _tiles(out, result):
        torch.mul(x, x, out=squares)
        if not math.isfinite(squares.sum().item()):
            return done
        for chunk, matrix in zip(plan.chunks, matrices, strict=True):
            cut = chunk.channels
            if copied:
                torch.mm(squares[:, cut], matrix.t(), out=r[:, cut])
            else:
                r[:, cut].addmm_(squares[:, cut], matrix.t())
        if copied:
            r.add_(x)
        done += len(x)
    return done


# ------------------------------------------------------------------------------------------------


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
    doubled = plan.matrices(eigenvalues * 2)
    linear = [chunk.channels for chunk in plan.chunks if chunk.rows.start == chunk.rows.stop]
    into = grad
    if plan.outputs < kept.shape[1]:
        into = grad.new_empty(len(grad), plan.outputs)
        for chunk in plan.chunks:
            into[:, chunk.rows].copy_(grad[:, chunk.outputs])
    part = _part(kept.shape[1])
    most = min(-(-len(kept) // part), _TILE // _PART)
    totals = [kept.new_zeros(most, *chunk.shape) for chunk in plan.chunks]
    for x, g, own, r, squares in _tiles(kept, grad, into, result):
        torch.mul(x, x, out=squares)
        left, right = _in_parts(own, part).transpose(1, 2), _in_parts(squares, part)
        for chunk, total, matrix in zip(plan.chunks, totals, doubled, strict=True):
            total[: len(left)].baddbmm_(left[:, chunk.rows], right[:, :, chunk.channels])
            torch.mm(own[:, chunk.rows], matrix, out=squares[:, chunk.channels])
        torch.addcmul(g, x, squares, out=r)
        for cut in linear:  # zero times an infinite output would be NaN, and no sum would show it
            r[:, cut].copy_(g[:, cut])
    sums = torch.cat([total.sum(0).view(-1) for total in totals])
    # Each square of a chunk meets each gradient in its sums: they are finite only if all were.
    return plan.values(sums) if math.isfinite(sums.sum().item()) else None
