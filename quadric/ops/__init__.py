"""z + S z^2: the one formula under the eigen, shared and square neurons.

`add_squares` is the only place that decides which path runs, once per call. For the last four
paths it asks `backend_for`, which goes by the tensor alone:

| path | when |
|---|---|
| `reference` | torch must see every operation: tracing, export, torch.func, tensor subclasses |
| `compiled` | inside torch.compile on the CPU, as one operator |
| `autograd.DenseSquares` | training a dense layer on the CPU with the kernels, as one node |
| `cpu_matmul.add_squares` | without them, small matrices, where calls cost more than arithmetic |
| `native` | float32, bfloat16 and float16 on the CPU with the kernels switched on |
| `cpu_matmul` | float32 or float64 on the CPU, channels next to each other in memory |
| `gpu` | float32, bfloat16 and float16 on NVIDIA GPUs, where triton is installed |
| `torch_views` | everything else: other devices, half precision without kernels, NCHW |

The last four run inside `autograd.AddSquares` where gradients are wanted, else in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadric.ops import compiled, cpu_matmul, native, reference
from quadric.ops.autograd import (
    AddSquares,
    DenseSquares,
    SquaresCall,
    gradients_are_differentiated,
)
from quadric.ops.backends import NATIVE, backend_for
from quadric.ops.blocks import Blocks
from quadric.ops.linear_ops import DenseOp, LinearOp
from quadric.ops.torch_probes import in_torch_func, must_see_operations


def add_squares(
    linear_op: LinearOp,
    blocks: Blocks,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eigenvalues: Tensor,
    recompute: bool = False,
) -> Tensor:
    """A linear map and its squares, by the cheapest path that gives the formula's values."""
    blocks.check(eigenvalues)
    device = input.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # meta has no autocast
        # Cast here, not inside the torch call: what is kept for recomputing is then what the call
        # keeps itself.
        dtype = torch.get_autocast_dtype(device)
        input, weight = _lower(input, dtype), _lower(weight, dtype)
        bias = None if bias is None else _lower(bias, dtype)
        with torch.autocast(device, enabled=False):
            return add_squares(linear_op, blocks, input, weight, bias, eigenvalues, recompute)
    compiling = torch.compiler.is_compiling()
    if not compiling and _is_one_node(linear_op, blocks, input, weight, bias, eigenvalues):
        call = SquaresCall(linear_op, bias, blocks, -1, NATIVE, recompute)
        one: Tensor = DenseSquares.apply(input, weight, bias, eigenvalues, call)  # type: ignore[no-untyped-call]
        return one
    z = linear_op(input, weight, bias)
    dim = linear_op.channel_dim
    if compiling:
        whole = torch.compiler.is_exporting() or in_torch_func()
        operator = z.device.type == "cpu" and z.dtype == torch.float32 and not whole
        if operator and blocks.num_eigenvalues and (blocks.shape == "full" or native.active()):
            return compiled.add_squares(z, eigenvalues, blocks, dim)
        return reference.add_squares(z, eigenvalues, blocks, dim)
    if must_see_operations(z, eigenvalues):
        return reference.add_squares(z, eigenvalues, blocks, dim)
    trained = torch.is_grad_enabled() and (z.requires_grad or eigenvalues.requires_grad)
    if trained and cpu_matmul.is_small(z, blocks, dim):
        small = cpu_matmul.add_squares(z, eigenvalues, blocks)
        if small is not None:
            return small
    backend = backend_for(z, blocks, dim)
    if not trained:
        backend.forward(z, z, eigenvalues, blocks, dim)
        return z
    call = SquaresCall(linear_op, bias, blocks, dim, backend, recompute)
    result: Tensor = AddSquares.apply(z, eigenvalues, input, weight, call)  # type: ignore[no-untyped-call]
    return result


def _is_one_node(
    linear_op: LinearOp,
    blocks: Blocks,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eigenvalues: Tensor,
) -> bool:
    """Whether a dense layer trains with the kernels, and torch need not see more than one node."""
    return (
        type(linear_op) is DenseOp
        and torch.is_grad_enabled()
        and not gradients_are_differentiated(linear_op)
        and native.serves(input.dtype)
        and input.is_cpu
        and input.dtype == weight.dtype
        and blocks.size > 1
        and (weight.requires_grad or input.requires_grad or eigenvalues.requires_grad)
        and not must_see_operations(input, weight, eigenvalues, weight if bias is None else bias)
        and input.numel() > 0
    )


def _lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)
