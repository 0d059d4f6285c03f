"""A fitted estimator as a plain `nn.Module`, with its scaling inside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.saving import load_
from quadric.sklearn.networks import build_network


class Scaled(nn.Module):
    """Abstract: a network that first standardizes its inputs.

    Attributes:
        input_mean: of the rows that the network learned from.
        input_scale: their standard deviation, 1 for a constant column.
        network: the network on standardized inputs.
    """

    input_mean: Tensor
    input_scale: Tensor

    def __init__(self, network: nn.Sequential, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("input_mean", mean)
        self.register_buffer("input_scale", scale)
        self.network = network

    def standardized(self, input: Tensor) -> Tensor:
        """Inputs as the network sees them."""
        return (input - self.input_mean) / self.input_scale

    def answer(self, outputs: Tensor) -> Tensor:
        """From what the network gives to what is predicted."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """From rows in their own units to predictions."""
        return self.answer(self.network(self.standardized(input)))


class TableRegressor(Scaled):
    """Predicts targets in their own unit: (N, outputs), or (N,) if there is one target.

    Attributes:
        target_mean: of the rows that the network learned from.
        target_scale: their standard deviation.
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        network: nn.Sequential,
        inputs: tuple[Tensor, Tensor],
        targets: tuple[Tensor, Tensor],
        flat: bool,
    ) -> None:
        super().__init__(network, *inputs)
        self.register_buffer("target_mean", targets[0])
        self.register_buffer("target_scale", targets[1])
        self.flat = flat

    def answer(self, outputs: Tensor) -> Tensor:
        """Targets in their own unit."""
        targets = self.restored(outputs * self.target_scale + self.target_mean)
        return targets.squeeze(-1) if self.flat else targets

    def restored(self, targets: Tensor) -> Tensor:
        """Undoes what was done to the targets before they were standardized: here nothing."""
        return targets


class TableClassifier(Scaled):
    """Predicts the probability of each class: (N, classes), in the order of `classes_`."""

    def __init__(self, network: nn.Sequential, inputs: tuple[Tensor, Tensor], classes: int) -> None:
        super().__init__(network, *inputs)
        self.classes = classes

    def answer(self, outputs: Tensor) -> Tensor:
        """The probability of each class."""
        if self.classes == 2:  # one logit, that of the second class
            outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
        return outputs.softmax(-1)


def mean_and_scale(
    values: np.ndarray, weights: np.ndarray | None, wanted: bool
) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of columns, in their dtype.

    Args:
        values: (N, columns).
        weights: of the rows.
        wanted: if False, means 0 and deviations 1.

    Returns:
        Means and deviations, (columns,) each.
    """
    columns = values.shape[1]
    mean, scale = np.zeros(columns), np.ones(columns)
    if wanted:
        # In float64: sums of many float32 numbers lose digits.
        scaler = StandardScaler().fit(values.astype(np.float64), sample_weight=weights)
        # Rounding leaves a constant column a tiny deviation.
        noise = 10 * np.finfo(values.dtype).eps * np.abs(scaler.mean_)
        mean, scale = scaler.mean_, np.where(scaler.scale_ > noise, scaler.scale_, 1.0)
    return torch.tensor(mean.astype(values.dtype)), torch.tensor(scale.astype(values.dtype))


def load_network(path: str | os.PathLike[str]) -> Scaled:
    """Loads the network that `quadric compare --save model.safetensors` wrote.

    Args:
        path: the file; the JSON beside it says what is in it.

    Returns:
        The network with its scaling, in eval mode.

    Raises:
        InputError: if the JSON does not describe a network.
    """
    beside = Path(path).with_suffix(".json")
    try:
        facts = json.loads(beside.read_text(encoding="utf-8"))
        network, classes = dict(facts["network"]), facts["classes"]
        inputs = int(network.pop("inputs"))
        outputs = int(network.pop("outputs"))
        # float64 where the digits of a column or of the target need it.
        wide = network.pop("dtype", "float32") == "float64"
        dtype = torch.float64 if wide else torch.float32
        plain = build_network(inputs, outputs, dtype=dtype, **network)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{beside} does not describe a network ({error}): save it again") from None
    columns = (torch.zeros(inputs, dtype=dtype), torch.ones(inputs, dtype=dtype))
    module: Scaled
    if classes is None:
        targets = (torch.zeros(outputs, dtype=dtype), torch.ones(outputs, dtype=dtype))
        module = TableRegressor(plain, columns, targets, flat=outputs == 1)
    else:
        module = TableClassifier(plain, columns, len(classes))
    load_(module, path)
    return module.eval()
