"""z + S z^2 as matrix products, for a machine without a compiler.

Where the channels of one position lie next to each other in memory (matrices, channels_last), views
of a few channels are slow to walk through, while a product with a small dense S is fast. So the
channels are cut between blocks into chunks, and each chunk's squares are multiplied by its part of
S. Full blocks change all channels: the product is added to the rows where they lie. Star blocks
change a few: their product has few outputs, which a library computes on one core. So does a product
that sums over many rows. Cut into parts, as a batch of products, all cores take part.

A dense product multiplies every square by zero somewhere, which is NaN for an infinite one, while
the formula keeps it to its own block. `torch_views` does rows whose squares are not finite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quadric.ops import torch_views
from quadric.ops.blocks import Blocks

_WIDEST = 64
"""Channels of a chunk of star blocks, and of a full block."""

_TILE = 1 << 20
"""Numbers that are squared at once: the squares stay in the near caches until they are used."""

_STAR_TILE = 1 << 22
"""The same for the forward pass of star blocks, which does too little to each tile for more."""

_PART = 1 << 15 if torch.backends.mkl.is_available() else _STAR_TILE
"""Numbers of one product of a batch. Without MKL torch computes a batch one by one."""


_SMALL = 1 << 16
"""Numbers of a matrix below which calls cost more than arithmetic."""

_NARROW = 128
"""Channels up to which a small layer's S is multiplied as one dense matrix."""


@dataclass(frozen=True)
class Chunk:
    """Neighboring blocks as one dense part of S."""

    channels: slice  # their channels
    outputs: slice  # those of them that receive squares, evenly spaced
    eigenvalues: slice  # their part of the eigenvalue vector
    shape: tuple[int, int]  # of the part of S: outputs, channels
    places: Tensor  # where each eigenvalue stands in that part, flattened

    def matrix(self, eigenvalues: Tensor) -> Tensor:
        """This part of S."""
        flat = eigenvalues.new_zeros(math.prod(self.shape))
        return flat.scatter(0, self.places, eigenvalues[self.eigenvalues]).view(self.shape)


