"""Skewed targets: curves that straighten them, and the network that undoes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.tables.modules import InputScaling, TableRegressor

TRANSFORMS = (None, "auto", "log", "quantile")

# With "auto" a target is strongly skewed from here on; an exponential one has 2, a normal one 0.
SKEWED = 1.0

# Points of the curve of "quantile".
KNOTS = 100


class Transform(nn.Module):
    """Abstract: a rising curve that is applied to targets, (N, outputs); `forward` undoes it."""

    def straighten(self, targets: np.ndarray) -> np.ndarray:
        """Targets as they are learned."""
        raise NotImplementedError


class Log(Transform):
    """Logarithms.

    Undoing goes one range of the training targets beyond its ends at most, so that no prediction
    overflows.
    """

    low: Tensor
    high: Tensor

    def __init__(self, targets: np.ndarray, lifts: bool = False) -> None:
        super().__init__()
        self.floor = targets.min(0) if lifts else None
        logs = self.straighten(targets)
        low, high = logs.min(0), logs.max(0)
        self.register_buffer("low", torch.tensor(low - (high - low)))
        self.register_buffer("high", torch.tensor(high + (high - low)))

    def straighten(self, targets: np.ndarray) -> np.ndarray:
        """Targets as they are learned."""
        if self.floor is not None:
            targets = np.maximum(targets, self.floor)
        if not (targets > 0).all():
            raise InputError(
                f"target_transform='log' needs targets above 0, got {targets.min()}: use "
                "'quantile', or None"
            )
        return np.asarray(np.log(targets))

    def forward(self, targets: Tensor) -> Tensor:
        """Targets in their own unit."""
        return torch.clamp(targets, self.low, self.high).exp()


class Quantiles(Transform):
    """A piecewise linear curve through quantiles, after which targets are about normal.

    Undoing stays within the range of the training targets.
    """

    levels: Tensor
    values: Tensor

    def __init__(self, targets: np.ndarray, weights: np.ndarray) -> None:
        super().__init__()
        rows = len(targets)
        shares = np.linspace(0, 1, max(2, min(KNOTS, rows)))
        values = []
        for column in targets.T:
            order = column.argsort()
            before = weights[order].cumsum() - weights[order]
            values.append(np.interp(shares * before[-1], before, column[order]))
        levels = torch.special.ndtri(torch.tensor(shares.clip(0.5 / rows, 1 - 0.5 / rows)))
        knots = torch.tensor(np.stack(values).astype(targets.dtype))
        self.register_buffer("levels", levels.to(knots.dtype))
        self.register_buffer("values", knots)

    def straighten(self, targets: np.ndarray) -> np.ndarray:
        """Targets as they are learned."""
        levels, values = self.levels.cpu().numpy(), self.values.cpu().numpy()
        columns = [
            # From both sides: a value that is several quantiles has the middle of their levels.
            (np.interp(y, v, levels) - np.interp(-y, -v[::-1], -levels[::-1])) / 2
            for y, v in zip(targets.T, values, strict=True)
        ]
        return np.column_stack(columns).astype(targets.dtype)

    def forward(self, targets: Tensor) -> Tensor:
        """Targets in their own unit."""
        # Each piece gives its share of its rise: no difference of large numbers, and plain ONNX.
        pieces = (targets.unsqueeze(-1) - self.levels[:-1]) / self.levels.diff()
        return self.values[:, 0] + (pieces.clamp(0, 1) * self.values.diff(dim=-1)).sum(-1)


def empty_transform(name: str, shapes: Mapping[str, Tensor]) -> Transform:
    """A transformation of a saved network, to be filled; it can only be undone."""
    kinds: dict[str, Any] = {"Log": Log, "Quantiles": Quantiles}
    kind = kinds[name]
    transform: Transform = kind.__new__(kind)
    nn.Module.__init__(transform)
    for key, tensor in shapes.items():
        transform.register_buffer(key, torch.empty_like(tensor))
    return transform


class TransformedRegressor(TableRegressor):
    """A TableRegressor whose targets were transformed before they were standardized."""

    transform: Transform

    def __init__(
        self,
        network: nn.Sequential,
        inputs: InputScaling,
        targets: tuple[Tensor, Tensor],
        flat: bool,
        transform: Transform,
    ) -> None:
        super().__init__(network, inputs, targets, flat)
        self.transform = transform

    def restored(self, targets: Tensor) -> Tensor:
        """Undoes the transformation."""
        restored: Tensor = self.transform(targets)
        return restored


def make_transform(name: str | None, targets: np.ndarray, weights: np.ndarray) -> Transform | None:
    """The transformation of these targets; None for none."""
    if name == "log" or (name == "auto" and _is_skewed(targets)):
        return Log(targets, lifts=name == "auto")
    return Quantiles(targets, weights) if name == "quantile" else None


def _is_skewed(targets: np.ndarray) -> bool:
    """Whether all targets are positive and strongly skewed, and less so as logarithms."""
    if not (targets > 0).all():
        return False
    plain, logs = _skewness(targets), _skewness(np.log(targets))
    return bool(((plain > SKEWED) & (np.abs(logs) < plain / 2)).all())


def _skewness(targets: np.ndarray) -> np.ndarray:
    """Of each column, 0 for a constant one."""
    gaps = targets.astype(np.float64) - targets.mean(0, dtype=np.float64)
    deviations = gaps.std(0)
    return np.asarray(((gaps / np.where(deviations > 0, deviations, 1)) ** 3).mean(0))
