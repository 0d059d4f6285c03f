"""A fitted estimator as a plain `nn.Module`, with its scaling inside."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from quadric.data.tables import NumberColumns, mean_and_deviation
from quadric.errors import InputError, described
from quadric.models import create
from quadric.saving import load_
from quadric.support.tensor_files import read_tensors

# Numbers further than this from the median are pressed together. It is counted in deviations of a
# normal column with the same middle half.
LIMIT = 3.0

# The middle half of a normal column is this number of deviations wide.
NORMAL_HALF = 1.349

# How far, in deviations, the largest number can still lie beyond a limit.
REACH = 3.0

# Rows looked at together, so that no second copy of a table is made.
PART = 2**14


class InputScaling(NamedTuple):
    """How columns are standardized, (columns,) each.

    Attributes:
        mean: what becomes 0.
        scale: what becomes 1.
        low: where standardized numbers are pressed together from, downwards.
        high: the same, upwards.
    """

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor


class Scaled(nn.Module):
    """Abstract: a network that first standardizes its inputs.

    Between the limits of a column that is exact. Beyond them numbers are pressed together smoothly,
    so that one that is far out does not rule the squares, and no input lies outside of what the
    network has learned by more than `REACH`.

    Attributes:
        input_mean: of the rows that the network learned from, between the limits.
        input_scale: their standard deviation, 1 for a constant column.
        input_low: lower limit of standardized inputs; minus infinity for none.
        input_high: upper limit; infinity for none.
        network: the network on standardized inputs.
        others: further members; the prediction is the mean of all.
        linear: a linear model, which has a part in the prediction beside the networks; mostly None.
        share: of the networks in the prediction; the linear model has the rest.
        pressed: the columns of which rows of the fit lay beyond the limits.
    """

    input_mean: Tensor
    input_scale: Tensor
    input_low: Tensor
    input_high: Tensor
    share: Tensor | None

    def __init__(self, network: nn.Sequential, inputs: InputScaling) -> None:
        super().__init__()
        for name, values in inputs._asdict().items():
            self.register_buffer(f"input_{name}", values)
        self.network = network
        self.others = nn.ModuleList()
        self.linear: nn.Sequential | None = None
        self.register_buffer("share", None)
        self.pressed: tuple[int, ...] = ()

    @property
    def networks(self) -> list[nn.Sequential]:
        """All members."""
        return [self.network, *self.others]  # type: ignore[list-item]

    def add_linear(self, linear: nn.Sequential, share: float) -> None:
        """Gives a linear model a part in the prediction, the networks the given share."""
        self.linear = linear
        self.share = torch.tensor(share).to(self.input_mean)

    def standardized(self, input: Tensor) -> Tensor:
        """Inputs as the network sees them."""
        z = (input - self.input_mean) / self.input_scale
        inside = torch.clamp(z, self.input_low, self.input_high)
        beyond = z - inside
        return inside + beyond / (1 + beyond.abs() / REACH)

    def note_pressed(self, values: np.ndarray) -> None:
        """Notes which columns have numbers beyond the limits."""
        beyond = torch.zeros_like(self.input_mean, dtype=torch.bool)
        for start in range(0, len(values), PART):
            rows = torch.tensor(values[start : start + PART]).to(self.input_mean)
            z = (rows - self.input_mean) / self.input_scale
            beyond |= torch.maximum(z - self.input_high, self.input_low - z).amax(0) > 1e-4
        self.pressed = tuple(beyond.nonzero().flatten().tolist())

    def answer(self, outputs: Tensor) -> Tensor:
        """From what the network gives to what is predicted."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """From rows in their own units to predictions."""
        z = self.standardized(input)
        answers = [self.answer(network(z)) for network in self.networks]
        answer = answers[0] if len(answers) == 1 else torch.stack(answers).mean(0)
        if self.linear is None or self.share is None:
            return answer
        line = self.answer(self.linear(z))
        return line + self.share * (answer - line)


class TableRegressor(Scaled):
    """Predicts targets in their own unit: (N, outputs), or (N,) if there is one target.

    Attributes:
        target_mean: of the rows that the network learned from.
        target_scale: their standard deviation.
        ordered: whether the outputs are quantiles of one target, which are sorted.
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        network: nn.Sequential,
        inputs: InputScaling,
        targets: tuple[Tensor, Tensor],
        flat: bool,
    ) -> None:
        super().__init__(network, inputs)
        self.register_buffer("target_mean", targets[0])
        self.register_buffer("target_scale", targets[1])
        self.flat = flat
        self.ordered = False

    def answer(self, outputs: Tensor) -> Tensor:
        """Targets in their own unit."""
        targets = self.restored(outputs * self.target_scale + self.target_mean)
        if self.ordered:
            targets = targets.sort(-1).values
        return targets.squeeze(-1) if self.flat else targets

    def restored(self, targets: Tensor) -> Tensor:
        """Undoes what was done to the targets before they were standardized: here nothing."""
        return targets


class TableClassifier(Scaled):
    """Predicts the probability of each class: (N, classes), in the order of `classes_`."""

    def __init__(self, network: nn.Sequential, inputs: InputScaling, classes: int) -> None:
        super().__init__(network, inputs)
        self.classes = classes

    def answer(self, outputs: Tensor) -> Tensor:
        """The probability of each class."""
        if self.classes == 2:  # one logit, that of the second class
            outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
        return outputs.softmax(-1)


