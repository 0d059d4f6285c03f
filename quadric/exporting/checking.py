"""Inputs of any batch size made from examples, and how far two results are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference to the model that is rounding, relative to its largest output."""

BATCH_SIZES = (1, 2, 5)
"""At which an exported network is compared with the model."""


def check_arguments(model: Any, inputs: Sequence[Any], who: str) -> None:
    """Refuses what cannot be exported."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    if not inputs:
        raise ValueError(
            f"{who} must see example inputs, got none: give the arguments of model.forward, such "
            "as torch.randn(1, 3, 32, 32)"
        )
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"example inputs must be tensors, got {type(value).__name__}: fix other arguments "
                "in a module of your own around the model"
            )
    meta = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if meta is not None:
        raise ValueError(
            f"the model must have its numbers, got {meta!r} on the meta device: load weights first"
        )


def check_batch_dim(inputs: Sequence[Tensor], dim: int) -> None:
    """Refuses inputs that do not agree on the size of their batch."""
    for value in inputs:
        if not 0 <= dim < value.dim():
            raise ValueError(
                f"batch_dim must be a dimension of every input, got {dim} for an input of shape "
                f"{tuple(value.shape)}: choose another one, or dynamic_batch=False"
            )
    sizes = {value.shape[dim] for value in inputs}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"the inputs must have one batch size >= 1, got {sorted(sizes)} in dimension {dim}: "
            "give other examples, or dynamic_batch=False"
        )


def batch_of(inputs: Sequence[Tensor], size: int, dim: int, seed: int = 0) -> list[Tensor]:
    """The examples repeated to another batch size, and real ones varied.

    Examples are often zeros or ones, at which a wrong network may look right: noise of their own
    spread is added to numbers, while indices and masks stay what they are.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for value in inputs:
        rows = torch.arange(size) % value.shape[dim]
        made.append(varied(value.index_select(dim, rows), generator))
    return made


def varied(value: Tensor, generator: torch.Generator) -> Tensor:
    """A tensor of numbers with noise of its own spread; any other as it is."""
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        return value
    spread = value.double().std(correction=0).item() if value.numel() else 0.0
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return value + ((spread or 1.0) * noise).to(value.dtype)


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors of a model's output, in the order in which runtimes return them."""
    return [value for value in tree_iter(result) if isinstance(value, Tensor)]


def difference(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest output; inf for results that do not
    match."""
    if len(expected) != len(got):
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            return float("inf")
        a, b = one.double(), other.double()
        same = (a == b) | (a.isnan() & b.isnan())
        finite = a.isfinite() & b.isfinite()
        if not bool((same | finite).all()):
            return float("inf")
        scale = a[finite].abs().max().item() if bool(finite.any()) else 0.0
        gap = (a - b)[finite & ~same].abs()
        if gap.numel():
            worst = max(worst, gap.max().item() / max(scale, 1e-30))
    return worst


def check_outputs(outputs: Sequence[Tensor], size: int) -> None:
    """Refuses a model that gives nothing that could be compared: NaN equals no NaN in a file."""
    for value in outputs:
        real = value.numel() and (value.is_floating_point() or value.is_complex())
        if real and (bool(value.isnan().any()) or not bool(value.isfinite().any())):
            raise ValueError(
                f"the model must give numbers on the examples, got NaN or nothing finite at batch "
                f"size {size}: no file was written; a training that diverged leaves such weights"
            )


def tolerance_of(model: nn.Module, given: float | None) -> float:
    """The given tolerance, or that of the model's dtype."""
    if given is not None:
        if not given >= 0:
            raise ValueError(f"tolerance must be >= 0, got {given}: give a small number")
        return given
    dtypes = [p.dtype for p in model.parameters() if p.dtype in TOLERANCES]
    return max((TOLERANCES[dtype] for dtype in dtypes), default=TOLERANCES[torch.float32])


def check_difference(found: float, tolerance: float, size: int, runtime: str) -> None:
    """Raises for a file that computes something else than the model."""
    if not found <= tolerance:
        raise ValueError(
            f"the exported network must compute what the model computes, but in {runtime} at batch "
            f"size {size} they differ by {found:.2e} of the largest output, more than the "
            f"tolerance {tolerance:.0e}: no file was written; if that is rounding, raise tolerance"
        )
