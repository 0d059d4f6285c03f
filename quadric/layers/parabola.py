"""Polynomials in the places of activations and maxima, for networks under encryption."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Parabola(nn.Module):
    """An activation of degree 2: a x² + b x + c, with three learned numbers.

    `quadric.convert_(model, activations="polynomial")` puts it in the place of an activation.

    Attributes:
        coefficients: a, b and c; at the start the identity.

    Examples:
        >>> Parabola()(torch.tensor([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    def __init__(self, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0], device=device, dtype=dtype)
        self.coefficients = nn.Parameter(start)

    def forward(self, input: Tensor) -> Tensor:
        """The parabola of each number."""
        a, b, c = self.coefficients
        made: Tensor = (a * input + b) * input + c
        return made


class AveragePool(nn.Module):
    """Average pooling where a model had maximum pooling."""

    def __init__(self, maximum: Any) -> None:
        super().__init__()
        kind = type(maximum).__name__.replace("Max", "Avg")
        if kind.startswith("Adaptive"):
            self.pool = getattr(nn, kind)(maximum.output_size)
            return
        own = (maximum.kernel_size, maximum.stride, maximum.padding, maximum.ceil_mode)
        # The average over pixels that are there, as the maximum leaves out the others.
        self.pool = getattr(nn, kind)(*own, count_include_pad=False)

    def forward(self, input: Tensor) -> Tensor:
        """The averages."""
        averages: Tensor = self.pool(input)
        return averages


PARTS: dict[type[nn.Module], str] = {Parabola: "parabola", AveragePool: "average"}
"""The parts of a polynomial network that are no layers, by the words for them in files."""
