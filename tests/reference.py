"""The truth the library is tested against: slow formulas in float64, one neuron at a time.

Nothing here imports Quadric. Everything is written for reading: a neuron is a function of one
patch vector `x` (the n inputs it sees), a convolution is that function applied at every output
position, and every position, tap and channel is an explicit loop. All formulas are differentiable.

Layout of an eigen layer (checked by the tests, assumed nowhere in the library's own words):
channels go neuron by neuron, `[y_0, f_01 ... f_0k, y_1, f_11 ...]`; the last neuron takes what is
left, at a smaller rank; with groups the split restarts inside every group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Position = tuple[int, ...]
GroupNeuron = Callable[[int, Tensor], Tensor]
"""A layer at one position: (index of the group, its patch of n values) -> the group's outputs."""


# ------------------------------------------------------------------------------------------------
# How channels belong to neurons
# ------------------------------------------------------------------------------------------------


def neuron_channels(channels: int, rank: int, groups: int = 1) -> list[tuple[int, list[int]]]:
    """For every neuron, the channel of its y and the channels of its features."""
    neurons: list[tuple[int, list[int]]] = []
    per_group = channels // groups
    for group in range(groups):
        first, end = group * per_group, (group + 1) * per_group
        while first < end:
            last = min(first + rank + 1, end)
            neurons.append((first, list(range(first + 1, last))))
            first = last
    return neurons


def eigenvalue_slots(channels: int, rank: int, groups: int = 1) -> dict[int, int]:
    """Feature channel -> place of its eigenvalue in the flat vector."""
    slots: dict[int, int] = {}
    for _, features in neuron_channels(channels, rank, groups):
        for channel in features:
            slots[channel] = len(slots)
    return slots


def add_quadratic(
    out: Tensor, eigenvalues: Tensor, rank: int, dim: int = 1, groups: int = 1
) -> Tensor:
    """y + sum_j lambda_j f_j^2 on an output that already holds y's linear part and the features."""
    channels = list(out.unbind(dim))
    slots = eigenvalue_slots(len(channels), rank, groups)
    result = list(channels)
    for y, features in neuron_channels(len(channels), rank, groups):
        for feature in features:
            result[y] = result[y] + eigenvalues[slots[feature]] * channels[feature] ** 2
    return torch.stack(result, dim)


# ------------------------------------------------------------------------------------------------
# The eigen neuron, as a dense quadratic form
# ------------------------------------------------------------------------------------------------


