"""The squares by plain operators at their fastest: one small matrix mixes the squares of all
channels.

Out = z + A z^2, where A holds the eigenvalues: for few channels a product with the whole matrix A
beats operators on strided views of single neurons, though most of A is zero. One trap: zero times
infinity is not zero, so that an infinite channel would spoil its neighbours. Whatever is not finite
is noticed in the result, and the views of `_squares.py` then do the work, in which neurons stay
apart.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

MOST_CHANNELS = 128
"""Channels up to which the whole matrix is faster."""

Positions = tuple[tuple[int, ...], tuple[int, ...]]
"""Row and column of each eigenvalue in A; row i belongs to the i-th channel that is added to."""


def view(tensor: Tensor, dim: int) -> Tensor | None:
    """(positions, channels) or (batch, channels, positions), if memory is laid out like that."""
    channels = tensor.shape[dim]
    if (
        tensor.device.type != "cpu"
        or tensor.dtype not in (torch.float32, torch.float64)
        or not 0 < channels <= MOST_CHANNELS
        or tensor.numel() == 0
    ):
        return None
    last = tensor.movedim(dim, -1)
    if last.is_contiguous():
        return last.view(-1, channels)
    if tensor.is_contiguous():
        return tensor.view(-1, channels, tensor.shape[dim + 1 :].numel())
    return None


@functools.lru_cache(maxsize=256)
def _indices(positions: Positions) -> tuple[Tensor, Tensor]:
    return torch.tensor(positions[0]), torch.tensor(positions[1])


def _matrix(values: Tensor, positions: Positions, channels: int) -> Tensor:
    rows, columns = _indices(positions)
    matrix = values.new_zeros(positions[0][-1] + 1, channels)
    matrix[rows, columns] = values
    return matrix


def _times(matrix: Tensor, values: Tensor) -> Tensor:
    """The matrix times the channels."""
    return values @ matrix.T if values.dim() == 2 else torch.matmul(matrix, values)


def _finite(tensor: Tensor) -> bool:
    """Whether no element is infinite or NaN, seen in their sum (which may overflow, too)."""
    return bool(torch.isfinite(tensor.sum()))


def sums(z: Tensor, eigenvalues: Tensor, positions: Positions) -> Tensor | None:
    """A z^2 for a view made by `view`, or None where something is not finite."""
    mixed = _times(_matrix(eigenvalues.to(z.dtype), positions, z.shape[1]), z * z)
    return mixed if _finite(mixed) else None


def eigen_backward(
    grad: Tensor, z: Tensor, received: Tensor, eigenvalues: Tensor, positions: Positions
) -> tuple[Tensor, Tensor] | None:
    """Gradients of z and of the eigenvalues, each channel being the feature of one y at most.

    Args:
        grad: the gradient, as a view.
        z: the output, as a view; only its features count.
        received: the gradient of the channels that were added to.
        eigenvalues: one flat vector.
        positions: where each stands.
    """
    columns = _indices(positions)[1]
    ones = eigenvalues.new_ones((), dtype=z.dtype).expand(len(positions[0]))
    product = _times(_matrix(ones, positions, z.shape[1]).T, received).mul_(z)  # g_y f
    lam = z.new_zeros(z.shape[1])
    lam[columns] = 2 * eigenvalues.to(z.dtype)
    result = torch.addcmul(grad, product, lam if z.dim() == 2 else lam.unsqueeze(-1))
    total = product.mul_(z).sum(0 if z.dim() == 2 else (0, 2))
    if not (_finite(result) and _finite(total)):
        return None
    return result, total[columns].to(eigenvalues.dtype)


def shared_backward(
    grad: Tensor, z: Tensor, eigenvalues: Tensor, positions: Positions
) -> tuple[Tensor, Tensor] | None:
    """Gradients of z and of the eigenvalues, each channel being a feature for its whole group."""
    rows, columns = _indices(positions)
    matrix = _matrix(eigenvalues.to(z.dtype), positions, z.shape[1])
    result = torch.addcmul(grad, z, _times(matrix.T, grad), value=2)
    squares = z * z
    if z.dim() == 2:
        total = grad.T @ squares
    else:
        total = torch.matmul(grad, squares.transpose(1, 2)).sum(0)
    if not (_finite(result) and _finite(total)):
        return None
    return result, total[rows, columns].to(eigenvalues.dtype)
