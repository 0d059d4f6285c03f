"""The formula z + S z^2: any device, any dtype, any order of derivative, any transform.

This is the truth that every other path is checked against, and the path that runs where torch must
see each operation: torch.compile, torch.export, torch.func, tensor subclasses. The squares are
accumulated in float32 where the output is half precision, so that only the result can overflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadric.ops.blocks import BlockRun, Blocks


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which squares are summed: float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def block_views(tensor: Tensor, blocks: Blocks, dim: int) -> list[Tensor]:
    """Views of the blocks, one a run, of shape (groups, blocks, channels of a block)."""
    at = tensor.dim() + dim
    grouped = tensor.unflatten(at, (blocks.groups, -1))
    views = []
    for run in blocks.runs:
        part = grouped
        if len(blocks.runs) > 1:
            part = grouped.narrow(at + 1, run.start, run.stop - run.start)
        views.append(part.unflatten(at + 1, (run.count, run.size)))
    return views


def block_eigenvalues(eigenvalues: Tensor, blocks: Blocks) -> list[Tensor]:
    """The eigenvalues of each run, as (groups, blocks, eigenvalues of a block)."""
    grouped = eigenvalues.reshape(blocks.groups, -1)
    return [
        grouped[:, run.first : run.last].reshape(blocks.groups, run.count, run.per_block)
        for run in blocks.runs
    ]


def along_channels(values: Tensor, dim: int) -> Tensor:
    """Numbers per channel, shaped to broadcast over the positions after the channel dimension."""
    return values.reshape(*values.shape, *(1,) * (-1 - dim))


def mix(values: Tensor, matrices: Tensor, dim: int) -> Tensor:
    """Each block's matrix times the block's channels."""
    if dim == -1:
        return torch.einsum("...gbj,gbij->...gbi", values, matrices)
    spatial = values.shape[dim + 1 :] if dim < -1 else ()
    mixed: Tensor = torch.matmul(matrices, values.flatten(dim + 1)).unflatten(-1, spatial)
    return mixed


def block_sums(
    view: Tensor, eigenvalues: Tensor, run: BlockRun, blocks: Blocks, dim: int
) -> Tensor:
    """The weighted squares of one run, S z^2, in the dtype of accumulation."""
    x = view.to(eigenvalues.dtype)
    if blocks.shape == "star":
        features = x.narrow(dim, 1, run.size - 1)
        return (features * features * along_channels(eigenvalues, dim)).sum(dim, keepdim=True)
    if run.size == 1:
        return x * x * along_channels(eigenvalues, dim)
    return mix(x * x, eigenvalues.unflatten(-1, (run.size, run.size)), dim)


def quadratic_part(z: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> Tensor:
    """S z^2 alone, in the dtype of accumulation: star blocks give one channel per block."""
    lam = block_eigenvalues(eigenvalues.to(accumulation_dtype(z.dtype)), blocks)
    parts = [
        block_sums(view, own, run, blocks, dim).flatten(dim - 1, dim)
        for view, own, run in zip(block_views(z, blocks, dim), lam, blocks.runs, strict=True)
    ]
    both = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
    return both.flatten(dim - 1, dim)


def add_squares(z: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> Tensor:
    """Computes z + S z^2 as a new tensor."""
    total = quadratic_part(z, eigenvalues, blocks, dim)
    if blocks.shape == "full":
        return (z.to(total.dtype) + total).to(z.dtype)
    at = z.dim() + dim
    grouped = z.unflatten(at, (blocks.groups, -1))
    every = (slice(None),) * (at + 1) + (slice(None, None, blocks.size),)
    y = grouped[every].to(total.dtype) + total.unflatten(at, (blocks.groups, -1))
    mixed = torch.slice_scatter(grouped, y.to(z.dtype), at + 1, step=blocks.size)
    return mixed.flatten(at, at + 1)