@functools.lru_cache(maxsize=1024)
def chunks_of(blocks: Blocks) -> tuple[Chunk, ...]:
    """The chunks of a layer; none where products would not pay or do not fit.

    Grouped convolutions, whose blocks may be tiny, and blocks wider than a chunk have none.
    """
    if blocks.groups > 1 or blocks.size > _WIDEST or not blocks.num_eigenvalues:
        return ()
    step = blocks.size if blocks.shape == "star" else 1
    places, table = list(blocks.entries()), blocks.table
    # A full block's product is wasted on the other blocks of its chunk, but many calls cost more.
    full = 16 if blocks.channels <= 128 else 32
    per_chunk = max(1, (_WIDEST if blocks.shape == "star" else full) // blocks.size)
    chunks = []
    for first in range(0, len(table), per_chunk):
        rows = table[first : first + per_chunk]
        start, stop = rows[0][0], rows[-1][0] + rows[-1][1]
        after = table[first + per_chunk :]
        begin, end = rows[0][2], after[0][2] if after else blocks.num_eigenvalues
        shape = (-(-(stop - start) // step), stop - start)
        at = [(o - start) // step * shape[1] + f - start for o, f in places[begin:end]]
        # On the CPU whatever the default device is: a chunk outlives it.
        index = torch.tensor(at, dtype=torch.long, device="cpu")
        outputs = slice(start, stop, step)
        chunks.append(Chunk(slice(start, stop), outputs, slice(begin, end), shape, index))
    return tuple(chunks)


def as_rows(tensor: Tensor, channels: int) -> Tensor:
    """A view (positions, channels) of a tensor whose channels lie next to each other in memory."""
    return tensor.as_strided((tensor.numel() // channels, channels), (channels, 1))


def _tiles(rows: int, channels: int, numbers: int) -> Iterator[tuple[slice, int]]:
    """Rows to handle at once, and how many of them make one product of a batch."""
    part = max(1, _PART // channels)
    tile = max(1, numbers // (channels * part)) * part
    whole = rows - rows % part
    for start in range(0, whole, tile):
        yield slice(start, min(start + tile, whole)), part
    if whole < rows:
        yield slice(whole, rows), rows - whole


def _in_parts(tile: Tensor, part: int) -> Tensor:
    """A view (parts, channels, rows) of some rows."""
    parts: Tensor = tile.unflatten(0, (-1, part)).transpose(1, 2)
    return parts


def forward(z: Tensor, out: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> None:
    """Writes z + S z^2 into `out`, which may be `z` itself."""
    if out is not z:
        out.copy_(z)
    lam, chunks = eigenvalues.to(out.dtype), chunks_of(blocks)
    matrices = [chunk.matrix(lam) for chunk in chunks]
    rows = as_rows(out, out.shape[dim])
    star = blocks.shape == "star"
    for tile, part in _tiles(len(rows), rows.shape[1], _STAR_TILE if star else _TILE):
        own = rows[tile]
        if star:
            done = _add_to_heads(own, part, chunks, matrices)
        else:
            done = _add_to_all(own, chunks, matrices)
        if not done:
            torch_views.forward(own, own, eigenvalues, blocks, -1)


def _add_to_heads(
    rows: Tensor, part: int, chunks: tuple[Chunk, ...], matrices: list[Tensor]
) -> bool:
    """Adds the squares of star blocks; False, and nothing done, where one is not finite."""
    x = _in_parts(rows, part)
    squares = x * x
    sums = [
        torch.bmm(matrix.expand(len(x), -1, -1), squares[:, chunk.channels])
        for chunk, matrix in zip(chunks, matrices, strict=True)
    ]
    # A square meets each output of its chunk: one that is not finite shows in the first.
    if not all(math.isfinite(each.select(1, 0).sum().item()) for each in sums):
        return False
    for chunk, each in zip(chunks, sums, strict=True):
        x[:, chunk.outputs].add_(each)
    return True


def _add_to_all(rows: Tensor, chunks: tuple[Chunk, ...], matrices: list[Tensor]) -> bool:
    """Adds the squares of full blocks; False, and nothing done, where one is not finite."""
    squares = rows * rows
    if not math.isfinite(squares.sum().item()):
        return False
    for chunk, matrix in zip(chunks, matrices, strict=True):
        at = chunk.channels
        rows[:, at].addmm_(squares[:, at], matrix.t())
    return True


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the eigenvalues; arguments as in `torch_views.backward`."""
    if grad.dtype != kept.dtype:
        grad = grad.to(kept.dtype)
    if grad.stride() != kept.stride():
        grad = torch.empty_like(kept).copy_(grad)
    result = torch.empty_like(kept)
    chunks = chunks_of(blocks)
    doubled = [chunk.matrix(2 * eigenvalues.to(kept.dtype)) for chunk in chunks]
    g_rows, x_rows, r_rows = (as_rows(tensor, kept.shape[dim]) for tensor in (grad, kept, result))
    tiles = list(_tiles(len(x_rows), x_rows.shape[1], _TILE))
    most = max((tile.stop - tile.start) // part for tile, part in tiles)
    totals = [matrix.new_zeros(most, *matrix.shape) for matrix in doubled]
    for tile, part in tiles:
        g, x = g_rows[tile], x_rows[tile]
        squares = x * x
        for chunk, matrix, total in zip(chunks, doubled, totals, strict=True):
            own, at = g[:, chunk.outputs], squares[:, chunk.channels]
            if blocks.shape == "star":
                own = own.contiguous()  # evenly spaced channels, which no product takes
            left = _in_parts(own, part)
            total[: len(left)].baddbmm_(left, at.unflatten(0, (-1, part)))
            torch.mm(own, matrix, out=at)  # the squares are not needed any more
        torch.addcmul(g, x, squares, out=r_rows[tile])
    sums = [total.sum(0).flatten() for total in totals]
    # Each square of a chunk meets each gradient in these: they are finite only if all are.
    if not math.isfinite(sum(each.sum().item() for each in sums)):
        return torch_views.backward(grad, kept, eigenvalues, blocks, dim)
    parts = [each.gather(0, chunk.places) for chunk, each in zip(chunks, sums, strict=True)]
    return result, torch.cat(parts).to(eigenvalues.dtype)


@functools.lru_cache(maxsize=1024)
def _square_places(blocks: Blocks) -> Tensor:
    outputs, features = blocks.places()
    return outputs * blocks.channels + features


def is_small(z: Tensor, blocks: Blocks, dim: int) -> bool:
    """Whether `add_squares` is the fastest way to gradients that torch itself computes."""
    return (
        z.dim() == 2
        and dim == -1
        and z.numel() <= _SMALL
        and z.device.type == "cpu"
        and z.dtype in (torch.float32, torch.float64)
        and blocks.channels <= _NARROW
    )


def add_squares(z: Tensor, eigenvalues: Tensor, blocks: Blocks) -> Tensor | None:
    """Computes z + S z^2 of a small matrix z by four operators, which autograd differentiates.

    Small layers wait for calls, not for arithmetic: this is the way with the fewest, backward and
    for second derivatives too.
    """
    squares = z * z
    if blocks.size == 1:
        return torch.addcmul(z, squares, eigenvalues.to(z.dtype))
    if not math.isfinite(squares.detach().sum().item()):
        return None
    flat = z.new_zeros(blocks.channels * blocks.channels)
    dense = flat.scatter(0, _square_places(blocks), eigenvalues.to(z.dtype))
    return torch.addmm(z, squares, dense.view(blocks.channels, blocks.channels).t())
