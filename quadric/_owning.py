"""Whether a gradient that autograd hands to a function's `backward` belongs to that function alone.

Mostly it does: the layer behind has just computed it, and nobody will ask for it again. Then it can
be overwritten, which saves a pass through memory that is not in the caches. But both terms of a sum
are given the same tensor, hooks may keep it, and it may be the caller's own. torch decides the same
question for itself, when it adds up gradients in place, by counting references: to the tensor in
C++, to its Python object, and to its memory. So do we. How many there are when there is nobody else
depends on versions of torch and Python: it is tried out once, together with cases in which there
is.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor

References = tuple[int, int, int]
"""In C++, in Python, to the memory."""


def references(tensor: Tensor) -> References:
    """To be called by `backward` itself: every function on the way refers to the tensor, too."""
    memory = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return tensor._use_count(), sys.getrefcount(tensor), memory  # type: ignore[attr-defined]


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


@functools.lru_cache(maxsize=1)
def alone() -> References | None:
    """The references to a gradient that nobody else refers to, or None if they do not tell."""
    found: list[References] = []
    kept: list[Any] = []

    def count(behind: Any, hook: Any = None) -> References:
        input = torch.ones(2, 2, device="cpu", requires_grad=True)
        out: Tensor = _Counted.apply(input, found)  # type: ignore[no-untyped-call]
        if hook is not None:
            out.register_hook(hook)
        behind(out, input)
        return found[-1]

    try:
        with torch.enable_grad():
            without = count(lambda out, input: (out * 2).sum().backward())
            others = [
                count(lambda out, input: ((out + input) * 2).sum().backward()),
                count(lambda out, input: (out.view(4) * 2).sum().backward()),
                count(lambda out, input: out.backward(torch.ones_like(out))),
                count(lambda out, input: torch.autograd.grad((out * 2).sum(), (input, out))),
                count(lambda out, input: (out * 2).sum().backward(), kept.append),
                count(
                    lambda out, input: (out * 2).sum().backward(),
                    lambda grad: kept.append(grad.detach()),
                ),
            ]
    except (AttributeError, RuntimeError, TypeError):  # another torch
        return None
    return None if without in others else without
