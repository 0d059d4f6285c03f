"""Quadratic neurons as functions of tensors.

The eigen neuron of rank k over n inputs (Chen et al., DATE 2024): `f = Q'x` (k features), `y = w'x
+ b + sum_j lambda_j f_j^2`, output `[y, f_1 … f_k]`. A layer is one ordinary matrix product or
convolution whose rows are w and Q, neuron by neuron, followed by `add_quadratic`.

Departure from the paper: a bias belongs to its channel. The feature is `f = Q'x + b_f`, and it is
that f which is squared; with b_f = 0 this is the paper's neuron.

These functions check their arguments, run the plain formula while tracing (torch.compile,
torch.export) and under torch.func, and otherwise a path that recomputes the squares in the backward
pass instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quadric.errors import InputError
from quadric.ops import add_squares, reference
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from quadric.ops.linear_ops import ConvOp, DenseOp, LinearOp, TransposedConvOp, check_real
from quadric.support.checks import check_size

__all__ = [
    "add_quadratic",
    "add_shared",
    "quadratic_conv1d",
    "quadratic_conv2d",
    "quadratic_conv3d",
    "quadratic_conv_transpose1d",
    "quadratic_conv_transpose2d",
    "quadratic_conv_transpose3d",
    "quadratic_linear",
]

IntOrInts = int | Sequence[int]


def add_quadratic(
    out: Tensor, eigenvalues: Tensor, rank: int, dim: int = 1, groups: int = 1
) -> Tensor:
    """Adds to each y the weighted squares of its features. The argument is never changed.

    Args:
        out: the output of a linear map, laid out neuron by neuron along `dim`: `[y_0, f_01 … f_0k,
            y_1, …]`. The last neuron takes the channels that are left.
        eigenvalues: one for each feature channel, in channel order.
        rank: the number of features of a neuron.
        dim: the channel dimension.
        groups: the groups of channels, in each of which the split into neurons starts again.

    Examples:
        >>> import torch
        >>> out = torch.tensor([[1.0, 2.0, 3.0]])  # one neuron: y = 1, features 2 and 3
        >>> add_quadratic(out, torch.tensor([10.0, 100.0]), rank=2)
        tensor([[941.,   2.,   3.]])
    """
    return _add(eigen_blocks, out, eigenvalues, rank, dim, groups)


def add_shared(
    out: Tensor, eigenvalues: Tensor, rank: int, dim: int = 1, groups: int = 1
) -> Tensor:
    """Adds to each output the weighted squares of all outputs of its group.

    The argument is never changed.

    Args:
        out: the output z of a linear map.
        eigenvalues: a matrix L for each group, row by row, group by group: `z_i + sum_j L_ij
            z_j^2`.
        rank: the number of outputs in a group; the last group takes what is left.
        dim: the channel dimension.
        groups: the (convolution) groups of channels, in each of which the split starts again.

    Examples:
        >>> import torch
        >>> out = torch.tensor([[1.0, 2.0]])
        >>> add_shared(out, torch.tensor([0.0, 10.0, 100.0, 0.0]), rank=2)
        tensor([[ 41., 102.]])
    """
    return _add(shared_blocks, out, eigenvalues, rank, dim, groups)


def quadratic_linear(
    input: Tensor, weight: Tensor, eigenvalues: Tensor, bias: Tensor | None = None, *, rank: int
) -> Tensor:
    """A layer of eigen neurons: `torch.nn.functional.linear`, then the squares.

    Args:
        input: `(*, in_features)`.
        weight: (out_features, in_features), rows w and Q, neuron by neuron.
        eigenvalues: one for each feature channel, in channel order.
        bias: (out_features).
        rank: the number of features of a neuron.
    """
    return _eigen(DenseOp(), input, weight, eigenvalues, bias, rank)


def _conv(spatial: int) -> Callable[..., Tensor]:
    def quadratic_conv(
        input: Tensor,
        weight: Tensor,
        eigenvalues: Tensor,
        bias: Tensor | None = None,
        stride: IntOrInts = 1,
        padding: IntOrInts | str = 0,
        dilation: IntOrInts = 1,
        groups: int = 1,
        *,
        rank: int,
    ) -> Tensor:
        steps, sides, gaps = map(_as_tuple, (stride, padding, dilation))
        kernel_size = tuple(weight.shape[2:])
        linear_op = ConvOp(spatial, steps, sides, gaps, groups, kernel_size=kernel_size)
        return _eigen(linear_op, input, weight, eigenvalues, bias, rank)

    return _named(quadratic_conv, f"conv{spatial}d")


def _conv_transpose(spatial: int) -> Callable[..., Tensor]:
    def quadratic_conv_transpose(
        input: Tensor,
        weight: Tensor,
        eigenvalues: Tensor,
        bias: Tensor | None = None,
        stride: IntOrInts = 1,
        padding: IntOrInts = 0,
        output_padding: IntOrInts = 0,
        groups: int = 1,
        dilation: IntOrInts = 1,
        *,
        rank: int,
    ) -> Tensor:
        steps, sides, ends = map(_as_tuple, (stride, padding, output_padding))
        linear_op = TransposedConvOp(spatial, steps, sides, ends, groups, _as_tuple(dilation))
        return _eigen(linear_op, input, weight, eigenvalues, bias, rank)

    return _named(quadratic_conv_transpose, f"conv_transpose{spatial}d")


def _named(function: Callable[..., Tensor], torchs: str) -> Callable[..., Tensor]:
    """A function under its public name, so that it can be pickled and looked up."""
    function.__name__ = function.__qualname__ = f"quadratic_{torchs}"
    function.__doc__ = (
        f"A layer of eigen neurons: `torch.nn.functional.{torchs}`, then the squares.\n\n"
        "Its arguments are torch's, with `eigenvalues` behind the weight, and then `rank`."
    )
    return function


quadratic_conv1d, quadratic_conv2d, quadratic_conv3d = map(_conv, (1, 2, 3))
(
    quadratic_conv_transpose1d,
    quadratic_conv_transpose2d,
    quadratic_conv_transpose3d,
) = map(_conv_transpose, (1, 2, 3))


def _add(
    make_blocks: Callable[[int, int, int], Blocks],
    out: Tensor,
    eigenvalues: Tensor,
    rank: int,
    dim: int,
    groups: int,
) -> Tensor:
    check_size("rank", rank)
    check_real("output", out)
    if not -out.dim() <= dim < out.dim():
        raise InputError(
            f"dim must be a dimension of the output of shape {tuple(out.shape)}, got {dim}: use "
            "-1 for the last"
        )
    dim = dim - out.dim() if dim >= 0 else dim
    check_groups(out.shape[dim], groups)
    blocks = make_blocks(out.shape[dim], rank, groups)
    check_real("eigenvalues", eigenvalues)
    blocks.check(eigenvalues)
    return reference.add_squares(out, eigenvalues, blocks, dim)


def _eigen(
    linear_op: LinearOp,
    input: Tensor,
    weight: Tensor,
    eigenvalues: Tensor,
    bias: Tensor | None,
    rank: int,
) -> Tensor:
    """The eigen neuron over any linear map."""
    check_size("rank", rank)
    check_real("weight", weight)
    linear_op.check(input, weight)
    blocks = eigen_blocks(linear_op.outputs(weight), rank, linear_op.groups)
    check_real("eigenvalues", eigenvalues)
    if bias is not None:
        check_real("bias", bias)
        if bias.shape != (blocks.channels,):
            raise InputError(
                f"the bias must have one number for each of the {blocks.channels} outputs, got "
                f"shape {tuple(bias.shape)}: give a vector of that length"
            )
    return add_squares(
        linear_op, blocks, linear_op.prepare(input), weight, bias, eigenvalues, False
    )


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, int | str) else tuple(value)


def check_groups(channels: int, groups: int) -> None:
    """Raises unless the channels split evenly into groups."""
    if channels % check_size("groups", groups):
        raise InputError(
            f"the number of outputs must be divisible by groups, got {channels} outputs and "
            f"{groups} groups: choose another number of groups"
        )
