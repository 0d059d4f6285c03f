"""The squares as matrix products, for outputs whose channels lie next to each other in memory.

Every neuron adds `x^2 M` to the rows x of its output, where M is a sparse (channels, channels)
matrix of eigenvalues: eigen has one column a neuron, shared one square block a group. Slices of a
few channels are slow to walk through in such rows, while a product with a small dense M runs at the
speed of the processor. So the channels are cut, between neurons, into chunks of some 64, and the
rows into tiles whose squares stay in the cache.

A dense product adds zero times every square, which for an infinite one is NaN in all outputs of the
chunk. The formula keeps it to its own neuron; rows with a square that is not finite are left to the
slices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_WIDTH = 64
"""Channels of a chunk, where neurons are not wider themselves."""

_TILE = 1 << 18
"""Numbers of a tile: its squares fit the second cache of a core or two."""


@dataclass(frozen=True)
class Entry:
    """Where an eigenvalue stands in M: it takes the square of `feature` to the output `target`."""

    feature: int
    target: int


@dataclass(frozen=True)
class _Chunk:
    """Some neighboring channels and their entries, counted from the first of them."""

    start: int
    stop: int
    first: int
    last: int
    features: Tensor
    targets: Tensor

    def matrix(self, eigenvalues: Tensor) -> Tensor:
        """The chunk's part of M."""
        size = self.stop - self.start
        matrix = eigenvalues.new_zeros(size, size)
        matrix[self.features, self.targets] = eigenvalues[self.first : self.last]
        return matrix


@dataclass(frozen=True)
class Plan:
    """How a layer's channels are cut into chunks; made by `eigen_plan` and `shared_plan`."""

    chunks: tuple[_Chunk, ...]


def _plan(sizes: Sequence[int], entries: Sequence[Sequence[Entry]]) -> Plan:
    """Blocks of channels of these sizes, each with its own entries, put together into chunks."""
    chunks: list[_Chunk] = []
    start = first = block = 0
    while block < len(sizes):
        width, kept = 0, list[Entry]()
        while block < len(sizes) and (not width or width + sizes[block] <= _WIDTH):
            kept += [Entry(e.feature + width, e.target + width) for e in entries[block]]
            width += sizes[block]
            block += 1
        # On the CPU whatever the default device is: the plan outlives it.
        features = torch.tensor([e.feature for e in kept], dtype=torch.long, device="cpu")
        targets = torch.tensor([e.target for e in kept], dtype=torch.long, device="cpu")
        chunks.append(_Chunk(start, start + width, first, first + len(kept), features, targets))
        start, first = start + width, first + len(kept)
    return Plan(tuple(chunks))


@functools.lru_cache(maxsize=1024)
def eigen_plan(ranks: tuple[int, ...]) -> Plan | None:
    """Neurons of these ranks one behind the other, or None where M would be mostly empty."""
    if max(ranks, default=0) >= _WIDTH:
        return None
    entries = [[Entry(j, 0) for j in range(1, rank + 1)] for rank in ranks]
    return _plan([rank + 1 for rank in ranks], entries)


@functools.lru_cache(maxsize=1024)
def shared_plan(sizes: tuple[int, ...]) -> Plan:
    """Groups of these sizes one behind the other."""
    entries = [[Entry(j, i) for i in range(size) for j in range(size)] for size in sizes]
    return _plan(sizes, entries)


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
        result: rows.

    Returns:
        How many rows are done: all, or those before a square that is not finite.
    """
    matrices = [chunk.matrix(eigenvalues) for chunk in plan.chunks]
    scratch = out.new_empty(0)
    for tile in _tiles(out):
        x, r = out[tile], result[tile]
        torch.mul(x, x, out=scratch.resize_(x.shape))
        if not math.isfinite(scratch.sum().item()):
            return int(tile.start)
        for chunk, matrix in zip(plan.chunks, matrices, strict=True):
            cut = slice(chunk.start, chunk.stop)
            torch.addmm(x[:, cut], scratch[:, cut], matrix, out=r[:, cut])
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
    matrices = [chunk.matrix(eigenvalues).mul_(2).t() for chunk in plan.chunks]
    sums = [torch.zeros_like(matrix) for matrix in matrices]
    scratch = kept.new_empty(0)
    for tile in _tiles(kept):
        x, g, r = kept[tile], grad[tile], result[tile]
        torch.mul(x, x, out=scratch.resize_(x.shape))
        for chunk, total, matrix in zip(plan.chunks, sums, matrices, strict=True):
            cut = slice(chunk.start, chunk.stop)
            total.addmm_(scratch[:, cut].t(), g[:, cut])
            torch.mm(g[:, cut], matrix, out=scratch[:, cut])
        torch.addcmul(g, x, scratch, out=r)
    # Each square of a chunk meets each gradient in its sums: they are finite only if all were.
    if not all(math.isfinite(total.sum().item()) for total in sums):
        return None
    pairs = zip(plan.chunks, sums, strict=True)
    return torch.cat([total[chunk.features, chunk.targets] for chunk, total in pairs])
