"""What the tests of ops/ share: cases of blocks, and the formula as a dense float64 product."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quadric.ops.blocks import Blocks

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


needs_triton = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="triton is not installed: pip install 'quadric[triton]'",
)


def slow_entries(blocks: Blocks) -> list[tuple[int, int]]:
    """(output, feature) of each eigenvalue, counted channel by channel."""
    found, per_group = [], blocks.channels // blocks.groups
    for group in range(blocks.groups):
        for start in range(0, per_group, blocks.size):
            block = [
                group * per_group + c for c in range(start, min(start + blocks.size, per_group))
            ]
            outputs = block[:1] if blocks.shape == "star" else block
            for output in outputs:
                features = block[1:] if blocks.shape == "star" else block
                found += [(output, feature) for feature in features]
    return found


def formula(z: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> Tensor:
    """z + S z^2 in float64, entry by entry, differentiable."""
    channels = list(z.double().unbind(dim))
    out = list(channels)
    for lam, (i, j) in zip(eigenvalues.double(), slow_entries(blocks), strict=True):
        out[i] = out[i] + lam * channels[j] * channels[j]
    # A layer of one output has no eigenvalues; they belong to the graph all the same.
    return torch.stack(out, dim) + eigenvalues.double().sum() * 0


def data(
    blocks: Blocks, shape: tuple[int, ...], *, channels_last: bool = False, dtype: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """z, eigenvalues and a gradient of the output."""
    z, grad = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    if channels_last:
        z = z.contiguous(memory_format=FORMATS[z.dim()])
    return z, torch.randn(blocks.num_eigenvalues, dtype=dtype), grad


class Operations(TorchDispatchMode):
    """Counts the operators that reach the dispatcher, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))
