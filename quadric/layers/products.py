"""Neurons that multiply linear maps of their input: qres, lowrank, fan and quadralib.

- qres: Bu and Karpatne, "Quadratic Residual Networks", SDM 2021: (w1'x)(w2'x) + w1'x + b.
- lowrank: Jiang et al., "Nonlinear CNN", Neural Computing and Applications 32, 2020: x'Q1 Q2'x +
  w'x + b.
- fan: Fan et al., "On Expressivity and Trainability of Quadratic Networks", 2021: (w1'x + b1)(w2'x
  + b2) + w3'(x*x) + c.
- quadralib: Xu et al., "QuadraLib", MLSys 2022: (w1'x)(w2'x) + w3'x + b. Its code puts a BatchNorm
  after each map; the formula of its paper, which is ours, has none.

Maps of the same input are computed by one call. `weight` and `bias` are the linear part, so that a
linear layer can be taken over: the neuron is linear where the other factor is zero (or, for fan,
one).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.fused import fused
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, register, widened
from quadric.layers.parameters import draw_


@register(
    "qres",
    paper="Bu and Karpatne 2021",
    formula="(w1'x)(w2'x) + w1'x + b",
    params="2n",
    macs="2n + 1",
    printed_params="2n",
    printed_macs="2n",
    note="the product of the two maps is counted; the paper leaves it out",
)
@dataclass(frozen=True)
class QRes(Neuron):
    """(w1'x)(w2'x) + w1'x + b: `weight` is w1, `weight2` is w2."""

    quadratic = switches = maps = ("weight2",)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        # The bias lies outside the product: the maps run without it.
        first, second = fused(layer.linear_op, input, [layer.weight, layer.weight2], [None] * 2)
        a, b = widened(first), widened(second)
        return layer.with_bias(a * b + a).to(first.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return 2 * n, 2 * n + 1


@register(
    "lowrank",
    paper="Jiang et al. 2020",
    formula="x'Q1 Q2'x + w'x + b",
    params="2kn + n",
    macs="2kn + n + k",
    printed_params="2kn + n",
    printed_macs="2kn + k",
    note="the linear part's n MACs are counted; the paper leaves them out",
)
@dataclass(frozen=True)
class LowRank(Neuron):
    """x'Q1 Q2'x + w'x + b: the middle of the ranks 1 to 3 of its source is the default."""

    rank: int = 2
    quadratic = switches = ("q1", "q2")

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        wide = layer.weight_shape(layer.num_outputs * self.rank)
        return super().shapes(layer, bias) | {"q1": wide, "q2": wide}

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        weights = [layer.weight, layer.q1, layer.q2]
        linear, first, second = fused(layer.linear_op, input, weights, [layer.bias, None, None])
        dim = linear.dim() + layer.linear_op.channel_dim
        product = widened(first) * widened(second)
        summed: Tensor = product.unflatten(dim, (-1, self.rank)).sum(dim + 1)
        return (widened(linear) + summed).to(linear.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return (2 * self.rank + 1) * n, (2 * self.rank + 1) * n + self.rank


@register(
    "fan",
    paper="Fan et al. 2021",
    formula="(w1'x + b1)(w2'x + b2) + w3'(x*x) + c",
    params="3n",
    macs="3n + 1",
    printed_params="3n",
    printed_macs="4n",
    note=(
        "the paper squares the inputs once for each neuron; a layer squares them once for all its "
        "outputs, which is counted with the layer, not here"
    ),
)
@dataclass(frozen=True)
class Fan(Neuron):
    """(w1'x + b1)(w2'x + b2) + w3'(x*x) + c.

    `weight` and `bias` are w1 and b1; then come `weight2`, `bias2`, `weight3`, and `bias3` = c.
    Its published start is the linear one (ReLinear): w2 = 0, b2 = 1, w3 = 0, c = 0; `init="random"`
    draws all maps. Without biases b2 stays a constant 1, or the linear start would be identically
    zero.
    """

    starts = ("published", "linear", "random")
    quadratic = ("weight2", "bias2", "weight3", "bias3")
    maps = ("weight2", "weight3")
    biases = 3

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        for weight in (layer.weight2, layer.weight3):
            (draw_ if init == "random" else nn.init.zeros_)(weight)
        if layer.bias is not None:
            nn.init.ones_(layer.bias2)
            nn.init.zeros_(layer.bias3)

    def is_linear(self, layer: QuadraticLayer) -> bool:
        if layer.weight2.is_meta or bool(layer.weight2.any() or layer.weight3.any()):
            return False
        return layer.bias2 is None or bool((layer.bias2 == 1).all())

    def linear_bias(self, layer: QuadraticLayer) -> nn.Parameter | None:
        if layer.bias is None:
            return None
        both = (layer.bias + layer.bias3).detach()
        return nn.Parameter(both, requires_grad=layer.bias.requires_grad)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        biases = [layer.bias, layer.bias2]
        first, second = fused(layer.linear_op, input, [layer.weight, layer.weight2], biases)
        # Squares of half precision may not fit it: that map then runs in float32.
        wide, c = widened(input), layer.bias3
        weight3, c = layer.weight3.to(wide.dtype), c if c is None else c.to(wide.dtype)
        squared = layer.linear_op(wide * wide, weight3, c)
        a, b = widened(first), widened(second)
        if layer.bias2 is None:
            b = b + 1
        return (a * b + widened(squared)).to(first.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return 3 * n, 3 * n + 1

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        squares = positions * n if inputs is None else inputs
        return super().num_macs(n, outputs, groups, positions) + squares


@register(
    "quadralib",
    paper="Xu et al. 2022 (QuadraLib)",
    formula="(w1'x)(w2'x) + w3'x + b",
    params="3n",
    macs="3n + 1",
    printed_params="3n",
    printed_macs="3n",
    note="the product of the two maps is counted; the paper leaves it out",
)
@dataclass(frozen=True)
class QuadraLib(Neuron):
    """(w1'x)(w2'x) + w3'x + b: `weight` is w3, the factors are `weight1` and `weight2`."""

    # The linear start zeroes one factor, not both, or neither would receive a gradient.
    quadratic = switches = maps = ("weight1", "weight2")

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        weights = [layer.weight, layer.weight1, layer.weight2]
        linear, first, second = fused(layer.linear_op, input, weights, [layer.bias, None, None])
        product = widened(first) * widened(second)
        return (widened(linear) + product).to(linear.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return 3 * n, 3 * n + 1


@register(
    "quadenhancer",
    paper="QuadEnhancer, NeurIPS 2025",
    formula="z (1 + sum_i theta_i roll(z, i)) + b, z = Wx",
    params="n + s",
    macs="n + s + 1",
    note="s is the number of shifts, 1 by default",
)
@dataclass(frozen=True)
class QuadEnhancer(Neuron):
    """z (1 + sum_i theta_i roll(z, i)) + b with z = Wx: each output times its neighbours.

    The channels are rolled inside each convolution group, so that groups stay independent.
    """

    shifts: int = 1
    quadratic = switches = ("theta",)

    def __post_init__(self) -> None:
        if isinstance(self.shifts, bool) or not isinstance(self.shifts, int) or self.shifts < 1:
            raise InputError(
                f"shifts must be an integer >= 1, got {self.shifts!r}: the published value is 1"
            )

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        return super().shapes(layer, bias) | {"theta": (self.shifts, layer.num_outputs)}

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        nn.init.zeros_(layer.theta)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        linear_op = layer.linear_op
        out = linear_op(input, layer.weight, None)
        z = widened(out)
        dim = out.dim() + linear_op.channel_dim
        grouped = z.unflatten(dim, (linear_op.groups, -1))
        total = torch.zeros_like(z)
        for i, theta in enumerate(layer.theta.to(z.dtype), 1):
            rolled = torch.roll(grouped, i, dim + 1).flatten(dim, dim + 1)
            total = total + layer.along_channels(theta) * rolled
        return layer.with_bias(z + z * total).to(out.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return n + self.shifts, n + self.shifts + 1
