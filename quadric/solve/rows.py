"""The door for data: what a user gives, checked, as residuals of a network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError, in_one_line
from quadric.solve.jacobian import (
    AnyModule,
    LinearStep,
    Product,
    is_written,
    outputs_of,
    steps_of,
)
from quadric.solve.problems import RowProblem
from quadric.solve.starts import ridge
from quadric.solve.unknowns import Unknowns
from quadric.support.modules import random_state_kept

_RANGE = 1e6
# A network that starts with this multiple of the targets' variance is not made for their scale.
_FAR = 4.0
_CHANGING = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
)


def as_rows(values: Any, name: str, device: torch.device) -> Tensor:
    """A finite tensor of rows: float64, or integers as they are."""
    try:
        rows = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"{name} must be a tensor or an array of numbers, got {in_one_line(error)}: convert it"
        ) from None
    if rows.dim() == 0 or rows.is_complex():
        raise InputError(
            f"{name} must hold real numbers in rows, got {rows.dtype} of shape "
            f"{tuple(rows.shape)}: give (N, columns)"
        )
    rows = rows.detach().to(device)
    if rows.is_floating_point() or rows.dtype == torch.bool:
        rows = rows.double()
    bad = int((~rows.isfinite()).sum())
    if bad:
        raise InputError(
            f"{name} must be finite, got {bad} NaN or infinite numbers: drop or fill those rows"
        )
    return rows


class RowDoor:
    """Data of one fit.

    Attributes:
        unknowns: of the network.
        steps: the network.
        flat: whether targets are (N,).
        problem: what is minimized.
    """

    def __init__(self, model: nn.Module, inputs: Any, targets: Any, weight: Any) -> None:
        self.unknowns = unknowns = Unknowns(model)
        for name, module in unknowns.copy.named_modules():
            if module.training and isinstance(module, _CHANGING):
                raise InputError(
                    "the model must give a row the same outputs each time and beside any others, "
                    f"got {type(module).__name__} {name!r} in training mode: call model.eval()"
                )
        x = as_rows(inputs, "inputs", unknowns.device)
        if not len(x):
            raise InputError("inputs must have at least one row, got none: give data")
        y = as_rows(targets, "targets", unknowns.device).double()
        w = torch.ones(len(x), dtype=torch.float64, device=x.device)
        if weight is not None:
            w = as_rows(weight, "sample_weight", unknowns.device).double()
            if w.shape != (len(x),) or bool((w < 0).any()) or not float(w.sum()):
                raise InputError(
                    f"sample_weight must be one number >= 0 for each of {len(x)} rows, not all 0, "
                    f"got shape {tuple(w.shape)}: give (N,)"
                )
            kept = w > 0
            x, y, w = x[kept], y[kept], w[kept]
            w = w / w.mean()
        self.steps = steps_of(unknowns, x.dim())
        self.whole = not isinstance(self.steps[0] if self.steps else None, AnyModule)
        self.flat = y.dim() == 1
        x = self.converted(x)
        y = self.matched(x, y)
        size = float(y.abs().max()) or 1.0
        mean = (y * w.unsqueeze(1)).sum() / (w.sum() * y.shape[1])
        spread = float(((y - mean) / size).square().mul(w.unsqueeze(1)).mean().sqrt()) * size
        self.unit = spread if spread > 1e-12 * size else size
        if not 1e-140 < self.unit < 1e140:
            raise InputError(
                f"the spread of targets must lie within 1e-140 and 1e140, got {self.unit:.1e}: "
                "scale them"
            )
        units = self._units(x, float(mean))
        self.problem = RowProblem(unknowns, self.steps, (x, y, w), self.unit, units)

    def converted(self, inputs: Any, name: str = "inputs") -> Tensor:
        """Rows as the network takes them."""
        x = as_rows(inputs, name, self.unknowns.device)
        return x.double() if self.whole else x

    def matched(self, x: Tensor, y: Tensor) -> Tensor:
        """Targets as (N, outputs), or an error that names both shapes."""
        try:
            with random_state_kept(self.unknowns.copy):
                outputs = self._checked_outputs(x)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the model must take inputs of shape {tuple(x.shape)}, got {in_one_line(error)}: "
                "give rows that fit its first layer"
            ) from error
        fits = y.shape == (len(x), outputs) or (y.shape == (len(x),) and outputs == 1)
        if not fits:
            raise InputError(
                f"targets must match the outputs ({len(x)}, {outputs}), got shape "
                f"{tuple(y.shape)}: nothing is broadcast"
            )
        return y.reshape(len(x), outputs)

    def start(self) -> Tensor:
        """Where the fit starts: the network, its last layer solved if it is far off in scale."""
        start, problem = self.unknowns.start(), self.problem
        loss, head = problem.loss(start / problem.units), self.steps[-1] if self.steps else None
        if (
            loss <= _FAR * problem.count
            or not isinstance(head, LinearStep)
            or head.blocks is not None
        ):
            return start
        parts = self.unknowns.parts
        if not {head.weight, head.bias} <= set(parts):
            return start
        parameters = self.unknowns.split(start)
        features = outputs_of(self.steps[:-1], parameters, problem.inputs)
        weight, bias, _ = ridge(features, problem.targets / problem.unit)
        solved = start.clone()
        for name, value in ((head.weight, weight), (head.bias, bias)):
            a, b, _ = parts[name]
            solved[a:b] = value.flatten() * problem.unit
        better = problem.loss(solved / problem.units) < loss or not math.isfinite(loss)
        return solved if better else start

    def _checked_outputs(self, x: Tensor) -> int:
        parameters = self.unknowns.split(self.unknowns.start())
        few = x[:5]
        first = outputs_of(self.steps, parameters, few)
        if not is_written(self.steps):
            alone = [outputs_of(self.steps, parameters, row.unsqueeze(0)) for row in few]
            scale = float(first.abs().max()) + 1e-300
            if float((torch.cat(alone) - first).abs().max()) > 1e-6 * scale:
                raise InputError(
                    "the model must give each row the same outputs alone and together, each time, "
                    "got outputs that change (something random? a mean over rows?): call "
                    "model.eval() first"
                )
        if not bool(first.isfinite().all()):
            raise InputError(
                "the model's outputs must be finite at the start, got NaN or infinity: standardize "
                "the inputs"
            )
        return first.shape[1]

    def _units(self, x: Tensor, mean: float) -> Tensor | None:
        """What one unit of each parameter is, so that a common weight decay makes sense.

        Weights of the first layer act on columns, those of the last layer make targets. Powers of
        two, so that standardized data leave all at 1.
        """
        parts, steps = self.unknowns.parts, self.steps
        units = torch.ones(self.unknowns.count, dtype=torch.float64, device=x.device)
        if steps and isinstance(steps[0], (LinearStep, Product)):
            spread = (x - x.mean(0)).abs().amax(0) / 2
            largest = x.abs().amax(0)
            spread = torch.where(spread > 1e-9 * largest, spread, largest.clamp_min(1e-300))
            spread = torch.where(largest > 0, spread, 1.0)
            wrong = ((spread > _RANGE) | (spread < 1 / _RANGE)).nonzero().flatten().tolist()
            if wrong:
                raise InputError(
                    "the columns of inputs must have a size near 1, got "
                    f"{float(spread[wrong[0]]):.1e} in column {wrong[0]}: standardize them"
                )
            first = steps[0]
            pairs = first.names if isinstance(first, Product) else [(first.weight, first.bias)]
            offset = (x.mean(0).abs() / spread).max().clamp_min(1)
            for weight, bias in pairs:
                for name, size in ((weight, 1 / spread), (bias, offset)):
                    if name in parts:
                        a, b, shape = parts[name]
                        units[a:b] = _power(size).expand(shape).flatten()
        head = steps[-1] if steps else None
        if isinstance(head, LinearStep) and head.blocks is None:
            for name, height in (
                (head.weight, self.unit),
                (head.bias, math.hypot(self.unit, mean)),
            ):
                if name in parts:
                    a, b, _ = parts[name]
                    units[a:b] *= 2.0 ** round(math.log2(height))
        return units


def _power(values: Tensor) -> Tensor:
    """The nearest power of 8: a column that is nearly standardized keeps 1."""
    return 8.0 ** (values.log2() / 3).round()