def dense_form(
    w: Tensor, b: Tensor, Q: Tensor, feature_bias: Tensor, lam: Tensor, normalize: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(M, w, b) of one neuron with features f_j = q_j'x + c_j and y = w'x + b + sum lambda_j f_j^2.

    `Q` is (k, n), one eigenvector a row. With `normalize` the squares are those of q_j / |q_j|
    (and of c_j / |q_j|, because it is f_j that is divided by the length).
    """
    n = w.numel()
    M, w_full, b_full = w.new_zeros(n, n), w, b
    for q, c, value in zip(Q, feature_bias, lam, strict=True):
        scale = value / (q @ q) if normalize else value
        M = M + scale * torch.outer(q, q)
        w_full = w_full + 2 * scale * c * q
        b_full = b_full + scale * c * c
    return M, w_full, b_full


def eigen(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eigenvalues: Tensor,
    rank: int,
    normalize: bool = False,
) -> Tensor:
    """All outputs of an eigen layer on one patch: weight (C, n), one row per output channel."""
    channels = weight.shape[0]
    offset = weight.new_zeros(channels) if bias is None else bias
    slots = eigenvalue_slots(channels, rank)
    outputs: list[Tensor] = []
    for y, features in neuron_channels(channels, rank):
        lam = eigenvalues[[slots[feature] for feature in features]]
        form = dense_form(weight[y], offset[y], weight[features], offset[features], lam, normalize)
        outputs.append(x @ form[0] @ x + form[1] @ x + form[2])
        for feature in features:
            outputs.append(weight[feature] @ x + offset[feature])
    return torch.stack(outputs)


def transposed_rows(weight: Tensor, groups: int) -> Tensor:
    """The filter of every output channel of a transposed convolution, (C, C_in/groups * taps)."""
    return torch.cat([part.transpose(0, 1).flatten(1) for part in weight.chunk(groups)])


# ------------------------------------------------------------------------------------------------
# Applying a neuron over vectors, patches, and zero-stuffed (transposed) patches
# ------------------------------------------------------------------------------------------------


def over_vectors(neuron: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """`neuron` on every vector along the last dimension."""
    vectors = inputs.reshape(-1, inputs.shape[-1])
    outputs = torch.stack([neuron(x) for x in vectors])
    return outputs.reshape(*inputs.shape[:-1], -1)


def over_patches(
    neuron: GroupNeuron,
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """`neuron(group, patch)` at every output position of a convolution.

    A patch is flattened as torch flattens a filter: input channel first, then the taps. `inputs`
    is (N, C, *space) or unbatched (C, *space).
    """
    dims = len(kernel_size)
    if inputs.dim() == dims + 1:
        return over_patches(
            neuron, inputs[None], kernel_size, stride, padding, dilation, groups, padding_mode
        )[0]
    steps, gaps = _each(stride, dims), _each(dilation, dims)
    sides = padding_sides(padding, kernel_size, gaps)
    space = inputs.shape[2:]
    out_space = [
        (space[d] + sum(sides[d]) - gaps[d] * (kernel_size[d] - 1) - 1) // steps[d] + 1
        for d in range(dims)
    ]
    samples: list[Tensor] = []
    for image in inputs:
        columns: list[Tensor] = []
        for position in _positions(out_space):
            outputs: list[Tensor] = []
            for group, part in enumerate(image.chunk(groups)):
                patch = [
                    _read(part[channel], source, padding_mode)
                    for channel in range(part.shape[0])
                    for source in _taps(position, kernel_size, steps, gaps, sides)
                ]
                outputs.append(neuron(group, torch.stack(patch)))
            columns.append(torch.cat(outputs))
        samples.append(torch.stack(columns, dim=1).reshape(-1, *out_space))
    return torch.stack(samples)


def over_transposed_patches(
    neuron: GroupNeuron,
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """`neuron(group, patch)` at every output position of a transposed convolution.

    The patch holds, for input channel c and tap t, the input value that tap t carries to this
    output position, or 0 where the stride left a hole: same order as the filter, not flipped.
    """
    dims = len(kernel_size)
    if inputs.dim() == dims + 1:
        return over_transposed_patches(
            neuron, inputs[None], kernel_size, stride, padding, output_padding, groups, dilation
        )[0]
    steps, pads, gaps = _each(stride, dims), _each(padding, dims), _each(dilation, dims)
    space = inputs.shape[2:]
    out_space = _transposed_space(
        space, kernel_size, steps, pads, _each(output_padding, dims), gaps
    )
    zero = inputs.new_zeros(())
    samples: list[Tensor] = []
    for image in inputs:
        columns: list[Tensor] = []
        for position in _positions(out_space):
            outputs: list[Tensor] = []
            for group, part in enumerate(image.chunk(groups)):
                patch: list[Tensor] = []
                for channel in range(part.shape[0]):
                    for tap in _positions(kernel_size):
                        moved = [position[d] + pads[d] - tap[d] * gaps[d] for d in range(dims)]
                        source = tuple(moved[d] // steps[d] for d in range(dims))
                        hit = all(
                            moved[d] % steps[d] == 0 and 0 <= source[d] < space[d]
                            for d in range(dims)
                        )
                        patch.append(part[channel][source] if hit else zero)
                outputs.append(neuron(group, torch.stack(patch)))
            columns.append(torch.cat(outputs))
        samples.append(torch.stack(columns, dim=1).reshape(-1, *out_space))
    return torch.stack(samples)


def padding_sides(
    padding: int | str | Sequence[int], kernel_size: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """How much is padded before and after, per dimension; "same" puts the odd one behind."""
    dims = len(kernel_size)
    if padding == "valid":
        return [(0, 0)] * dims
    if padding == "same":
        totals = [dilation[d] * (kernel_size[d] - 1) for d in range(dims)]
        return [(total // 2, total - total // 2) for total in totals]
    assert not isinstance(padding, str), padding
    return [(pad, pad) for pad in _each(padding, dims)]


def _taps(
    position: Position,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    sides: Sequence[tuple[int, int]],
) -> Iterator[Position]:
    """The input positions a convolution reads for one output position, in the filter's order."""
    for tap in _positions(kernel_size):
        yield tuple(
            position[d] * stride[d] - sides[d][0] + tap[d] * dilation[d]
            for d in range(len(kernel_size))
        )


def _read(plane: Tensor, source: Position, padding_mode: str) -> Tensor:
    """One value of a channel, its outside given by the padding mode."""
    place: list[int] = []
    for index, size in zip(source, plane.shape, strict=True):
        if 0 <= index < size:
            place.append(index)
        elif padding_mode == "zeros":
            return plane.new_zeros(())
        elif padding_mode == "replicate":
            place.append(0 if index < 0 else size - 1)
        elif padding_mode == "circular":
            place.append(index % size)
        elif padding_mode == "reflect":
            place.append(-index if index < 0 else 2 * (size - 1) - index)
        else:
            raise AssertionError(f"the reference has no padding mode {padding_mode!r}")
    return plane[tuple(place)]


def _transposed_space(
    space: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    return [
        (space[d] - 1) * stride[d]
        - 2 * padding[d]
        + dilation[d] * (kernel_size[d] - 1)
        + output_padding[d]
        + 1
        for d in range(len(kernel_size))
    ]


def _positions(space: Sequence[int]) -> Iterator[Position]:
    return itertools.product(*(range(size) for size in space))


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


# ------------------------------------------------------------------------------------------------
# The other neurons of the registry: each gives the O outputs of one group on one patch x.
# Every parameter is given per output: weights (O, n), forms (O, n, n), factors (O, k, n).
# ------------------------------------------------------------------------------------------------


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """w'x + b."""
    return torch.stack([w[o] @ x + _at(b, o) for o in range(len(w))])


def general(x: Tensor, M: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x'Mx + w'x + b."""
    return torch.stack([x @ M[o] @ x + w[o] @ x + _at(b, o) for o in range(len(w))])


def pure(x: Tensor, M: Tensor, b: Tensor | None) -> Tensor:
    """x'Mx (+ b)."""
    return torch.stack([x @ M[o] @ x + _at(b, o) for o in range(len(M))])


def qres(x: Tensor, w1: Tensor, w2: Tensor, b: Tensor | None) -> Tensor:
    """(w1'x)(w2'x) + w1'x + b."""
    return torch.stack([(w1[o] @ x) * (w2[o] @ x) + w1[o] @ x + _at(b, o) for o in range(len(w1))])


def lowrank(x: Tensor, Q1: Tensor, Q2: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x'Q1 Q2'x + w'x + b, Q1 and Q2 as (O, k, n)."""
    outputs = []
    for o in range(len(w)):
        y = w[o] @ x + _at(b, o)
        for q1, q2 in zip(Q1[o], Q2[o], strict=True):
            y = y + (q1 @ x) * (q2 @ x)
        outputs.append(y)
    return torch.stack(outputs)


def fan(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    w3: Tensor,
    c: Tensor | None,
) -> Tensor:
    """(w1'x + b1)(w2'x + b2) + w3'(x*x) + c; a layer without bias keeps the constant b2 = 1."""
    return torch.stack(
        [
            (w1[o] @ x + _at(b1, o)) * (w2[o] @ x + _at(b2, o)) + w3[o] @ (x * x) + _at(c, o)
            for o in range(len(w1))
        ]
    )


def quadralib(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor | None) -> Tensor:
    """(w1'x)(w2'x) + w3'x + b."""
    return torch.stack([(w1[o] @ x) * (w2[o] @ x) + w3[o] @ x + _at(b, o) for o in range(len(w1))])


def kervolution(
    x: Tensor, w: Tensor, c: Tensor | float = 1.0, p: int = 3, b: Tensor | None = None
) -> Tensor:
    """(w'x + c)^p + b, the bias outside the power; c one number, or one per output."""
    outputs = []
    for o in range(len(w)):
        shift = c[o] if isinstance(c, Tensor) and c.dim() else c
        base = w[o] @ x + shift
        outputs.append(math.prod([base] * p, start=torch.ones_like(base)) + _at(b, o))
    return torch.stack(outputs)


def quadenhancer(x: Tensor, W: Tensor, theta: Tensor, b: Tensor | None) -> Tensor:
    """z = Wx; z*(1 + sum_i theta_i*roll(z, i)) + b, theta (s, O): row i-1 weighs the shift by i."""
    z = torch.stack([w @ x for w in W])
    outputs = []
    for o in range(len(z)):
        factor = torch.ones_like(z[0])
        for shift in range(1, len(theta) + 1):
            factor = factor + theta[shift - 1, o] * z[(o - shift) % len(z)]
        outputs.append(z[o] * factor + _at(b, o))
    return torch.stack(outputs)


def bilinear(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
    """(w1'x + b1)(w2'x + b2); a layer without bias keeps the constant b2 = 1."""
    outputs = [(w1[o] @ x + _at(b1, o)) * (w2[o] @ x + _at(b2, o)) for o in range(len(w1))]
    return torch.stack(outputs)


def glu(
    x: Tensor, act: str, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None
) -> Tensor:
    """act(w1'x + b1)(w2'x + b2)."""
    outputs = []
    for o in range(len(w1)):
        a = w1[o] @ x + _at(b1, o)
        if act == "sigmoid":
            gate = 1 / (1 + torch.exp(-a))
        elif act == "silu":
            gate = a / (1 + torch.exp(-a))
        elif act == "gelu":
            gate = a * (1 + torch.erf(a / math.sqrt(2))) / 2
        else:
            gate = torch.minimum(torch.maximum(a, 0 * a), 6 + 0 * a)
        outputs.append(gate * (w2[o] @ x + _at(b2, o)))
    return torch.stack(outputs)


def cross(x: Tensor, W: Tensor, b: Tensor | None, U: Tensor, V: Tensor) -> Tensor:
    """z (1 + U V'z) with z = Wx + b: U (O, k) one row per output, V (k, O) one row per feature."""
    z = torch.stack([W[o] @ x + _at(b, o) for o in range(len(W))])
    features = [sum_of(row[j] * z[j] for j in range(len(z))) for row in V]
    return torch.stack(
        [
            z[o] * (1 + sum_of(u * f for u, f in zip(U[o], features, strict=True)))
            for o in range(len(z))
        ]
    )


def symmetric(x: Tensor, Q: Tensor, lam: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x'Q L Q'x + w'x + b, y alone: Q (O, k, n), lam (O, k)."""
    outputs = []
    for o in range(len(w)):
        y = w[o] @ x + _at(b, o)
        for q, value in zip(Q[o], lam[o], strict=True):
            y = y + value * (q @ x) ** 2
        outputs.append(y)
    return torch.stack(outputs)


def square(x: Tensor, w: Tensor, b: Tensor | None, a: Tensor) -> Tensor:
    """z + a*z^2 with z = w'x + b and one a per output."""
    outputs = []
    for o in range(len(w)):
        z = w[o] @ x + _at(b, o)
        outputs.append(z + a[o] * z * z)
    return torch.stack(outputs)


def shared(x: Tensor, W: Tensor, b: Tensor | None, eigenvalues: Tensor, rank: int) -> Tensor:
    """z_i + sum_j L_ij z_j^2, j over the outputs of i's group of `rank` (the last may be smaller).

    `eigenvalues` is flat: group by group, and in a group row by row.
    """
    z = [W[o] @ x + _at(b, o) for o in range(len(W))]
    outputs: list[Tensor] = []
    used = 0
    for first in range(0, len(z), rank):
        members = range(first, min(first + rank, len(z)))
        for i in members:
            y = z[i]
            for j in members:
                y = y + eigenvalues[used] * z[j] ** 2
                used += 1
            outputs.append(y)
    assert used == eigenvalues.numel(), (used, eigenvalues.shape)
    return torch.stack(outputs)


def _at(b: Tensor | None, o: int) -> Tensor | float:
    return 0.0 if b is None else b[o]


def sum_of(terms: Iterator[Tensor]) -> Tensor:
    """Left to right, starting from the first (so that no zero of another dtype enters)."""
    total = next(terms)
    for term in terms:
        total = total + term
    return total
