"""The squares as one operator inside of a compiled graph, for the CPU.

torch.compile fuses a formula into the loops around it, but with the sums of these it does badly:
the gradient of the eigenvalues, one number or one small matrix a neuron summed over all pixels,
becomes as many passes over the activations as there are entries, and in channels_last even the
forward sum is slow. So in a compiled graph the fused kernels, or for the shared neuron the matrix
products that stand in for them, are called as an operator the compiler does not look into.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadric import kernels
from quadric._squares import EigenSquares, SharedSquares, Squares


def _squares(kind: str, rank: int, dim: int, groups: int) -> Squares:
    return (EigenSquares if kind == "eigen" else SharedSquares)(rank, dim, groups)


# The kernels take what comes, NCHW or channels_last: without this tag the compiler, which changes
# the layout of convolutions for speed, would change it back for us.
_ANY_LAYOUT = (torch.Tag.flexible_layout,)


@torch.library.custom_op("quadric::add_squares", mutates_args=(), tags=_ANY_LAYOUT)
def _add(out: Tensor, eigenvalues: Tensor, kind: str, rank: int, dim: int, groups: int) -> Tensor:
    return _squares(kind, rank, dim, groups).forward(out, eigenvalues)


@_add.register_fake
def _(out: Tensor, eigenvalues: Tensor, kind: str, rank: int, dim: int, groups: int) -> Tensor:
    return torch.empty_like(out)


@torch.library.custom_op("quadric::add_squares_", mutates_args=("out",), tags=_ANY_LAYOUT)
def _add_(out: Tensor, eigenvalues: Tensor, kind: str, rank: int, dim: int, groups: int) -> None:
    _squares(kind, rank, dim, groups).forward_(out, eigenvalues)


@torch.library.custom_op("quadric::add_squares_backward", mutates_args=(), tags=_ANY_LAYOUT)
def _gradients(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, kind: str, rank: int, dim: int, groups: int
) -> tuple[Tensor, Tensor]:
    squares = _squares(kind, rank, dim, groups)
    found, sums = squares.backward(grad, kept, eigenvalues, True)
    assert sums is not None
    # What an operator returns must be new, and lie in memory as was promised.
    if found is grad or found.stride() != kept.stride():
        found = torch.empty_like(kept).copy_(found)
    return found, sums


@_gradients.register_fake
def _(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, kind: str, rank: int, dim: int, groups: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(kept), torch.empty_like(eigenvalues)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    out, eigenvalues, *ctx.settings = inputs
    ctx.save_for_backward(output if ctx.settings[0] == "eigen" else out, eigenvalues)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    kept, eigenvalues = ctx.saved_tensors
    return (*_gradients(grad, kept, eigenvalues, *ctx.settings), None, None, None, None)


_add.register_autograd(_back, setup_context=_keep)


@_add.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    out: Tensor,
    eigenvalues: Tensor,
    kind: str,
    rank: int,
    dim: int,
    groups: int,
) -> tuple[Tensor, int]:
    settings = (kind, rank, dim, groups)
    out_dim, eigenvalue_dim = in_dims[:2]
    if eigenvalue_dim is None and out_dim is not None:
        # Channels are counted from the end, so a dimension more in front changes nothing.
        return _add(out.movedim(out_dim, 0), eigenvalues, *settings), 0
    each = [
        _add(
            out if out_dim is None else out.select(out_dim, i),
            eigenvalues if eigenvalue_dim is None else eigenvalues.select(eigenvalue_dim, i),
            *settings,
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(each), 0


def has_operator(out: Tensor, squares: Squares) -> bool:
    """Whether a graph that is being compiled should hold the operator instead of the formula."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    if out.device.type != "cpu" or out.dtype != torch.float32:
        return False
    return isinstance(squares, SharedSquares) or kernels.active()


def add_squares(out: Tensor, eigenvalues: Tensor, squares: Squares) -> Tensor:
    """The sum with the squares, as an operator. `out` is overwritten where nobody asks for
    gradients.
    """
    kind = "eigen" if isinstance(squares, EigenSquares) else "shared"
    if not torch.is_grad_enabled():
        _add_(out, eigenvalues, kind, squares.rank, squares.dim, squares.groups)
        return out
    result: Tensor = _add(out, eigenvalues, kind, squares.rank, squares.dim, squares.groups)
    return result
