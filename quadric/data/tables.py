"""Tables in memory: columns of numbers and what they are to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from quadric.data.batches import Batching, SplitDataset, TensorBatches
from quadric.errors import InputError


@dataclass(frozen=True)
class Standardization:
    """Means and standard deviations of the training part, to give columns mean 0 and deviation 1.

    Attributes:
        input_mean: one per column of the inputs.
        input_std: one per column of the inputs; 1 where a column is constant.
        target_mean: one per column of the targets.
        target_std: one per column of the targets. An error on standardized targets times this is
            in the target's unit.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def inputs(self, x: Tensor) -> Tensor:
        """Standardizes inputs."""
        return (x - self.input_mean) / self.input_std

    def restore_inputs(self, x: Tensor) -> Tensor:
        """The inverse of `inputs`."""
        return x * self.input_std + self.input_mean

    def targets(self, y: Tensor) -> Tensor:
        """Standardizes targets."""
        return (y - self.target_mean) / self.target_std

    def restore_targets(self, y: Tensor) -> Tensor:
        """The inverse of `targets`."""
        return y * self.target_std + self.target_mean


@dataclass(frozen=True)
class TableData(SplitDataset):
    """A regression table.

    Attributes:
        name: the table's name.
        train_inputs: (N, columns) floats, as are `test_inputs` and `val_inputs`.
        train_targets: (N, 1) floats, as are `test_targets` and `val_targets`.
        input_names: one per column.
        target_name: the name of the column to predict.
        val_inputs: the part that `hold_out` took from the training rows, or None.
    """

    columns: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    input_names: tuple[str, ...]
    target_name: str
    val_inputs: Tensor | None = None
    val_targets: Tensor | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, targets = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets")
            if inputs.dim() != 2 or inputs.shape[1] != len(self.input_names):
                raise InputError(
                    f"{part}_inputs must be a tensor (N, {len(self.input_names)}), "
                    f"got {tuple(inputs.shape)}"
                )
            if targets.shape != (len(inputs), 1):
                raise InputError(
                    f"{part}_targets must be a tensor ({len(inputs)}, 1), "
                    f"got {tuple(targets.shape)}"
                )
        if not len(self.train_inputs):
            raise InputError(f"table {self.name!r} has no training rows")

    @property
    def num_inputs(self) -> int:
        """Number of input columns."""
        return len(self.input_names)

    def standardization(self) -> Standardization:
        """Statistics of the training part alone."""
        parts = (self.train_inputs, self.train_targets)
        moments = [mean_and_deviation(part.numpy()) for part in parts]
        pairs = zip(parts, moments, strict=True)
        return Standardization(*(torch.tensor(v).to(part) for part, two in pairs for v in two))

    def standardized(self) -> TableData:
        """The table with the columns of all parts standardized by the training part."""
        table, scale = self, self.standardization()
        for part in ("train", "test", "val"):
            inputs, targets = self.part(part)
            if inputs is not None:
                table = table.with_part(part, [scale.inputs(inputs), scale.targets(targets)])
        return table

    def classes(self) -> Tensor:
        """One class of all training rows: `hold_out` is then a plain random split."""
        return torch.zeros(self.train_size, dtype=torch.int64)

    def batches(self, part: str, batching: Batching, augment: bool) -> TensorBatches:
        """Batches of the rows of a part; there is nothing to augment."""
        inputs, targets = self.part(part)
        return TensorBatches(inputs, targets, batching)


def mean_and_deviation(
    values: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Of each column, in float64; the deviation of a constant column counts as 1."""
    exact = values.astype(np.float64, copy=False)
    mean = np.average(exact, 0, weights)
    deviation = np.sqrt(np.average((exact - mean) ** 2, 0, weights))
    # Rounding leaves a constant column a tiny deviation.
    noise = 10 * np.finfo(values.dtype).eps * np.abs(mean)
    return mean, np.where(deviation > noise, deviation, 1.0)


class NumberColumns(nn.Module):
    """Columns of numbers, without those that are dropped; holes are filled and marked.

    Numbers of which there are few get a column of 0 and 1 each: `levels`, of the kept columns
    `leveled`.
    """

    kept: Tensor
    medians: Tensor
    marked: Tensor
    leveled: Tensor
    levels: Tensor

    def __init__(
        self, kept: Tensor, medians: Tensor, marked: Tensor, leveled: Tensor, levels: Tensor
    ) -> None:
        super().__init__()
        self.register_buffer("kept", kept)
        self.register_buffer("medians", medians)
        self.register_buffer("marked", marked)
        self.register_buffer("leveled", leveled)
        self.register_buffer("levels", levels)

    def forward(self, input: Tensor) -> Tensor:
        """From all columns of a table, (rows, columns), to the prepared ones."""
        numbers = input.index_select(-1, self.kept)
        holes = numbers.isnan()
        parts = [torch.where(holes, self.medians, numbers)]
        if len(self.marked):
            parts.append(holes.index_select(-1, self.marked).to(numbers.dtype))
        if len(self.leveled):
            equal = numbers.index_select(-1, self.leveled) == self.levels
            parts.append(equal.to(numbers.dtype))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]
