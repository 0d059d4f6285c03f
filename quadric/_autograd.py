"""Memory-saving autograd for a linear map followed by squares.

Plain autograd keeps every intermediate of the formula. Nothing of that is needed: the squares are
recomputed in the backward pass. For the eigen neuron the layer's own output holds the features, and
whatever follows the layer keeps that output anyway (BatchNorm, LayerNorm, GELU), so training keeps
no more than with a linear layer. For the shared neuron the linear map's output is kept. On request
neither is, and the linear map is computed again.

The output is kept as an alias without a version check (`.data`), because an in-place activation
behind the layer is common (`ReLU(inplace=True)`) and autograd would refuse it. Whether the output
was overwritten is read from an empty tensor that shares the output's version counter and none of
its storage; if it was, the linear map is computed again. The same happens under `create_graph`,
where the features must be connected to the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from quadric import kernels
from quadric._compiled import add_squares, has_operator, in_torch_func
from quadric._owning import alone, references
from quadric._squares import (
    NOTHING,
    EigenSquares,
    Finish,
    SharedSquares,
    Squares,
    backward_with_bias,
    sum_of_bias,
)
from quadric.maps import DenseMap, Map

_PLAIN = (Tensor, torch.nn.Parameter)
_PROXY = torch._C._TorchDispatchModeKey.PROXY


def _transforming() -> bool:
    """Whether a torch.func transform, forward-mode differentiation, torch.jit.trace or make_fx is
    active: they must see every operation.
    """
    if torch._C._get_tracing_state() is not None or torch._C._get_dispatch_mode(_PROXY) is not None:
        return True
    return in_torch_func() or forward_ad._current_level >= 0


def is_batched(tensor: Tensor) -> bool:
    """Whether gradients are computed for many vectors at once (jacobian with vectorize=True)."""
    return torch._C._functorch.is_batchedtensor(tensor) or (
        torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def needs_plain(*tensors: Tensor | None) -> bool:
    """Whether the plain formula must run: tracing, torch.func transforms, tensor subclasses."""
    if torch.compiler.is_compiling() or _transforming():
        return True
    return any(t is not None and type(t) not in _PLAIN for t in tensors)


def _version_probe(tensor: Tensor) -> Tensor:
    """An empty tensor that shares `tensor`'s version counter, but not its storage."""
    probe = tensor.detach()
    probe.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return probe


class _MapWithSquares(torch.autograd.Function):
    """out + squares, where `out` is the fresh output of `linear_map(input, weight, bias)`, which is
    overwritten. If `left` is given, it is the bias, and `out` is still without it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        eigenvalues: Tensor,
        left: Tensor | None,
        input: Tensor,
        weight: Tensor,
        settings: tuple[Tensor | None, Map, Squares, bool],
    ) -> Tensor:
        # One argument for all that needs no gradient: torch looks at each of them.
        bias, linear_map, squares, recompute = settings
        keeps_output = isinstance(squares, EigenSquares) and not recompute
        ctx.linear_map, ctx.squares = linear_map, squares
        # The bias is not saved for backward (a linear layer does not save it either) but only
        # referred to.
        ctx.bias = bias
        ctx.bias_version = bias._version if bias is not None else 0
        ctx.probe, ctx.version = None, 0
        ctx.alone = alone() if kernels.active() else None
        if keeps_output or recompute:
            result = out.data
            squares.forward_(result, eigenvalues, bias=left)
            kept = None
            if keeps_output:
                ctx.probe = _version_probe(result)
                ctx.version = ctx.probe._version
                kept = result.data
        else:
            assert isinstance(squares, SharedSquares)
            result = squares.forward(out, eigenvalues, left)
            kept = out
        ctx.save_for_backward(kept, eigenvalues, input, weight)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, eigenvalues, input, weight = ctx.saved_tensors
        none = (None,) * 3
        squares: Squares = ctx.squares
        create_graph = torch.is_grad_enabled()
        if create_graph or is_batched(grad):
            with torch.enable_grad():
                linear = _again(ctx, input, weight)
                if not linear.requires_grad:
                    linear = linear.detach().requires_grad_()
                out = squares.plain(linear, eigenvalues)
            wanted = [eigenvalues] if eigenvalues.requires_grad else []
            grads = torch.autograd.grad(
                out, [linear, *wanted], grad, create_graph=create_graph, allow_unused=True
            )
            of_bias = sum_of_bias(grads[0]) if ctx.needs_input_grad[2] else None
            return (grads[0], grads[1] if wanted else None, of_bias, *none)
        if kept is None or (ctx.probe is not None and ctx.probe._version != ctx.version):
            kept = _again(ctx, input, weight)
        overwrite = ctx.alone is not None and type(grad) is Tensor and references(grad) == ctx.alone
        given = (grad, kept, eigenvalues, ctx.needs_input_grad[1], overwrite)
        if ctx.needs_input_grad[2]:
            return (*backward_with_bias(squares, *given), *none)
        return (*squares.backward(*given), None, *none)


def _again(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
    """The linear map's output, computed again as in the forward pass."""
    bias: Tensor | None = ctx.bias
    if bias is not None and bias._version != ctx.bias_version:
        raise RuntimeError(
            "the bias of a quadratic layer was modified in place between forward and backward, "
            "and the backward pass needs it: call backward before changing parameters"
        )
    device = "cpu" if input.is_meta else input.device.type  # meta has no autocast to switch off
    with torch.autocast(device, enabled=False):
        linear: Tensor = ctx.linear_map(input, weight, bias)
        return linear


