"""What only torch's inner state tells: whether torch must see every operation.

Everything that is private or experimental in torch, and that quadric's fast paths need, stands
here. A name that this version of torch does not have is listed in `MISSING`. Then `reference` runs
everywhere: slower, and right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.jit import is_tracing  # type: ignore[attr-defined]

MISSING: list[str] = []
"""The names that this version of torch does not have."""


def _named(name: str) -> Any:
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        MISSING.append(f"torch.{name}")
        return None


_peek = _named("_C._functorch.peek_interpreter_stack")
_dispatch_mode = _named("_C._get_dispatch_mode")
_PROXY = _named("_C._TorchDispatchModeKey.PROXY")  # of make_fx, while it records a graph
_named("autograd.forward_ad._current_level")
_named("Tensor._version")  # `autograd` asks whether an output was overwritten

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


def answered_while_tracing(function: Callable[[], bool]) -> Callable[[], bool]:
    """Lets the compiler call a function while it traces, and take the answer for a constant.

    It sets what torch.compiler.assume_constant_result sets, which would import the whole compiler.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


# A compiler that does not know the mark takes the answer for yes: `reference` runs.
@answered_while_tracing
def in_torch_func() -> bool:
    """Whether a torch.func transform is active, in eager mode or while the compiler traces."""
    return bool(MISSING) or _peek() is not None


def is_recorded() -> bool:
    """Whether a torch.func transform or a tracer such as torch.jit.trace sees the operations."""
    return in_torch_func() or is_tracing() or _dispatch_mode(_PROXY) is not None


def must_see_operations(*tensors: Tensor) -> bool:
    """Whether torch must see every operation: tracing, torch.func, tensor subclasses."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TENSORS:
            return True
    if is_recorded():
        return True
    if forward_ad._current_level < 0:  # no tensor has a tangent
        return False
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie in memory; those of vmap's tensors lie in another tensor."""
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True
