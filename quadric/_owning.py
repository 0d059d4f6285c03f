"""Whether a gradient that autograd hands to a function's `backward` belongs to that function alone.

Mostly it does: the layer behind has just computed it, and nobody will ask for it again. Then it can
be overwritten, which saves a pass through memory that is not in the caches. But both terms of a sum
are given the same tensor, hooks may keep it, and it may be the caller's own. torch decides the same
question, when it adds up gradients in place, by counting references. So do we, to the tensor in C++
and in Python, and to its memory in both; memory that is not torch's own (an array of numpy) is
never overwritten. How many references there are when there is nobody else depends on versions of
torch and Python: it is tried out once, together with cases in which there is somebody.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor

References = tuple[int, int, int, int, bool]
"""To a tensor in C++ and in Python, to its memory in both, and whether that is torch's own."""


def references(tensor: Tensor) -> References:
    """To be called by `backward` itself: every function on the way refers to the tensor, too."""
    storage = tensor.untyped_storage()
    return (
        tensor._use_count(),  # type: ignore[attr-defined]
        sys.getrefcount(tensor),
        torch._C._storage_Use_Count(storage._cdata),  # type: ignore[attr-defined]
        sys.getrefcount(storage),
        storage.resizable(),
    )


class _Counted(torch.autograd.Function):
    """The identity, which counts the references to its gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, found: list[References]) -> Tensor:
        ctx.found = found
        return input.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.found.append(references(grad))
        return grad.clone(), None


def alone() -> References | None:
    """The references to a gradient that nobody else refers to, or None if they do not tell."""
    # Debuggers and profilers may refer to all they see; inference mode has no gradients to try.
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return None
    return None if torch.is_inference_mode_enabled() else _tried()


@functools.lru_cache(maxsize=1)
def _tried() -> References | None:
    found: list[References] = []
    kept: list[Any] = []

    def count(behind: Any, keep: Any = None) -> References:
        input = torch.ones(2, 2, device="cpu", requires_grad=True)
        out: Tensor = _Counted.apply(input, found)  # type: ignore[no-untyped-call]
        if keep is not None:
            out.register_hook(lambda grad: kept.append(keep(grad)))
        behind(out, input)
        return found[-1]

    def ordinary(out: Tensor, input: Tensor) -> None:
        (out * 2).sum().backward()

    try:
        from torch.utils._python_dispatch import _disable_current_modes

        # A mode that keeps what it sees would be counted in all cases alike.
        with _disable_current_modes(), torch.enable_grad():
            nobody = count(ordinary)
            somebody = [
                count(lambda out, input: ((out + input) * 2).sum().backward()),
                count(lambda out, input: (out.view(4) * 2).sum().backward()),
                count(lambda out, input: out.backward(torch.ones_like(out))),
                count(lambda out, input: torch.autograd.grad((out * 2).sum(), (input, out))),
                count(ordinary, lambda grad: grad),
                count(ordinary, lambda grad: grad.detach()),
                count(ordinary, lambda grad: grad.untyped_storage()),
            ]
    except (AttributeError, ImportError, RuntimeError, TypeError):  # another torch
        return None
    return None if nobody in somebody else nobody
