"""z + S z^2 and its gradients by torch's own operators on views of the blocks.

The plain path for any device, dtype and memory layout: no compiler is needed, nothing is kept but
the layer's own output. It has the formula of `reference.py`, in place, and its gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadric.ops.blocks import Blocks
from quadric.ops.reference import (
    accumulation_dtype,
    along_channels,
    block_eigenvalues,
    block_sums,
    block_views,
    mix,
)


def forward(z: Tensor, out: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> None:
    """Writes z + S z^2 into `out`, which may be `z` itself."""
    if out is not z:
        out.copy_(z)
    dtype = accumulation_dtype(out.dtype)
    lam = block_eigenvalues(eigenvalues.to(dtype), blocks)
    for view, own, run in zip(block_views(out, blocks, dim), lam, blocks.runs, strict=True):
        sums = block_sums(view, own, run, blocks, dim)
        target = view.narrow(dim, 0, 1) if blocks.shape == "star" else view
        if dtype == out.dtype:
            target.add_(sums)
        else:
            target.copy_(target.to(dtype) + sums)


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the eigenvalues.

    With y = z + S z^2: dz_j = g_j + 2 z_j sum_i S_ij g_i, and dS_ij = sum g_i z_j^2.
    """
    dtype = accumulation_dtype(kept.dtype)
    result = torch.empty_like(kept)
    sums = []
    views = zip(
        *(block_views(tensor, blocks, dim) for tensor in (grad, kept, result)),
        block_eigenvalues(eigenvalues.to(dtype), blocks),
        blocks.runs,
        strict=True,
    )
    for of_grad, of_kept, of_result, lam, run in views:
        g, x = of_grad.to(dtype), of_kept.to(dtype)
        if blocks.shape == "star":
            of_result.narrow(dim, 0, 1).copy_(g.narrow(dim, 0, 1))
            features = x.narrow(dim, 1, run.size - 1)
            product = g.narrow(dim, 0, 1) * features
            sums.append(_sum_positions(product * features, dim))
            rest = g.narrow(dim, 1, run.size - 1)
            back = torch.addcmul(rest, product, along_channels(lam, dim), value=2)
            of_result.narrow(dim, 1, run.size - 1).copy_(back)
        elif run.size == 1:
            product = g * x
            sums.append(_sum_positions(product * x, dim))
            of_result.copy_(torch.addcmul(g, product, along_channels(lam, dim), value=2))
        else:
            matrices = lam.unflatten(-1, (run.size, run.size))
            sums.append(_outer(g, x * x, dim).flatten(2))
            back = mix(g, matrices.transpose(-1, -2), dim)
            of_result.copy_(torch.addcmul(g, x, back, value=2))
    gradient = torch.cat([part.flatten(1) for part in sums], 1).flatten()
    return result, gradient.to(eigenvalues.dtype)


def _sum_positions(values: Tensor, dim: int) -> Tensor:
    """Sums everything but (groups, blocks, channels of a block)."""
    end = values.dim() + dim + 1
    others = [d for d in range(values.dim()) if not end - 3 <= d < end]
    return values.sum(others) if others else values


def _outer(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """The sum over all positions of left_i right_j: (groups, blocks, size, size)."""
    end = left.dim() + dim + 1
    at = (end - 3, end - 2, end - 1)
    moved = [tensor.movedim(at, (0, 1, 2)) for tensor in (left, right)]
    # A single vector has no position to sum over.
    a, b = (t.flatten(3) if t.dim() > 3 else t.unsqueeze(-1) for t in moved)
    return torch.matmul(a, b.transpose(-1, -2))