def is_autocast(input: Tensor) -> bool:
    """Whether torch would cast the input of a linear map."""
    device = input.device.type
    return device != "meta" and torch.is_autocast_enabled(device)  # meta has none to ask for


def map_with_squares(
    linear_map: Map,
    squares: Squares,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eigenvalues: Tensor,
    recompute: bool = False,
    finish: Finish = NOTHING,
) -> Tensor:
    """The linear map and its squares, by the cheapest path that gives the plain formula's values
    and gradients.

    Args:
        linear_map: the map, whose output channels are laid out as `squares` expects.
        squares: which squares are added.
        input: the layer's input, prepared by the map.
        weight: the map's weight.
        bias: the map's bias.
        eigenvalues: one flat vector.
        recompute: compute the linear map again in backward instead of keeping the output (of the
            layer for the eigen neuron, of the map for the shared one).
        finish: what follows the squares.
    """
    if is_autocast(input):
        device = input.device.type
        # Cast here, not inside the torch call, so that what is kept for recomputing is what the
        # call keeps itself.
        dtype = torch.get_autocast_dtype(device)
        input, weight = _lower(input, dtype), _lower(weight, dtype)
        bias = _lower(bias, dtype) if bias is not None else None
        with torch.autocast(device, enabled=False):
            out = linear_map(input, weight, bias)
            parts = (linear_map, input, weight, bias)
            return add_to_map(out, squares, eigenvalues, parts, recompute, finish)
    parts = (linear_map, input, weight, bias)
    if bias is not None and _leaves_bias(linear_map, input, weight, bias, eigenvalues):
        out = linear_map(input, weight, None)
        return add_to_map(out, squares, eigenvalues, parts, recompute, finish, bias)
    out = linear_map(input, weight, bias)
    return add_to_map(out, squares, eigenvalues, parts, recompute, finish)


def _leaves_bias(
    linear_map: Map, input: Tensor, weight: Tensor, bias: Tensor, eigenvalues: Tensor
) -> bool:
    """Whether the kernels add the bias with the squares. On CPUs torch first copies it into every
    row of a matrix product, which then reads it again: as dear as the squares themselves.

    Not as long as all eigenvalues are zero: a bias that is added later may be rounded otherwise,
    and a layer that has not learned yet computes exactly what the linear one does.
    """
    if not isinstance(linear_map, DenseMap) or needs_plain(input, weight, bias, eigenvalues):
        return False
    fits = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (input, weight, bias))
    fits = fits and kernels.active() and bias.shape == weight.shape[:1]
    return fits and bool(eigenvalues.any())


def _lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def add_to_map(
    out: Tensor,
    squares: Squares,
    eigenvalues: Tensor,
    parts: tuple[Map, Tensor, Tensor, Tensor | None],
    recompute: bool = False,
    finish: Finish = NOTHING,
    left: Tensor | None = None,
) -> Tensor:
    """The squares of a linear map's output, which is overwritten.

    Args:
        out: the fresh output.
        squares: which squares are added.
        eigenvalues: one flat vector.
        parts: the map, its input, weight and bias, to compute the output again.
        recompute: do so in backward instead of keeping an output.
        finish: what follows the squares.
        left: the map's bias, if the output is still without it.
    """
    if left is None:  # else both were asked before
        if has_operator(out, squares):
            return add_squares(out, eigenvalues, squares, finish)
        if needs_plain(out, eigenvalues):
            return finish(squares.plain(out, eigenvalues), squares.dim)
    trained = out.requires_grad or eigenvalues.requires_grad
    if torch.is_grad_enabled() and (trained or (left is not None and left.requires_grad)):
        linear_map, input, weight, bias = parts
        result: Tensor = _MapWithSquares.apply(  # type: ignore[no-untyped-call]
            out, eigenvalues, left, input, weight, (bias, linear_map, squares, recompute)
        )
        return finish(result, squares.dim)
    squares.forward_(out, eigenvalues, finish, left)
    return out


__all__ = ["EigenSquares", "SharedSquares", "map_with_squares", "needs_plain"]
