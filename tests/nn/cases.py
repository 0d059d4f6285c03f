"""The seven layers, each with its torch twin and its float64 reference: one table for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import quadric
from tests import reference


@dataclass(frozen=True)
class Case:
    """One layer class with arguments that exercise it, and the input shape they go with."""

    layer: Any
    plain: Any
    args: tuple[int, ...]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.layer.__name__)

    @property
    def outputs(self) -> int:
        return self.args[1]

    @property
    def groups(self) -> int:
        return int(self.options.get("groups", 1))

    @property
    def dim(self) -> int:
        """The channel dimension of a batched input or output."""
        return -1 if self.layer is quadric.QuadraticLinear else 1

    @property
    def transposed(self) -> bool:
        return "Transpose" in self.name

    def make(self, rank: int = 2, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
        """A layer with random eigenvalues, so that its squares are really there."""
        layer = self.layer(*self.args, **self.options, rank=rank, dtype=dtype, **more)
        with torch.no_grad():
            layer.eigenvalues.copy_(torch.randn(layer.eigenvalues.shape))
        return layer

    def make_plain(self, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
        return self.plain(*self.args, **self.options, dtype=dtype, **more)

    def input(self, batch: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        shape = self.shape if batch is None else (batch, *self.shape[1:])
        return torch.randn(shape, dtype=dtype)

    def rows(self, weight: Tensor) -> Tensor:
        """The filter of every output channel, flattened: (C, n)."""
        if self.transposed:
            return reference.transposed_rows(weight, self.groups)
        return weight.flatten(1)

    def reference(self, layer: Any, inputs: Tensor, normalize: bool = False) -> Tensor:
        """What the layer should give, from its parameters alone, in float64."""
        tensors = [layer.weight, layer.bias, layer.eigenvalues]
        weight, bias, lam = (None if t is None else t.double() for t in tensors)
        assert weight is not None
        assert lam is not None
        x, rank = inputs.double(), layer.rank
        if self.layer is quadric.QuadraticLinear:
            return reference.eigen_linear(x, weight, bias, lam, rank, normalize)
        options = {k: v for k, v in self.options.items() if k != "bias"}
        if self.transposed:
            return reference.eigen_conv_transpose(
                x, weight, bias, lam, rank, **options, normalize=normalize
            )
        return reference.eigen_conv(x, weight, bias, lam, rank, **options, normalize=normalize)


CASES = [
    Case(quadric.QuadraticLinear, nn.Linear, (5, 8), (3, 5)),
    Case(
        quadric.QuadraticConv1d,
        nn.Conv1d,
        (4, 8, 3),
        (2, 4, 7),
        {"stride": 2, "padding": 1, "groups": 2},
    ),
    Case(
        quadric.QuadraticConv2d,
        nn.Conv2d,
        (3, 8, 3),
        (2, 3, 5, 4),
        {"stride": 2, "padding": 2, "dilation": 2},
    ),
    Case(
        quadric.QuadraticConv3d,
        nn.Conv3d,
        (2, 8, 2),
        (2, 2, 3, 2, 3),
        {"padding": 1, "stride": 2, "groups": 2},
    ),
    Case(
        quadric.QuadraticConvTranspose1d,
        nn.ConvTranspose1d,
        (4, 8, 3),
        (2, 4, 4),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    Case(
        quadric.QuadraticConvTranspose2d,
        nn.ConvTranspose2d,
        (3, 8, 2),
        (2, 3, 2, 3),
        {"stride": 2, "padding": 1, "dilation": 2},
    ),
    Case(
        quadric.QuadraticConvTranspose3d,
        nn.ConvTranspose3d,
        (2, 8, 2),
        (2, 2, 2, 2, 2),
        {"stride": 2, "groups": 2},
    ),
]
IDS = [case.name for case in CASES]
