"""Several linear maps of one input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quadric.ops.linear_ops import LinearOp

_CACHED = 1 << 23
"""Numbers that one call for several maps may put out: in float32 32 MB, about a last cache."""


def fused(
    linear_op: LinearOp,
    input: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> list[Tensor]:
    """The outputs of several linear maps of one input, by one call where that is faster."""
    sizes = [linear_op.outputs(weight) for weight in weights]
    if _too_large(linear_op, input, sum(sizes)):
        return [linear_op(input, w, b) for w, b in zip(weights, biases, strict=True)]
    bias = None
    if any(b is not None for b in biases):
        each = zip(biases, weights, sizes, strict=True)
        bias = linear_op.stack([w.new_zeros(size) if b is None else b for b, w, size in each])
    out = linear_op(input, linear_op.stack(weights), bias)
    dim = out.dim() + linear_op.channel_dim
    groups = linear_op.groups
    if groups == 1:
        return list(out.split(sizes, dim))
    parts = out.unflatten(dim, (groups, -1)).split([size // groups for size in sizes], dim + 1)
    return [part.flatten(dim, dim + 1) for part in parts]


def _too_large(linear_op: LinearOp, input: Tensor, outputs: int) -> bool:
    """Whether the outputs of one call would leave the processor's cache before they are used.

    A compiled graph must not depend on the size of a batch.
    """
    if torch.compiler.is_compiling() or input.device.type != "cpu" or input.numel() == 0:
        return False
    return input.numel() // input.shape[linear_op.channel_dim] * outputs > _CACHED
