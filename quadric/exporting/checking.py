"""Inputs of any batch size made from examples, and how far two results are apart."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.support.modules import call_arguments, check_model

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference to the model that is rounding, relative to its largest output."""

BATCH_SIZES = (1, 2, 5)
"""At which an exported network is compared with the model."""


def checked_arguments(
    model: Any, inputs: Sequence[Any], who: str
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The positional and keyword arguments of an export, or an error for what cannot be exported.

    Keyword arguments come in the order of the forward's own, which is that of a file's inputs.
    """
    check_model(model)
    if not inputs:
        raise InputError(
            f"{who} must see example inputs, got none: give the arguments of model.forward, such "
            "as torch.randn(1, 3, 32, 32)"
        )
    args, kwargs = call_arguments(model, inputs[0]) if len(inputs) == 1 else (tuple(inputs), {})
    order = [name for name in inspect.signature(model.forward).parameters if name in kwargs]
    kwargs = {name: kwargs[name] for name in [*order, *kwargs]}
    for value in (*args, *kwargs.values()):
        if not isinstance(value, Tensor):
            raise InputTypeError(
                f"example inputs must be tensors, got {type(value).__name__}: fix other arguments "
                "in a module of your own around the model"
            )
    meta = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if meta is not None:
        raise InputError(
            f"the model must have its numbers, got {meta!r} on the meta device: load weights first"
        )
    return args, kwargs


def check_batch_dim(inputs: Sequence[Tensor], dim: int) -> None:
    """Refuses inputs that do not agree on the size of their batch."""
    for value in inputs:
        if not 0 <= dim < value.dim():
            raise InputError(
                f"batch_dim must be a dimension of every input, got {dim} for an input of shape "
                f"{tuple(value.shape)}: choose another one, or dynamic_batch=False"
            )
    sizes = {value.shape[dim] for value in inputs}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"the inputs must have one batch size >= 1, got {sorted(sizes)} in dimension {dim}: "
            "give other examples, or dynamic_batch=False"
        )


def batch_of(
    inputs: Sequence[Tensor], size: int, dim: int, seed: int = 0, vary: bool = True
) -> list[Tensor]:
    """The examples repeated to another batch size, and real ones varied.

    Examples are often zeros or ones, at which a wrong network may look right: noise of their own
    spread is added to numbers, while indices and masks stay what they are.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for value in inputs:
        rows = value.index_select(dim, torch.arange(size) % value.shape[dim])
        made.append(rows + _noise(value, rows.shape, dim, generator) if vary else rows)
    return made


def _noise(value: Tensor, shape: torch.Size, dim: int, generator: torch.Generator) -> Tensor:
    """Noise for a tensor of numbers, zero for any other.

    Its spread is that of each place over the examples, because the columns of a table differ in
    scale. With one example, or equal ones, it is the spread of all places.
    """
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        return torch.zeros((), dtype=value.dtype)
    numbers = value.double()
    spread = numbers.std(dim, correction=0, keepdim=True)
    if not bool(spread.any()):
        spread = numbers.std(correction=0) if value.numel() else numbers.new_zeros(())
        spread = torch.where(spread == 0, 1.0, spread)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (spread * noise).to(value.dtype)


def difference(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """The largest difference of two results."""
    if len(expected) != len(got):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            return float("inf")
        a, b = one.double(), other.double()
        finite = a.isfinite()
        scale = a[finite].abs().max().item() if bool(finite.any()) else 0.0
        gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        if gap.numel():
            gap = gap.nan_to_num(nan=float("inf"), posinf=float("inf"))
            worst = max(worst, gap.max().item() / max(scale, 1e-30))
    return worst


def has_numbers(outputs: Sequence[Tensor]) -> bool:
    """Whether no output holds NaN and each holds a finite number, so that they can be compared."""
    real = [v for v in outputs if v.numel() and (v.is_floating_point() or v.is_complex())]
    return all(not bool(v.isnan().any()) and bool(v.isfinite().any()) for v in real)


def tolerance_of(model: nn.Module, given: float | None) -> float:
    """The given tolerance, or that of the model's dtype."""
    if given is not None:
        if not given >= 0:
            raise InputError(f"tolerance must be >= 0, got {given}: give a small number")
        return given
    dtypes = [p.dtype for p in model.parameters() if p.dtype in TOLERANCES]
    return max((TOLERANCES[dtype] for dtype in dtypes), default=TOLERANCES[torch.float32])


def check_difference(found: float, tolerance: float, size: int, runtime: str) -> None:
    """Raises for a file that computes something else than the model."""
    if not found <= tolerance:
        raise InputError(
            f"the exported network must compute what the model computes, but in {runtime} at batch "
            f"size {size} they differ by {found:.2e} of the largest output, more than the "
            f"tolerance {tolerance:.0e}: no file was written; if that is rounding, raise tolerance"
        )
