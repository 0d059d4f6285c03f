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

from collections.abc import Sequence

from torch import Tensor

from quadric.errors import InputError, InputTypeError
from quadric.ops import add_squares, reference
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from quadric.ops.linear_ops import ConvOp, DenseOp, LinearOp, TransposedConvOp

IntOrInts = int | Sequence[int]


def check_rank(rank: object, minimum: int = 1) -> int:
    """Returns `rank` if it is an integer >= `minimum`, else raises."""
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise InputTypeError(
            f"rank must be an integer >= {minimum}, got {rank!r} of type {type(rank).__name__}: "
            "give a whole number"
        )
    if rank < minimum:
        raise InputError(
            f"rank must be >= {minimum}, got {rank}: use a linear layer where no curvature is "
            "wanted"
        )
    return rank


def check_groups(channels: int, groups: int) -> None:
    """Raises unless the channels split evenly into groups."""
    if isinstance(groups, bool) or not isinstance(groups, int):
        raise InputTypeError(f"groups must be an integer >= 1, got {groups!r}: give a whole number")
    if groups < 1:
        raise InputError(f"groups must be >= 1, got {groups}: give a positive number")
    if channels % groups:
        raise InputError(
            f"the number of outputs must be divisible by groups, got {channels} outputs and "
            f"{groups} groups: "
            "choose another number of groups"
        )


def _check_eigenvalues(eigenvalues: Tensor, blocks: Blocks) -> None:
    if not isinstance(eigenvalues, Tensor):
        raise InputTypeError(
            f"eigenvalues must be a tensor, got {type(eigenvalues).__name__}: convert them with "
            "torch.as_tensor(eigenvalues)"
        )
    if not eigenvalues.is_floating_point():
        raise InputTypeError(
            f"eigenvalues must be a real floating-point tensor, got {eigenvalues.dtype}: convert "
            "them with "
            ".float() first"
        )
    blocks.check(eigenvalues)


def _check_weight(weight: Tensor) -> None:
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise InputTypeError(
            f"the weight must be a real floating-point tensor, got {got}: convert it first"
        )


def _check_bias(bias: Tensor | None, channels: int) -> None:
    if bias is None:
        return
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise InputTypeError(
            f"the bias must be a real floating-point tensor or None, got {got}: convert it first"
        )
    if bias.shape != (channels,):
        raise InputError(
            f"the bias must have one number for each of the {channels} outputs, got shape "
            f"{tuple(bias.shape)}: give a vector of that length"
        )


def _check_out(out: Tensor, dim: int, groups: int) -> int:
    """Checks an output tensor; returns its channel dimension counted from the end."""
    if not out.is_floating_point():
        raise InputTypeError(
            f"the output must be a real floating-point tensor, got {out.dtype}: convert it with "
            ".float() first"
        )
    if not -out.dim() <= dim < out.dim():
        raise InputError(
            f"dim must be a dimension of the output of shape {tuple(out.shape)}, got {dim}: use "
            "-1 for the last"
        )
    dim = dim - out.dim() if dim >= 0 else dim
    check_groups(out.shape[dim], groups)
    return dim


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
    check_rank(rank)
    dim = _check_out(out, dim, groups)
    blocks = eigen_blocks(out.shape[dim], rank, groups)
    _check_eigenvalues(eigenvalues, blocks)
    return reference.add_squares(out, eigenvalues, blocks, dim)


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
    check_rank(rank)
    dim = _check_out(out, dim, groups)
    blocks = shared_blocks(out.shape[dim], rank, groups)
    _check_eigenvalues(eigenvalues, blocks)
    return reference.add_squares(out, eigenvalues, blocks, dim)


def quadratic_map(
    linear_op: LinearOp,
    input: Tensor,
    weight: Tensor,
    eigenvalues: Tensor,
    bias: Tensor | None,
    *,
    rank: int,
    recompute: bool = False,
) -> Tensor:
    """The eigen neuron over any linear map: what the functions below have in common."""
    check_rank(rank)
    _check_weight(weight)
    linear_op.check(input, weight)
    blocks = eigen_blocks(linear_op.outputs(weight), rank, linear_op.groups)
    _check_bias(bias, blocks.channels)
    _check_eigenvalues(eigenvalues, blocks)
    return add_squares(
        linear_op, blocks, linear_op.prepare(input), weight, bias, eigenvalues, recompute
    )


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
    return quadratic_map(DenseOp(), input, weight, eigenvalues, bias, rank=rank)


def _conv(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    eigenvalues: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    groups: int,
    rank: int,
) -> Tensor:
    linear_op = ConvOp(
        spatial,
        _as_tuple(stride),
        padding if isinstance(padding, str) else _as_tuple(padding),
        _as_tuple(dilation),
        groups,
        kernel_size=tuple(weight.shape[2:]),
    )
    return quadratic_map(linear_op, input, weight, eigenvalues, bias, rank=rank)


def _as_tuple(value: IntOrInts) -> int | tuple[int, ...]:
    return value if isinstance(value, int) else tuple(value)


def quadratic_conv1d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv1d`, then the squares."""
    return _conv(1, input, weight, eigenvalues, bias, stride, padding, dilation, groups, rank)


def quadratic_conv2d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv2d`, then the squares."""
    return _conv(2, input, weight, eigenvalues, bias, stride, padding, dilation, groups, rank)


def quadratic_conv3d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv3d`, then the squares."""
    return _conv(3, input, weight, eigenvalues, bias, stride, padding, dilation, groups, rank)


def _conv_transpose(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    eigenvalues: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    output_padding: IntOrInts,
    groups: int,
    dilation: IntOrInts,
    rank: int,
) -> Tensor:
    linear_op = TransposedConvOp(
        spatial,
        _as_tuple(stride),
        padding if isinstance(padding, str) else _as_tuple(padding),
        _as_tuple(output_padding),
        groups,
        _as_tuple(dilation),
    )
    return quadratic_map(linear_op, input, weight, eigenvalues, bias, rank=rank)


def quadratic_conv_transpose1d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv_transpose1d`, then the squares."""
    return _conv_transpose(
        1, input, weight, eigenvalues, bias, stride, padding, output_padding, groups, dilation, rank
    )


def quadratic_conv_transpose2d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv_transpose2d`, then the squares."""
    return _conv_transpose(
        2, input, weight, eigenvalues, bias, stride, padding, output_padding, groups, dilation, rank
    )


def quadratic_conv_transpose3d(
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
    """A layer of eigen neurons: `torch.nn.functional.conv_transpose3d`, then the squares."""
    return _conv_transpose(
        3, input, weight, eigenvalues, bias, stride, padding, output_padding, groups, dilation, rank
    )
