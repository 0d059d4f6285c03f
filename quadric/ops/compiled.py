"""z + S z^2 as an operator of torch, for graphs of torch.compile on the CPU.

The compiler fuses a formula into the loops around it, but not the gradients of the eigenvalues:
each becomes a pass of its own over the activations. So a compiled graph calls the kernels, or for
full blocks the matrix products, as one operator that the compiler does not look into.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quadric.ops.backends import backend_for
from quadric.ops.blocks import Blocks

_LIBRARY = torch.library.Library("quadric", "FRAGMENT")

# The version is an argument because torch keeps compiled graphs on disk, together with their
# backward passes, and finds them by the operators' names and arguments.
_SETTINGS = "str shape, int channels, int size, int groups, int dim, str version"

# The operator takes NCHW and channels_last alike. Without this tag the compiler would undo its own
# choice of layout for our sake.
_TAGS = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)


def _blocks(shape: str, channels: int, size: int, groups: int) -> Blocks:
    return Blocks("star" if shape == "star" else "full", channels, size, groups)


def _add(z: Tensor, eigenvalues: Tensor, *settings: Any) -> Tensor:
    *which, dim, _ = settings
    blocks = _blocks(*which)
    result = torch.empty_like(z)
    backend_for(z, blocks, dim).forward(z, result, eigenvalues, blocks, dim)
    return result


def _gradients(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, *settings: Any
) -> tuple[Tensor, Tensor]:
    *which, dim, _ = settings
    blocks = _blocks(*which)
    return backend_for(kept, blocks, dim).backward(grad, kept, eigenvalues, blocks, dim)


def _like_z(z: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(z)


def _like_inputs(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, *settings: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(kept), torch.empty_like(eigenvalues)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    z, eigenvalues, *ctx.settings = inputs
    ctx.save_for_backward(output if ctx.settings[0] == "star" else z, eigenvalues)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    kept, eigenvalues = ctx.saved_tensors
    slopes = torch.ops.quadric.add_squares_backward(grad, kept, eigenvalues, *ctx.settings)
    return (*slopes, *(None,) * len(ctx.settings))


def _no_second(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "a compiled quadratic layer has first derivatives only, and second ones were asked for "
        "(create_graph=True): compute them without torch.compile"
    )


_LIBRARY.define(f"add_squares(Tensor z, Tensor eigenvalues, {_SETTINGS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    f"add_squares_backward(Tensor grad, Tensor kept, Tensor eigenvalues, {_SETTINGS})"
    " -> (Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.impl("add_squares", _add, "CPU")
_LIBRARY.impl("add_squares_backward", _gradients, "CPU")
torch.library.register_fake("quadric::add_squares", _like_z, lib=_LIBRARY)
torch.library.register_fake("quadric::add_squares_backward", _like_inputs, lib=_LIBRARY)
torch.library.register_autograd("quadric::add_squares", _back, setup_context=_keep, lib=_LIBRARY)
# Without this, torch would warn and give wrong ones.
torch.library.register_autograd("quadric::add_squares_backward", _no_second, lib=_LIBRARY)


def add_squares(z: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> Tensor:
    """Calls the operator for z + S z^2."""
    from quadric import __version__

    settings = (blocks.shape, blocks.channels, blocks.size, blocks.groups, dim, __version__)
    result: Tensor = torch.ops.quadric.add_squares(z, eigenvalues, *settings)
    # Star blocks keep the operator's own result for backward: an activation in place overwrites
    # another one. The compiler removes the copy again.
    return result.clone() if blocks.shape == "star" else result