def input_scaling(values: np.ndarray, weights: np.ndarray, wanted: bool | str) -> InputScaling:
    """How columns are standardized, in their dtype; "plain" sets no limits.

    The limits of a column lie `LIMIT` deviations around its median, but not outside of its range.
    Where the middle half of a column is one number, its range is the limit.
    """
    if not wanted or wanted == "plain":
        mean, scale = mean_and_scale(values, weights, bool(wanted))
        infinite = torch.full_like(mean, math.inf)
        return InputScaling(mean, scale, -infinite, infinite)
    limits = np.stack([_limits(column, weights) for column in values.T], 1).astype(values.dtype)
    parts = [  # column by column: a table may be large
        mean_and_scale(np.clip(values[:, i : i + 1], *limits[:, i]), weights, True)
        for i in range(values.shape[1])
    ]
    mean, scale = (torch.cat(part) for part in zip(*parts, strict=True))
    low, high = ((torch.tensor(limit) - mean) / scale for limit in limits)
    return InputScaling(mean, scale, low, high)


def _limits(column: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Between which numbers a column is left as it is."""
    order = column.argsort()
    before = weights[order].cumsum(dtype=np.float64)
    at = np.searchsorted(before, before[-1] * np.array([0.25, 0.5, 0.75]))
    lower, median, upper = column[order[at]].astype(np.float64)
    low, high = float(column[order[0]]), float(column[order[-1]])
    reach = LIMIT * (upper - lower) / NORMAL_HALF
    return (max(low, median - reach), min(high, median + reach)) if reach > 0 else (low, high)


def mean_and_scale(values: np.ndarray, weights: np.ndarray, wanted: bool) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of columns, in their dtype; 0 and 1 if not wanted."""
    if not wanted:
        return torch.zeros_like(torch.tensor(values[0])), torch.ones_like(torch.tensor(values[0]))
    mean, scale = mean_and_deviation(values, weights)
    return torch.tensor(mean.astype(values.dtype)), torch.tensor(scale.astype(values.dtype))


def load_network(path: str | os.PathLike[str]) -> nn.Module:
    """Loads the network that `quadric compare --save model.safetensors` wrote.

    Args:
        path: File; the JSON beside it says what is in it, and which columns the network takes.

    Returns:
        The network with its scaling, in eval mode, as `to_torch()` gave it.

    Raises:
        InputError: if the JSON does not describe a network.
    """
    beside = Path(path).with_suffix(".json")
    shapes = {name: torch.empty_like(t) for name, t in read_tensors(os.fspath(path))[0].items()}
    with described(f"{beside} does not describe a network"):
        facts = json.loads(beside.read_text(encoding="utf-8"))
        options, classes = dict(facts["network"]), facts["classes"]
        check_sizes(options, classes, shapes)
        shared = "share" in shapes or "1.share" in shapes
        members, dtype = options.pop("members"), getattr(torch, options.pop("dtype"))
        networks = [create("mlp", **options).to(dtype) for _ in range(members)]
        sizes = options["in_features"], options["out_features"]
        scaled = empty(networks, *sizes, classes, dtype, flat=sizes[1] == 1)
        if shared:
            line: Any = create("mlp", in_features=sizes[0], out_features=sizes[1], hidden=())
            scaled.add_linear(line.to(dtype), 1.0)
        module: nn.Module = scaled
    if "0.kept" in shapes:
        parts = ("kept", "medians", "marked", "leveled", "levels")
        front = NumberColumns(*(shapes[f"0.{name}"] for name in parts))
        module = nn.Sequential(front, module)
    load_(module, path)
    return module.eval()


def empty(
    networks: Sequence[Any],
    columns: int,
    outputs: int,
    classes: Sequence[Any] | None,
    dtype: torch.dtype,
    *,
    flat: bool,
    regressor: Callable[..., Scaled] = TableRegressor,
) -> Scaled:
    """Networks with a scaling that is to be filled from a file."""
    inputs = InputScaling(*torch.zeros(4, columns, dtype=dtype))
    if classes is None:
        target = torch.zeros(outputs, dtype=dtype), torch.ones(outputs, dtype=dtype)
        module = regressor(networks[0], inputs, target, flat)
    else:
        module = TableClassifier(networks[0], inputs, len(classes))
    module.others.extend(networks[1:])
    return module


def in_words(networks: Sequence[nn.Sequential]) -> str:
    """Number, widths, neurons and activations of networks, in words."""
    layers: list[Any] = [layer for layer in networks[0] if hasattr(layer, "out_features")]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    text = "-".join(map(str, widths)) + (f" ({len(networks)} members)" if networks[1:] else "")
    if len(layers) == 1:
        return text
    neuron, rank = getattr(layers[0], "neuron", "linear"), getattr(layers[0], "rank", None)
    label = neuron if rank is None else f"{neuron}[{rank}]"
    return f"{text} of {label} neurons with {type(networks[0][1]).__name__}"


def check_sizes(options: Any, classes: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a description of a network that is larger than its tensors."""
    largest = max(length for tensor in tensors.values() for length in (1, *tensor.shape))
    sizes = [options[key] for key in ("in_features", "out_features")] + list(options["hidden"])
    limits = [(size, largest) for size in sizes]
    limits += [(options["members"], len(tensors)), (len(options["hidden"]) + 1, len(tensors))]
    if not all(isinstance(size, int) and 1 <= size <= limit for size, limit in limits):
        raise InputError(f"its sizes are {sizes!r:.80}, {options['members']!r:.80} members")
    if classes is not None and not isinstance(classes, list):
        raise InputError("its classes are no list")
