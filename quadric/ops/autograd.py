"""The autograd function that keeps only the layer's own output.

Plain autograd keeps every intermediate of the formula. None of that is needed: the squares are
computed again in the backward pass. For star blocks the layer's own output holds the features, and
the module after the layer keeps that output anyway (BatchNorm, LayerNorm, GELU), so training keeps
no more than with a linear layer. For full blocks the linear map's output is kept. With `recompute`
neither is kept, and the linear map runs again in the backward pass.

The output is kept as an alias without a version check (`.data`), because an in-place activation
after the layer is common (`ReLU(inplace=True)`) and autograd would refuse it. An empty tensor that
shares the output's version counter tells whether the output was overwritten. If it was, the linear
map runs again. It also runs again under `create_graph`, where the features must be connected to the
graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quadric.ops import reference
from quadric.ops.backends import Backend
from quadric.ops.blocks import Blocks
from quadric.ops.linear_ops import LinearOp
from quadric.ops.torch_probes import has_memory


class SquaresCall(NamedTuple):
    """One call of a layer, tensors aside."""

    linear_op: LinearOp
    bias: Tensor | None
    blocks: Blocks
    dim: int
    backend: Backend
    recompute: bool


def _version_probe(tensor: Tensor) -> Tensor:
    """An empty tensor that shares `tensor`'s version counter, but not its storage."""
    probe = tensor.detach()
    probe.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return probe


class AddSquares(torch.autograd.Function):
    """z + S z^2, where z is the fresh output of a linear map, which may be overwritten."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, eigenvalues: Tensor, input: Tensor, weight: Tensor, call: SquaresCall
    ) -> Tensor:
        """Adds the squares, and keeps what `backward` needs."""
        ctx.call = call
        # The bias is not saved for backward, as a linear layer does not save it either.
        ctx.bias_version = call.bias._version if call.bias is not None else 0
        ctx.probe, ctx.version = None, 0
        keeps_output = call.blocks.shape == "star" and not call.recompute
        own = z.data
        result = own if keeps_output or call.recompute else torch.empty_like(z)
        call.backend.forward(own, result, eigenvalues, call.blocks, call.dim)
        kept = None
        if keeps_output:
            ctx.probe = _version_probe(result)
            ctx.version = ctx.probe._version
            kept = result.data
        elif not call.recompute:
            kept = z
        ctx.save_for_backward(kept, eigenvalues, input, weight)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of z and of the eigenvalues."""
        kept, eigenvalues, input, weight = ctx.saved_tensors
        call: SquaresCall = ctx.call
        # Without memory: gradients for many vectors at once, as jacobian(vectorize=True) asks for.
        if torch.is_grad_enabled() or not has_memory(grad):
            z = _linear_again(ctx, input, weight)
            return (*_differentiable(grad, z, eigenvalues, call), None, None, None)
        if kept is None or (ctx.probe is not None and ctx.probe._version != ctx.version):
            kept = _linear_again(ctx, input, weight)
        slopes = call.backend.backward(grad, kept, eigenvalues, call.blocks, call.dim)
        return (*slopes, None, None, None)


def _linear_again(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
    """The linear map's output, computed again as in the forward pass."""
    bias = ctx.call.bias
    if bias is not None and bias._version != ctx.bias_version:
        raise RuntimeError(
            "the bias of a quadratic layer was modified in place between forward and backward, "
            "and the backward pass needs it: call backward before changing parameters"
        )
    device = "cpu" if input.is_meta else input.device.type  # meta has no autocast to switch off
    with torch.autocast(device, enabled=False):
        z: Tensor = ctx.call.linear_op(input, weight, bias)
        return z


def _differentiable(
    grad: Tensor, z: Tensor, eigenvalues: Tensor, call: SquaresCall
) -> tuple[Tensor, Tensor | None]:
    """The gradients by the formula, so that they can be differentiated again."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        if not z.requires_grad:
            z = z.detach().requires_grad_()
        out = reference.add_squares(z, eigenvalues, call.blocks, call.dim)
    wanted = [eigenvalues] if eigenvalues.requires_grad else []
    grads = torch.autograd.grad(
        out, [z, *wanted], grad, create_graph=create_graph, allow_unused=True
    )
    return grads[0], grads[1] if wanted else None
