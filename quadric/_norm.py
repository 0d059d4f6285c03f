"""Squares, BatchNorm and ReLU as one step of a training or an inference: forward and backward as
plain functions.

BatchNorm reads the output with its squares, x. With the kernels x is never stored: each pass over
memory computes it anew from the linear map's output z, so that the squares cost arithmetic and no
memory. Where there is no kernel the same formulas run on whole tensors. Statistics are in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadric import kernels
from quadric._squares import EigenSquares, Finish, Squares
from quadric.kernels import Norm

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of the linear map's output, the eigenvalues, and BatchNorm's weight and bias."""


def _affine(norm: Norm, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One over the standard deviation, and the scale and shift of each channel, in float64."""
    inverse = (var.double() + norm.eps).rsqrt()
    scale = inverse if norm.weight is None else inverse * norm.weight
    shift = mean * -scale
    return inverse, scale, shift if norm.bias is None else shift + norm.bias


def finish(norm: Norm, mean: Tensor, var: Tensor) -> Finish:
    """BatchNorm and ReLU as what follows the squares in inference."""
    _, scale, shift = _affine(norm, mean, var)
    return Finish(shift.float(), norm.relu, scale.float())


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One number for each channel, in the shape and dtype of (batch, channels, ...)."""
    return values.to(like.dtype).reshape(-1, *(1,) * (like.dim() - 2))


def _over(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _layout(z: Tensor, squares: Squares) -> kernels.Layout | None:
    """The layout of z if there are kernels for squares and BatchNorm together, else None."""
    shape = kernels.layout(z, squares.dim)
    if shape is None or shape[2] != 1:
        return None
    table = squares.table(shape[1])
    return shape if table.eigenvalues > 0 and kernels.has_norm(table.widest) else None


def has_kernels(channels: int, squares: Squares) -> bool:
    """Whether there are kernels for squares and BatchNorm together, of outputs in rows."""
    return squares.num_eigenvalues(channels) > 0 and kernels.has_norm(squares.widest(channels))


def is_served(z: Tensor, squares: Squares) -> bool:
    """Whether this output never needs to be stored with its squares."""
    return _layout(z, squares) is not None


def forward(
    z: Tensor,
    eigenvalues: Tensor,
    squares: Squares,
    norm: Norm,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    *,
    added: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output behind squares, BatchNorm, a sum and ReLU, outside autograd.

    Args:
        z: the linear map's output, (batch, channels, ...).
        eigenvalues: one flat vector.
        squares: which squares are added.
        norm: what follows.
        mean: of each channel, unless the batch's own is asked for.
        var: likewise its (biased) variance.
        added: is added in front of the ReLU; it may not share memory with z.
        in_place: whether z may be overwritten.

    Returns:
        The output, mean and variance.
    """
    shape = _layout(z, squares)
    if shape is not None:
        result = z if in_place else torch.empty_like(z)
        arguments = (squares.kind, z, result, eigenvalues, squares.table(shape[1]), shape)
        kept = kernels.norm_forward(*arguments, norm, mean, var, added=added)
        assert kept is not None
        return result, *kept
    result = z if in_place else torch.empty_like(z).copy_(z)
    if norm.of_batch or mean is None or var is None:
        squares.forward_(result, eigenvalues)
        var, mean = torch.var_mean(result, _over(result), correction=0)
        _finish_(result, squares, finish(norm, mean, var), added)
    else:
        _forward_(result, eigenvalues, squares, finish(norm, mean, var), added)
    return result, mean.double(), var.double()


def forward_(
    z: Tensor,
    eigenvalues: Tensor,
    squares: Squares,
    norm: Norm,
    mean: Tensor,
    var: Tensor,
    added: Tensor | None = None,
) -> None:
    """The same in place, with given mean and variance: what inference needs."""
    shape = _layout(z, squares)
    if shape is None:
        _forward_(z, eigenvalues, squares, finish(norm, mean, var), added)
        return
    arguments = (squares.kind, z, z, eigenvalues, squares.table(shape[1]), shape)
    kernels.norm_forward(*arguments, norm, mean, var, added=added, keep=False)


def _forward_(
    out: Tensor, eigenvalues: Tensor, squares: Squares, after: Finish, added: Tensor | None
) -> None:
    """Squares and what follows, without kernels for both."""
    if added is None:
        squares.forward_(out, eigenvalues, after)
        return
    squares.forward_(out, eigenvalues)
    _finish_(out, squares, after, added)


def _finish_(out: Tensor, squares: Squares, after: Finish, added: Tensor | None) -> None:
    if added is None:
        after.apply_(out, squares.dim)
        return
    Finish(after.shift, False, after.scale).apply_(out, squares.dim)
    out.add_(added)
    if after.relu:
        out.relu_()


def backward(
    grad: Tensor,
    z: Tensor,
    eigenvalues: Tensor,
    squares: Squares,
    norm: Norm,
    mean: Tensor,
    var: Tensor,
) -> Gradients:
    """The gradients of `forward`, whose mean and variance are given.

    With g the gradient that the ReLU let through, s the scale and n numbers in a channel, that of
    BatchNorm's input is s g - s/n sum g - s/(n (var + eps)) (x - mean) sum g (x - mean); the sums
    are there only if mean and variance are those of the batch.
    """
    shape = _layout(z, squares)
    if shape is not None:
        arguments = (squares.kind, grad, z, eigenvalues, squares.table(shape[1]), shape)
        return kernels.norm_backward(*arguments, norm, mean, var)
    inverse, scale, shift = _affine(norm, mean, var)
    x = squares.forward(z, eigenvalues)
    if norm.relu:
        grad = torch.where(x * _spread(scale, x) + _spread(shift, x) <= 0, 0, grad)
    apart, dims = x - _spread(mean, x), _over(x)
    total, weighted = grad.sum(dims).double(), (grad * apart).sum(dims).double()
    back = grad * _spread(scale, x)
    if norm.of_batch:
        share = -scale / (z.numel() // z.shape[1])
        slope = share * inverse.square() * weighted
        back = back + apart * _spread(slope, x) + _spread(share * total, x)
    kept = x if isinstance(squares, EigenSquares) else z
    of_z, of_eigenvalues = squares.backward(back, kept, eigenvalues, True)
    assert of_eigenvalues is not None
    return of_z, of_eigenvalues, (weighted * inverse).to(z.dtype), total.to(z.dtype)


def plain(
    z: Tensor, eigenvalues: Tensor, squares: Squares, norm: Norm, mean: Tensor, var: Tensor
) -> Tensor:
    """The formula: differentiable to any order. Given mean and variance count unless the batch's
    own are asked for.
    """
    x = squares.plain(z, eigenvalues)
    if norm.of_batch:
        var, mean = torch.var_mean(x, _over(x), correction=0)
    inverse = (var.to(x.dtype) + norm.eps).rsqrt()
    scale = inverse if norm.weight is None else inverse * norm.weight
    out = (x - _spread(mean, x)) * _spread(scale, x)
    if norm.bias is not None:
        out = out + _spread(norm.bias, x)
    return out.relu() if norm.relu else out
