"""z + S z^2 and its gradients in one pass each, as Triton kernels for NVIDIA GPUs.

One pair of kernels serves star and full blocks, every rank, every memory layout and every dtype
whose squares are summed in float32. A program handles a tile: some positions, times some lanes. A
lane is one output channel of the forward kernel, or one channel of the backward kernel, with the
channels that it has to do with. They are `count` neighbors; `gpu.py` lists them in tables, which
come from `blocks.py`. So a kernel never works out where an eigenvalue stands.

A table has the columns channel, first neighbor, count, first eigenvalue, step between eigenvalues.
A lane without a channel (-1) does nothing. A position lies in a plane: channels are
`channel_stride` apart, positions `position_stride`, planes `plane_stride`. Matrices and
channels_last images are one plane.

Every channel that a tile reads belongs to blocks that no other tile writes: so the result may be
the input itself. No sum depends on the order in which programs run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    z,
    out,
    eigenvalues,
    table,
    inner,
    plane_stride,
    position_stride,
    channel_stride,
    MOST: tl.constexpr,
    POSITIONS: tl.constexpr,
    LANES: tl.constexpr,
):
    """out_c = z_c + sum over the neighbors j of c: lambda_cj z_j^2."""
    width = tl.num_programs(1) * LANES
    lane = table + tl.program_id(1) * LANES + tl.arange(0, LANES)
    own, first, count = tl.load(lane), tl.load(lane + width), tl.load(lane + 2 * width)
    weight, step = tl.load(lane + 3 * width), tl.load(lane + 4 * width)

    tiles = tl.cdiv(inner, POSITIONS)
    start = (tl.program_id(0) % tiles) * POSITIONS
    base = (tl.program_id(0) // tiles).to(tl.int64) * plane_stride
    base += start.to(tl.int64) * position_stride
    position = tl.arange(0, POSITIONS)
    inside = (start + position < inner)[:, None]
    at = (position * position_stride)[:, None]

    sums = tl.zeros([POSITIONS, LANES], tl.float32)
    for j in range(MOST):
        wanted = j < count
        value = tl.load(eigenvalues + weight + j * step, mask=wanted, other=0).to(tl.float32)
        neighbor = at + ((first + j) * channel_stride)[None, :]
        x = tl.load(z + base + neighbor, mask=inside & wanted[None, :], other=0).to(tl.float32)
        sums += x * x * value[None, :]

    mask = inside & (own >= 0)[None, :]
    target = at + (own * channel_stride)[None, :]
    sums += tl.load(z + base + target, mask=mask, other=0).to(tl.float32)
    # Where out is z, all threads of the program have read before one writes.
    tl.debug_barrier()
    tl.store(out + base + target, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def backward(
    grad,
    kept,
    result,
    eigenvalues,
    totals,
    table,
    inner,
    num_tiles,
    num_eigenvalues,
    plane_stride,
    position_stride,
    channel_stride,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    POSITIONS: tl.constexpr,
    LANES: tl.constexpr,
):
    """dz_c = g_c + 2 z_c sum lambda_ic g_i over the outputs i that c is squared for.

    The gradient of lambda_ic is the sum of g_i z_c^2 over all positions. Each program adds up its
    own tiles and writes one row of `totals`.
    """
    width = tl.num_programs(1) * LANES
    lane = table + tl.program_id(1) * LANES + tl.arange(0, LANES)
    own, first, count = tl.load(lane), tl.load(lane + width), tl.load(lane + 2 * width)
    weight, step = tl.load(lane + 3 * width), tl.load(lane + 4 * width)
    tiles = tl.cdiv(inner, POSITIONS)
    position = tl.arange(0, POSITIONS)
    at = (position * position_stride)[:, None]
    target = at + (own * channel_stride)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, LANES], tl.float32)

    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        start = (tile % tiles) * POSITIONS
        base = (tile // tiles).to(tl.int64) * plane_stride + start.to(tl.int64) * position_stride
        inside = (start + position < inner)[:, None]
        # The first channel of a star takes part in no square: it may be infinite.
        mask = inside & (count > 0)[None, :]
        x = tl.load(kept + base + target, mask=mask, other=0).to(tl.float32)
        back = tl.zeros([POSITIONS, LANES], tl.float32)
        for i in range(MOST):
            wanted = i < count
            value = tl.load(eigenvalues + weight + i * step, mask=wanted, other=0).to(tl.float32)
            neighbor = at + ((first + i) * channel_stride)[None, :]
            g = tl.load(grad + base + neighbor, mask=inside & wanted[None, :], other=0)
            g = g.to(tl.float32)
            back += g * value[None, :]
            part = tl.sum(g * x * x, 0)
            total += tl.where(row == i, part[None, :], 0)
        mask = inside & (own >= 0)[None, :]
        g = tl.load(grad + base + target, mask=mask, other=0).to(tl.float32)
        back = g + 2 * x * back
        tl.store(result + base + target, back.to(result.dtype.element_ty), mask=mask)

    place = tl.program_id(0).to(tl.int64) * num_eigenvalues + weight[None, :] + row * step[None, :]
    tl.store(totals + place, total, mask=row < count[None, :])
