"""Whether a file computes what its model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from quadric.errors import InputError, explained
from quadric.exporting.examples import Examples

Call = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs an exported file."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference to the model that is rounding, relative to its largest output."""


def tolerance_of(model: nn.Module, given: float | None) -> float:
    """The given tolerance, or that of the model's dtype."""
    if given is not None:
        if not given >= 0:
            raise InputError(f"tolerance must be >= 0, got {given}: give a small number")
        return given
    dtypes = [p.dtype for p in model.parameters() if p.dtype in TOLERANCES]
    return max((TOLERANCES[dtype] for dtype in dtypes), default=TOLERANCES[torch.float32])


def compare(
    model: nn.Module, call: Call, examples: Examples, tolerance: float, runtime: str
) -> float:
    """The largest difference between a model and its file, over all batch sizes."""
    worst = 0.0
    for size in examples.sizes:
        inputs, expected = _expected(model, examples, size)
        rule = f"the exported network must run in {runtime} at batch size {size}"
        remedy = "no file was written; if it depends on the batch size, export it with "
        with explained(rule, remedy + "dynamic_batch=False", alone=True):
            outputs = call(inputs)
        worst = max(worst, checked_difference(expected, outputs, tolerance, size, runtime))
    return worst


def _expected(
    model: nn.Module, examples: Examples, size: int
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Inputs of a batch size, and what the model makes of them."""
    # Noise may lead out of where the model is defined: then the examples as they are.
    for vary in (True, False):
        inputs = examples.batch(size, vary)
        remedy = "choose other batch_sizes, or dynamic_batch=False"
        with explained(f"the model must run at batch size {size}", remedy, alone=True):
            expected = examples.run(model, inputs)
        if _has_numbers(expected):
            return inputs, expected
    raise InputError(
        "the model must give numbers on the example inputs, got NaN or nothing finite at batch "
        f"size {size}: no file was written; give examples like the data, or train it again if "
        "its weights are NaN"
    )


def _has_numbers(outputs: Sequence[Tensor]) -> bool:
    """Whether no output holds NaN and each holds a finite number, so that they can be compared."""
    real = [v for v in outputs if v.numel() and (v.is_floating_point() or v.is_complex())]
    return all(not bool(v.isnan().any()) and bool(v.isfinite().any()) for v in real)


def checked_difference(
    expected: Sequence[Tensor], got: Sequence[Tensor], tolerance: float, size: int, runtime: str
) -> float:
    """The difference of two results, or an error if it is more than rounding."""
    gap = difference(expected, got)
    if not gap <= tolerance:
        raise InputError(
            f"the exported network must compute what the model computes, but in {runtime} at batch "
            f"size {size} they differ by {gap:.2e} of the largest output, more than the "
            f"tolerance {tolerance:.0e}: no file was written; if that is rounding, raise tolerance"
        )
    return gap


def difference(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """The largest difference of two results, relative to the largest output."""
    if [v.shape for v in expected] != [v.shape for v in got]:
        return float("inf")
    worst = 0.0
    for one, other in zip(expected, got, strict=True):
        a, b = one.double(), other.double()
        finite = a.isfinite()
        scale = a[finite].abs().max().item() if bool(finite.any()) else 0.0
        gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        if gap.numel():
            gap = gap.nan_to_num(nan=float("inf"), posinf=float("inf"))
            worst = max(worst, gap.max().item() / max(scale, 1e-30))
    return worst
