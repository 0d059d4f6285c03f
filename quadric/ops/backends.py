"""The four ways to compute the squares eagerly, and which of them fits a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from quadric.ops import cpu_matmul, gpu, native, torch_views
from quadric.ops.blocks import Blocks


class Backend(NamedTuple):
    """How the squares and their gradients are computed."""

    # Writes z + S z^2 of its first argument into its second.
    forward: Callable[[Tensor, Tensor, Tensor, Blocks, int], None]
    # The gradients of z and of the eigenvalues.
    backward: Callable[[Tensor, Tensor, Tensor, Blocks, int], tuple[Tensor, Tensor]]


NATIVE = Backend(native.forward, native.backward)
CPU_MATMUL = Backend(cpu_matmul.forward, cpu_matmul.backward)
GPU = Backend(gpu.forward, gpu.backward)
TORCH_VIEWS = Backend(torch_views.forward, torch_views.backward)

_FORMATS = {(4, -3): torch.channels_last, (5, -4): torch.channels_last_3d}


def backend_for(z: Tensor, blocks: Blocks, dim: int) -> Backend:
    """The backend for a linear map's output; its device, dtype and memory layout decide."""
    if z.numel() == 0:
        return TORCH_VIEWS
    if z.is_cuda or gpu.INTERPRETED:
        fits = (z.is_contiguous() or _in_rows(z, dim)) and gpu.takes(z, blocks, dim)
        return GPU if fits else TORCH_VIEWS
    if not z.is_cpu or blocks.size == 1:
        return TORCH_VIEWS
    if native.serves(z.dtype) and (z.is_contiguous() or _in_rows(z, dim)):
        return NATIVE
    if (
        z.dtype in (torch.float32, torch.float64)
        and _in_rows(z, dim)
        and cpu_matmul.chunks_of(blocks)
    ):
        return CPU_MATMUL
    return TORCH_VIEWS


def _in_rows(tensor: Tensor, dim: int) -> bool:
    """Whether the channels of one position lie next to each other in memory, without gaps."""
    if dim == -1:
        return tensor.is_contiguous()
    known = _FORMATS.get((tensor.dim(), dim))
    if known is not None:
        return tensor.is_contiguous(memory_format=known)
    return tensor.movedim(dim, -1).is_contiguous()
