"""Calls the Triton kernels: the squares in one pass forward and one backward on NVIDIA GPUs.

They run for CUDA tensors of float32, bfloat16 and float16 where `triton` can be imported (torch
brings it on Linux) and the GPU is of a kind that the kernels were compiled for and looked at
(compute capability 8.0 and later). At the first call on a device a small case is compared with
torch's own operators. Where one of this fails, those run, and `reason` says why. The switch is that
of the CPU's kernels: `quadric.use_kernels(False)` or `QUADRIC_KERNELS=0`.

With `TRITON_INTERPRET=1` in the environment, Triton runs the same kernels on the CPU, number by
number: that is how they are tested without a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quadric.ops import native, torch_views
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes whose squares are summed in float32."""

OLDEST = (8, 0)
"""The compute capability from which on the kernels run."""

REGISTERS = {"forward": 64, "backward": 128}
"""Registers of a thread at most. A processor has 65,536 of them."""

_OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}  # 256 threads

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether tensors of the CPU go to the kernels too."""

_TILE = 1024
"""Numbers of a tile: 4 for each thread, so that several programs fit a processor at once."""

_LANES = 32
"""Lanes of a tile, unless a block has more."""

_WIDEST = 64
"""Channels of a block above which torch's own operators run."""

_PROGRAMS = 2048
"""Backward programs at most; each keeps sums of its own for the gradients of the eigenvalues."""


class Lanes(NamedTuple):
    """The channels of a layer, as one of the kernels handles them."""

    table: Tensor  # five columns, see triton_kernels.py
    chunks: int  # tiles side by side
    width: int  # lanes of a tile
    most: int  # neighbors of a channel


class Layout(NamedTuple):
    """A tensor as planes of positions."""

    planes: int
    inner: int  # positions of a plane
    plane_stride: int
    position_stride: int
    channel_stride: int


