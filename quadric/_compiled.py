"""The squares as one operator inside of a compiled graph, for the CPU.

torch.compile fuses a formula into the loops around it, but with the sums of these it does badly:
the gradient of the eigenvalues, one number or one small matrix a neuron summed over all pixels,
becomes as many passes over the activations as there are entries, and in channels_last even the
forward sum is slow. So in a compiled graph the fused kernels, or for the shared neuron the matrix
products that stand in for them, are called as an operator the compiler does not look into.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from quadric import _norm, kernels
from quadric._behind import Behind
from quadric._squares import NOTHING, EigenSquares, Finish, SharedSquares, Squares
from quadric._summing import takes_sums
from quadric.kernels import Norm

# torch.library.custom_op would do the same in one decorator each, and check every call for 40
# microseconds: as long as the squares of a small layer take.
_LIBRARY = torch.library.Library("quadric", "FRAGMENT")

# The version is there for torch, which keeps compiled graphs on disk, with their backward passes,
# and finds them by the operators' names and arguments: those of another version are not taken.
_SETTINGS = "str kind, int rank, int dim, int groups, str version"

# The kernels take what comes, NCHW or channels_last: without the first tag the compiler, which
# changes the layout of convolutions for speed, would change it back for us.
_TAGS = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)


@functools.lru_cache(maxsize=1024)
def _squares(kind: str, rank: int, dim: int, groups: int, version: str) -> Squares:
    return (EigenSquares if kind == "eigen" else SharedSquares)(rank, dim, groups)


def _settings(squares: Squares) -> tuple[str, int, int, int, str]:
    """What an operator is told besides tensors."""
    from quadric import __version__

    return squares.kind, squares.rank, squares.dim, squares.groups, __version__


def _add(out: Tensor, eigenvalues: Tensor, *settings: Any) -> Tensor:
    return _squares(*settings).forward(out, eigenvalues)


def _add_(
    out: Tensor,
    eigenvalues: Tensor,
    shift: Tensor | None,
    relu: bool,
    scale: Tensor | None,
    *settings: Any,
) -> None:
    _squares(*settings).forward_(out, eigenvalues, Finish(shift, relu, scale))


def _gradients(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, *settings: Any
) -> tuple[Tensor, Tensor]:
    found, sums = _squares(*settings).backward(grad, kept, eigenvalues, True)
    assert sums is not None
    # What an operator returns must be new, and lie in memory as was promised.
    if found is grad or found.stride() != kept.stride():
        found = torch.empty_like(kept).copy_(found)
    return found, sums


_LIBRARY.define(f"add_squares(Tensor out, Tensor eigenvalues, {_SETTINGS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    "add_squares_(Tensor(a!) out, Tensor eigenvalues, Tensor? shift, bool relu, Tensor? scale, "
    f"{_SETTINGS}) -> ()",
    tags=_TAGS,
)
_LIBRARY.define(
    f"add_squares_backward(Tensor grad, Tensor kept, Tensor eigenvalues, {_SETTINGS})"
    " -> (Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.impl("add_squares", _add, "CPU")
_LIBRARY.impl("add_squares_", _add_, "CPU")
_LIBRARY.impl("add_squares_backward", _gradients, "CPU")


def _like_out(out: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(out)


def _like_inputs(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, *settings: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(kept), torch.empty_like(eigenvalues)


torch.library.register_fake("quadric::add_squares", _like_out, lib=_LIBRARY)
torch.library.register_fake("quadric::add_squares_", lambda *inputs: None, lib=_LIBRARY)
torch.library.register_fake("quadric::add_squares_backward", _like_inputs, lib=_LIBRARY)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    out, eigenvalues, *ctx.settings = inputs
    ctx.save_for_backward(output if ctx.settings[0] == "eigen" else out, eigenvalues)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    kept, eigenvalues = ctx.saved_tensors
    gradients = torch.ops.quadric.add_squares_backward(grad, kept, eigenvalues, *ctx.settings)
    return (*gradients, *(None,) * len(ctx.settings))


def _no_second(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "a compiled quadratic layer has first derivatives only, and second ones were asked for "
        "(create_graph=True): compute them without torch.compile"
    )


torch.library.register_autograd("quadric::add_squares", _back, setup_context=_keep, lib=_LIBRARY)
# Without this, torch would warn and give wrong ones.
torch.library.register_autograd("quadric::add_squares_backward", _no_second, lib=_LIBRARY)


# ------------------------------------------------------------------------------------------------
# With a BatchNorm and a ReLU behind the squares
# ------------------------------------------------------------------------------------------------

_NORM = "Tensor? weight, Tensor? bias, float eps, bool relu"


def _norm_squares(
    z: Tensor,
    eigenvalues: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    relu: bool,
    of_batch: bool,
    added: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    norm = Norm(weight, bias, eps, relu, of_batch)
    return _norm.forward(z, eigenvalues, _squares(*settings), norm, mean, var, added=added)


def _norm_squares_(
    z: Tensor,
    eigenvalues: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    relu: bool,
    added: Tensor | None,
    *settings: Any,
) -> None:
    norm = Norm(weight, bias, eps, relu, False)
    _norm.forward_(z, eigenvalues, _squares(*settings), norm, mean, var, added)


def _norm_gradients(
    grad: Tensor,
    z: Tensor,
    eigenvalues: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    relu: bool,
    of_batch: bool,
    *settings: Any,
) -> _norm.Gradients:
    norm = Norm(weight, bias, eps, relu, of_batch)
    found = _norm.backward(grad, z, eigenvalues, _squares(*settings), norm, mean, var)
    return kernels.same_layout(found[0], z), *found[1:]


_LIBRARY.define(
    f"norm_squares(Tensor z, Tensor eigenvalues, Tensor? mean, Tensor? var, {_NORM}, "
    f"bool of_batch, Tensor? added, {_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    f"norm_squares_(Tensor(a!) z, Tensor eigenvalues, Tensor mean, Tensor var, {_NORM}, "
    f"Tensor? added, {_SETTINGS}) -> ()",
    tags=_TAGS,
)
_LIBRARY.define(
    "norm_squares_backward(Tensor grad, Tensor z, Tensor eigenvalues, Tensor mean, Tensor var, "
    f"{_NORM}, bool of_batch, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.impl("norm_squares", _norm_squares, "CPU")
_LIBRARY.impl("norm_squares_", _norm_squares_, "CPU")
_LIBRARY.impl("norm_squares_backward", _norm_gradients, "CPU")


def _out_and_statistics(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    one = z.new_empty(z.shape[1], dtype=torch.float64)
    return torch.empty_like(z), one, torch.empty_like(one)


def _like_all(grad: Tensor, z: Tensor, eigenvalues: Tensor, *rest: Any) -> _norm.Gradients:
    one = z.new_empty(z.shape[1])
    return torch.empty_like(z), torch.empty_like(eigenvalues), one, torch.empty_like(one)


torch.library.register_fake("quadric::norm_squares", _out_and_statistics, lib=_LIBRARY)
torch.library.register_fake("quadric::norm_squares_", lambda *inputs: None, lib=_LIBRARY)
torch.library.register_fake("quadric::norm_squares_backward", _like_all, lib=_LIBRARY)


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    z, eigenvalues, _, _, weight, bias, eps, relu, of_batch, added, *settings = inputs
    if added is not None:  # `_summing.py` gives it to graphs that are finished
        raise RuntimeError(
            "there are no gradients of what quadric::norm_squares adds: add it behind the operator"
        )
    ctx.settings = (eps, relu, of_batch, *settings)
    _, mean, var = output
    ctx.save_for_backward(z, eigenvalues, mean, var, weight, bias)


def _back_norm(ctx: Any, grad: Tensor, *of_statistics: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    found = torch.ops.quadric.norm_squares_backward(grad, *tensors, *ctx.settings)
    given = [None if t is None else g for t, g in zip(tensors[4:], found[2:], strict=True)]
    return (*found[:2], None, None, *given, None, *(None,) * len(ctx.settings))


torch.library.register_autograd(
    "quadric::norm_squares", _back_norm, setup_context=_keep_norm, lib=_LIBRARY
)
torch.library.register_autograd("quadric::norm_squares_backward", _no_second, lib=_LIBRARY)


def norm_squares(z: Tensor, eigenvalues: Tensor, squares: Squares, behind: Behind) -> Tensor:
    """Squares, BatchNorm and ReLU as operators. `z` is overwritten where nobody asks for gradients.

    Args:
        z: the linear map's output.
        eigenvalues: one flat vector.
        squares: which squares are added.
        behind: what follows them.
    """
    settings = _settings(squares)
    norm, (mean, var) = behind.settings, behind.statistics
    numbers = (mean, var, norm.weight, norm.bias, norm.eps, norm.relu)
    takes_sums()
    if mean is not None and var is not None and not torch.is_grad_enabled():
        torch.ops.quadric.norm_squares_(z, eigenvalues, *numbers, None, *settings)
        return z
    out: Tensor
    out, mean, var = torch.ops.quadric.norm_squares(
        z, eigenvalues, *numbers, norm.of_batch, None, *settings
    )
    with torch.no_grad():
        behind.track(mean.detach(), var.detach(), z.numel() // z.shape[1])
    return out


# ------------------------------------------------------------------------------------------------


def in_torch_func() -> bool:
    """Whether a torch.func transform is active, or being traced."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# Asked by what traces, as in a graph there is nothing to ask: what
# torch.compiler.assume_constant_result does, without importing the compiler, which takes seconds.
in_torch_func._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_operator(out: Tensor, squares: Squares) -> bool:
    """Whether a graph that is being compiled should hold the operator instead of the formula."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    if in_torch_func():
        return False  # vmap, grad and their kin differentiate the formula
    if out.device.type != "cpu" or out.dtype != torch.float32:
        return False
    return isinstance(squares, SharedSquares) or kernels.active()


def add_squares(
    out: Tensor, eigenvalues: Tensor, squares: Squares, finish: Finish = NOTHING
) -> Tensor:
    """The sum with the squares, and what follows it, as an operator. `out` is overwritten where
    nobody asks for gradients.
    """
    settings = _settings(squares)
    if not torch.is_grad_enabled():
        after = (finish.shift, finish.relu, finish.scale)
        torch.ops.quadric.add_squares_(out, eigenvalues, *after, *settings)
        return out
    result: Tensor = torch.ops.quadric.add_squares(out, eigenvalues, *settings)
    return finish(result, squares.dim)
