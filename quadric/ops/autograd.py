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

import contextlib
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quadric.ops import cpu_matmul, native, reference
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
        return _forward(ctx, z, eigenvalues, input, weight, call)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of z and of the eigenvalues."""
        kept, eigenvalues, input, weight = ctx.saved_tensors
        call: SquaresCall = ctx.call
        if _must_differentiate(grad):
            z = _linear_again(ctx, input, weight)
            return (*_differentiable(grad, z, eigenvalues, call), None, None, None)
        kept = _intact(ctx, kept, input, weight)
        slopes = call.backend.backward(grad, kept, eigenvalues, call.blocks, call.dim)
        return (*slopes, None, None, None)


_DIFFERENTIATED = "gradients_are_differentiated"


def gradients_are_differentiated(linear_op: LinearOp) -> bool:
    """Whether a layer's gradients were differentiated again: then its nodes should be torch's.

    `DenseSquares` would compute the layer again, each time. It notes what it meets on the layer's
    own linear map, so only the first step takes longer.
    """
    return _DIFFERENTIATED in vars(linear_op)


class DenseSquares(torch.autograd.Function):
    """A dense layer with the kernels as one node: in a small one calls cost more than arithmetic.

    The kernels sum the gradient of the bias in their one pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eigenvalues: Tensor,
        call: SquaresCall,
    ) -> Tensor:
        """The product and its squares."""
        z = F.linear(input, weight, bias)
        if z.dim() != 2:
            z = z.contiguous()
        return _forward(ctx, z, eigenvalues, input, weight, call)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """All gradients."""
        kept, eigenvalues, input, weight = ctx.saved_tensors
        call: SquaresCall = ctx.call
        if _must_differentiate(grad):
            vars(call.linear_op)[_DIFFERENTIATED] = True
            return (*_differentiable_layer(ctx, grad, input, weight, eigenvalues), None)
        kept = _intact(ctx, kept, input, weight)
        of_input, of_weight, of_bias, _, _ = ctx.needs_input_grad
        back, sums, bias = native.backward_with_bias(
            grad, kept, eigenvalues, call.blocks, call.dim, of_bias
        )
        inputs, rows = input, back
        if input.dim() != 2:
            inputs, rows = input.reshape(-1, input.shape[-1]), back.reshape(-1, back.shape[-1])
        with _no_autocast("cpu"):
            to_input = rows.mm(weight) if of_input else None
            to_weight = rows.t().mm(inputs) if of_weight else None
        if to_input is not None and input.dim() != 2:
            to_input = to_input.view(input.shape)
        if bias is not None and bias.dtype != back.dtype:
            bias = bias.to(back.dtype)
        return to_input, to_weight, bias, sums, None


def _forward(
    ctx: Any, z: Tensor, eigenvalues: Tensor, input: Tensor, weight: Tensor, call: SquaresCall
) -> Tensor:
    """Adds the squares to z, and keeps what a backward pass needs."""
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


def _must_differentiate(grad: Tensor) -> bool:
    """Whether the gradients are differentiated again, or are asked for many vectors at once."""
    # Without memory: as jacobian(vectorize=True) asks for them.
    return torch.is_grad_enabled() or not has_memory(grad)


def _intact(ctx: Any, kept: Tensor | None, input: Tensor, weight: Tensor) -> Tensor:
    """What the squares were taken from, computed again if it was not kept or was overwritten."""
    if kept is None or (ctx.probe is not None and ctx.probe._version != ctx.version):
        return _linear_again(ctx, input, weight)
    return kept


def _no_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def _linear_again(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
    """The linear map's output, computed again as in the forward pass."""
    bias = ctx.call.bias
    if bias is not None and bias._version != ctx.bias_version:
        raise RuntimeError(
            "the bias of a quadratic layer was modified in place between forward and backward, "
            "and the backward pass needs it: call backward before changing parameters"
        )
    # meta has no autocast to switch off
    with _no_autocast("cpu" if input.is_meta else input.device.type):
        z: Tensor = ctx.call.linear_op(input, weight, bias)
        return z


def _differentiable(
    grad: Tensor, z: Tensor, eigenvalues: Tensor, call: SquaresCall
) -> tuple[Tensor, Tensor | None]:
    """The gradients by the formula, so that they can be differentiated again."""
    with torch.enable_grad():
        if not z.requires_grad:
            z = z.detach().requires_grad_()
        out = reference.add_squares(z, eigenvalues, call.blocks, call.dim)
    of_z, of_eigenvalues = _gradients(out, [z, eigenvalues], grad)
    assert of_z is not None
    return of_z, of_eigenvalues


def _differentiable_layer(
    ctx: Any, grad: Tensor, input: Tensor, weight: Tensor, eigenvalues: Tensor
) -> list[Tensor | None]:
    """All gradients of a dense layer by the formula."""
    call: SquaresCall = ctx.call
    with torch.enable_grad():
        z, out = _linear_again(ctx, input, weight), None
        if cpu_matmul.is_small(z, call.blocks, call.dim) and has_memory(grad):
            out = cpu_matmul.add_squares(z, eigenvalues, call.blocks)
        if out is None:
            out = reference.add_squares(z, eigenvalues, call.blocks, call.dim)
    return _gradients(out, [input, weight, call.bias, eigenvalues], grad)


def _gradients(out: Tensor, inputs: list[Tensor | None], grad: Tensor) -> list[Tensor | None]:
    """The gradients of those inputs that have one."""
    create_graph = torch.is_grad_enabled()
    wanted = [each for each in inputs if each is not None and each.requires_grad]
    found = iter(
        torch.autograd.grad(out, wanted, grad, create_graph=create_graph, allow_unused=True)
    )
    return [next(found) if each is not None and each.requires_grad else None for each in inputs]