def layout_of(z: Tensor, dim: int) -> Layout:
    """The layout of a tensor that is contiguous, or whose channels lie next to each other."""
    channels = z.shape[dim]
    inner = math.prod(z.shape[dim + 1 :]) if dim < -1 and z.is_contiguous() else 1
    positions = z.numel() // channels
    if inner == 1:
        return Layout(1, positions, 0, channels, 1)
    return Layout(positions // inner, inner, channels * inner, 1, inner)


def _rows(blocks: Blocks, backward: bool) -> dict[int, tuple[int, ...]]:
    """What a kernel must know of a channel, by channel: a row of the table."""
    # Backward, the first channel of a star is there too: its gradient goes through.
    own = range(blocks.channels) if backward else ()
    found: dict[int, list[tuple[int, int]]] = {channel: [] for channel in own}
    for place, (output, feature) in enumerate(blocks.entries()):
        channel, neighbor = (feature, output) if backward else (output, feature)
        found.setdefault(channel, []).append((neighbor, place))
    rows: dict[int, tuple[int, ...]] = {}
    for channel, pairs in found.items():
        # The neighbors of a channel stand side by side, their eigenvalues at equal steps.
        (first, place), *others = pairs or [(0, 0)]
        step = others[0][1] - place if others else 0
        rows[channel] = (channel, first, len(pairs), place, step)
    return rows


@functools.lru_cache(maxsize=1024)
def _lanes(blocks: Blocks, backward: bool, device: torch.device) -> Lanes:
    """The table of a layer: its channels, cut into tiles between blocks."""
    rows = _rows(blocks, backward)
    own = [[rows[c] for c in range(at, at + size) if c in rows] for at, size, _ in blocks.table]
    width = _power(max(*map(len, own), min(_LANES, len(rows))))
    tiles: list[list[tuple[int, ...]]] = [[]]
    for block in own:
        if len(tiles[-1]) + len(block) > width:
            tiles.append([])
        tiles[-1] += block
    padded = [row for tile in tiles for row in tile + [(-1, 0, 0, 0, 0)] * (width - len(tile))]
    columns = [[row[i] for row in padded] for i in range(5)]
    table = torch.tensor(columns, dtype=torch.int32, device=device)
    return Lanes(table, len(tiles), width, max(row[2] for row in rows.values()))


def _power(number: int) -> int:
    """The next power of two: Triton has no other sizes."""
    return 1 << (number - 1).bit_length()


class Launch(NamedTuple):
    """How a kernel goes over a tensor, and how it is compiled."""

    lanes: Lanes
    layout: Layout
    tiles: int  # of positions
    constants: dict[str, int]
    options: dict[str, int]


def plan(z: Tensor, blocks: Blocks, dim: int, *, backward: bool) -> Launch:
    """Cuts a tensor into tiles for one of the kernels."""
    layout, lanes = layout_of(z, dim), _lanes(blocks, backward, z.device)
    positions = _TILE // lanes.width
    if layout.position_stride == 1:  # small planes
        positions = min(positions, max(16, _power(layout.inner)))
    constants = {"MOST": lanes.most, "POSITIONS": positions, "LANES": lanes.width}
    if backward:
        constants["ROWS"] = _power(lanes.most)
    options = {**_OPTIONS, "maxnreg": REGISTERS["backward" if backward else "forward"]}
    return Launch(lanes, layout, layout.planes * -(-layout.inner // positions), constants, options)


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def forward(z: Tensor, out: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> None:
    """Writes z + S z^2 into `out`, a tensor of z's layout or `z` itself."""
    kernels = _kernels()
    if out is not z and blocks.shape == "star":  # only the first channels of blocks are written
        z = out.copy_(z)
    lanes, layout, tiles, constants, options = plan(z, blocks, dim, backward=False)
    with _on(z.device):
        kernels.forward[tiles, lanes.chunks](
            z, out, eigenvalues.detach().contiguous(), lanes.table,
            *layout[1:], **constants, **options,
        )  # fmt: skip


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the eigenvalues; arguments as in `torch_views.backward`."""
    kernels = _kernels()
    same = grad.dtype == kept.dtype and grad.stride() == kept.stride()
    if not same or grad.is_neg():  # a negative view has the memory of the tensor itself
        grad = torch.empty_like(kept).copy_(grad)
    result = torch.empty_like(kept)
    lanes, layout, tiles, constants, options = plan(kept, blocks, dim, backward=True)
    programs = min(tiles, max(1, _PROGRAMS // lanes.chunks))
    totals = torch.empty(programs, blocks.num_eigenvalues, dtype=torch.float32, device=kept.device)
    with _on(kept.device):
        kernels.backward[programs, lanes.chunks](
            grad, kept, result, eigenvalues.detach().contiguous(), totals, lanes.table,
            layout.inner, tiles, blocks.num_eigenvalues, *layout[2:],
            **constants, **options,
        )  # fmt: skip
    return result, totals.sum(0).to(eigenvalues.dtype)


def _kernels() -> Any:
    from quadric.ops import triton_kernels

    return triton_kernels


def takes(z: Tensor, blocks: Blocks, dim: int) -> bool:
    """Whether the kernels run for a tensor, which must fit `layout_of`."""
    if z.dtype not in DTYPES or not blocks.num_eigenvalues or blocks.size > _WIDEST:
        return False
    layout = layout_of(z, dim)
    # Within a tile, places are numbers of 32 bits.
    reach = blocks.channels * layout.channel_stride + _TILE * layout.position_stride
    return reach < 1 << 31 and not native.switched_off() and reason(z.device) is None


@functools.lru_cache(maxsize=64)
def reason(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device, or None if they can."""
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "this build of torch is not for NVIDIA GPUs"
        found = torch.cuda.get_device_capability(device)
        if found < OLDEST:
            return f"compute capability must be {OLDEST} or later, got {found}"
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'quadric[triton]'"
    try:
        _check(device)
    except Exception as error:  # a fast path must never be the reason that nothing runs
        return f"{type(error).__name__}: {error}"
    return None


def _check(device: torch.device) -> None:
    """Compares small cases, exact in float32, with torch's own operators."""
    for blocks in (eigen_blocks(20, 9), shared_blocks(11, 8)):
        numbers = torch.arange(3 * blocks.channels, dtype=torch.float32, device=device)
        z = (numbers % 5 - 2).reshape(3, blocks.channels)
        lam = torch.arange(blocks.num_eigenvalues, dtype=torch.float32, device=device) % 3 - 1
        found, wanted = torch.empty_like(z), torch.empty_like(z)
        forward(z, found, lam, blocks, -1)
        torch_views.forward(z, wanted, lam, blocks, -1)
        slopes = [module(z + 1, z, lam, blocks, -1) for module in (backward, torch_views.backward)]
        pairs = zip((found, *slopes[0]), (wanted, *slopes[1]), strict=True)
        if not all(torch.equal(own, other) for own, other in pairs):
            raise RuntimeError(f"the kernels failed their self-test for {blocks}")
