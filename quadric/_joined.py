"""A linear map, its squares, and the BatchNorm and ReLU behind them, under autograd.

Where the kernels serve, only the linear map's output is kept for the backward pass, which is what
BatchNorm keeps of a linear layer; elsewhere the squares are added as in `_autograd.py` and torch
does the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadric import _norm
from quadric._autograd import (
    add_to_map,
    is_autocast,
    is_batched,
    map_with_squares,
    needs_plain,
)
from quadric._behind import Behind
from quadric._compiled import has_operator, norm_squares
from quadric._squares import Squares
from quadric.kernels import Norm
from quadric.maps import Map


class _SquaresAndNorm(torch.autograd.Function):
    """Squares, BatchNorm and ReLU, of which only the linear map's output is kept: BatchNorm would
    keep as much.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        eigenvalues: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        settings: tuple[Squares, Behind],
    ) -> Tensor:
        squares, behind = settings
        norm = behind.settings
        out, mean, var = _norm.forward(z, eigenvalues, squares, norm, *behind.statistics)
        behind.track(mean, var, z.numel() // z.shape[1])
        ctx.squares, ctx.flags = squares, norm.flags
        ctx.save_for_backward(z, eigenvalues, weight, bias, mean, var)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, eigenvalues, weight, bias, mean, var = ctx.saved_tensors
        eps, relu, of_batch = ctx.flags
        norm = Norm(weight, bias, eps, bool(relu), bool(of_batch))
        create_graph = torch.is_grad_enabled()
        if create_graph or is_batched(grad):
            inputs = (z, eigenvalues, weight, bias)
            needs = ctx.needs_input_grad[:4]
            with torch.enable_grad():
                out = _norm.plain(z, eigenvalues, ctx.squares, norm, mean, var)
            wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
            grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
            return (*[next(grads) if need else None for need in needs], None)
        found = _norm.backward(grad, z, eigenvalues, ctx.squares, norm, mean, var)
        of_weight, of_bias = found[2:]
        given = (None if weight is None else of_weight, None if bias is None else of_bias)
        return (*found[:2], *given, None)


def _with_norm(z: Tensor, eigenvalues: Tensor, squares: Squares, behind: Behind) -> Tensor | None:
    """Squares, BatchNorm and ReLU of the fresh output of a linear map, by the kernels, or None
    where these have no way.
    """
    if not behind.takes(z, squares.dim):
        return None
    if has_operator(z, squares):
        if not _norm.has_kernels(z.shape[1], squares):
            return None  # the compiler does better
        return norm_squares(z, eigenvalues, squares, behind)
    if needs_plain(z, eigenvalues):
        return None
    norm = behind.settings
    inputs = (z, eigenvalues, norm.weight, norm.bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        if not _norm.is_served(z, squares):
            return None
        result: Tensor = _SquaresAndNorm.apply(  # type: ignore[no-untyped-call]
            *inputs, (squares, behind)
        )
        return result
    mean, var = behind.statistics
    if mean is not None and var is not None:
        _norm.forward_(z, eigenvalues, squares, norm, mean, var)
        return z
    if not _norm.is_served(z, squares):
        return None
    _, mean, var = _norm.forward(z, eigenvalues, squares, norm, in_place=True)
    behind.track(mean, var, z.numel() // z.shape[1])
    return z


def map_with_norm(
    linear_map: Map,
    squares: Squares,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eigenvalues: Tensor,
    behind: Behind,
) -> Tensor:
    """The linear map, its squares, BatchNorm and ReLU, by the cheapest path that gives the plain
    formulas' values and gradients.

    Args:
        linear_map: the map, whose output channels are laid out as `squares` expects.
        squares: which squares are added.
        input: the layer's input, prepared by the map.
        weight: the map's weight.
        bias: the map's bias.
        eigenvalues: one flat vector.
        behind: what follows the squares.
    """
    parts = (linear_map, input, weight, bias)
    if is_autocast(input):
        return behind.follow(
            map_with_squares(linear_map, squares, input, weight, bias, eigenvalues)
        )
    out = linear_map(input, weight, bias)
    result = _with_norm(out, eigenvalues, squares, behind)
    if result is None:
        result = behind.follow(add_to_map(out, squares, eigenvalues, parts))
    return result
