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
from quadric.functional import check_rank
from quadric.layers.neuron_layer import NeuronLayer
from quadric.layers.registry import Rule, along_channels, draw_, register, squared_dtype


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
class QRes(Rule):
    """(w1'x)(w2'x) + w1'x + b: `weight` is w1, `weight2` is w2."""

    quadratic = ("weight2",)
    switches = ("weight2",)

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        return super().shapes(layer, bias) | {"weight2": layer.weight_shape()}

    def start_(self, layer: NeuronLayer, init: str) -> None:
        weight2 = layer.parameter("weight2")
        if init == "linear":
            nn.init.zeros_(weight2)
        else:
            draw_(weight2)

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        # The bias lies outside the product: the maps run without it.
        first, second = layer.fused(input, [layer.weight, layer.parameter("weight2")], [None] * 2)
        a, b = squared_dtype(first), squared_dtype(second)
        out = a * b + a
        if layer.bias is not None:
            out = out + along_channels(layer.bias.to(out.dtype), layer.linear_op.channel_dim)
        return out.to(first.dtype)

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
class LowRank(Rule):
    """x'Q1 Q2'x + w'x + b: the middle of the ranks 1 to 3 of its source is the default."""

    rank: int = 2
    quadratic = ("q1", "q2")
    switches = ("q1", "q2")

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        wide = layer.weight_shape(layer.num_outputs * self.rank)
        return super().shapes(layer, bias) | {"q1": wide, "q2": wide}

    def start_(self, layer: NeuronLayer, init: str) -> None:
        draw_(layer.parameter("q1"))
        if init == "linear":
            nn.init.zeros_(layer.parameter("q2"))
        else:
            draw_(layer.parameter("q2"))

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        weights: list[Tensor] = [layer.weight, layer.parameter("q1"), layer.parameter("q2")]
        linear, first, second = layer.fused(input, weights, [layer.bias, None, None])
        dim = linear.dim() + layer.linear_op.channel_dim
        product = squared_dtype(first) * squared_dtype(second)
        summed: Tensor = product.unflatten(dim, (-1, self.rank)).sum(dim + 1)
        return (squared_dtype(linear) + summed).to(linear.dtype)

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
class Fan(Rule):
    """(w1'x + b1)(w2'x + b2) + w3'(x*x) + c.

    `weight` and `bias` are w1 and b1; then come `weight2`, `bias2`, `weight3`, and `bias3` = c.
    Its published start is the linear one (ReLinear): w2 = 0, b2 = 1, w3 = 0, c = 0; `init="random"`
    draws all maps. Without biases b2 stays a constant 1, or the linear start would be identically
    zero.
    """

    starts = ("published", "linear", "random")
    quadratic = ("weight2", "bias2", "weight3", "bias3")

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes(layer, bias)
        shapes |= {"weight2": layer.weight_shape(), "weight3": layer.weight_shape()}
        if bias:
            shapes |= {"bias2": (layer.num_outputs,), "bias3": (layer.num_outputs,)}
        return shapes

    def start_(self, layer: NeuronLayer, init: str) -> None:
        for name in ("weight2", "weight3"):
            if init == "random":
                draw_(layer.parameter(name))
            else:
                nn.init.zeros_(layer.parameter(name))
        if layer.bias is not None:
            nn.init.ones_(layer.parameter("bias2"))
            nn.init.zeros_(layer.parameter("bias3"))

    def is_linear(self, layer: NeuronLayer) -> bool:
        gate = layer.parameter("bias2") if layer.bias is not None else None
        if layer.parameter("weight2").is_meta:
            return False
        flat = not bool(layer.parameter("weight2").any() or layer.parameter("weight3").any())
        return flat and (gate is None or bool((gate == 1).all()))

    def linear_bias(self, layer: NeuronLayer) -> nn.Parameter | None:
        if layer.bias is None:
            return None
        both = (layer.bias + layer.parameter("bias3")).detach()
        return nn.Parameter(both, requires_grad=layer.bias.requires_grad)

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        weights: list[Tensor] = [layer.weight, layer.parameter("weight2")]
        bias2 = getattr(layer, "bias2", None)
        first, second = layer.fused(input, weights, [layer.bias, bias2])
        # Squares of half precision may not fit it: that map then runs in float32.
        wide = squared_dtype(input)
        bias3 = getattr(layer, "bias3", None)
        squared = layer.linear_op(
            wide * wide,
            layer.parameter("weight3").to(wide.dtype),
            bias3.to(wide.dtype) if bias3 is not None else None,
        )
        a, b = squared_dtype(first), squared_dtype(second)
        if bias2 is None:
            b = b + 1
        return (a * b + squared_dtype(squared)).to(first.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return 3 * n, 3 * n + 1

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        return outputs * (3 * n + 3 * bias)

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
class QuadraLib(Rule):
    """(w1'x)(w2'x) + w3'x + b: `weight` is w3, the factors are `weight1` and `weight2`."""

    quadratic = ("weight1", "weight2")
    switches = ("weight1", "weight2")

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        extra = {"weight1": layer.weight_shape(), "weight2": layer.weight_shape()}
        return super().shapes(layer, bias) | extra

    def start_(self, layer: NeuronLayer, init: str) -> None:
        # The linear start zeroes one factor, not both, or neither would receive a gradient.
        draw_(layer.parameter("weight1"))
        if init == "linear":
            nn.init.zeros_(layer.parameter("weight2"))
        else:
            draw_(layer.parameter("weight2"))

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        weights: list[Tensor] = [
            layer.weight,
            layer.parameter("weight1"),
            layer.parameter("weight2"),
        ]
        linear, first, second = layer.fused(input, weights, [layer.bias, None, None])
        product = squared_dtype(first) * squared_dtype(second)
        return (squared_dtype(linear) + product).to(linear.dtype)

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
class QuadEnhancer(Rule):
    """z (1 + sum_i theta_i roll(z, i)) + b with z = Wx: each output times its neighbours.

    The channels are rolled inside each convolution group, so that groups stay independent.
    """

    shifts: int = 1
    quadratic = ("theta",)
    switches = ("theta",)

    def __post_init__(self) -> None:
        if isinstance(self.shifts, bool) or not isinstance(self.shifts, int) or self.shifts < 1:
            raise InputError(
                f"shifts must be an integer >= 1, got {self.shifts!r}: the published value is 1"
            )

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        return super().shapes(layer, bias) | {"theta": (self.shifts, layer.num_outputs)}

    def start_(self, layer: NeuronLayer, init: str) -> None:
        nn.init.zeros_(layer.parameter("theta"))

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        linear_op = layer.linear_op
        out = linear_op(input, layer.weight, None)
        z = squared_dtype(out)
        dim = out.dim() + linear_op.channel_dim
        theta = layer.parameter("theta").to(z.dtype)
        grouped = z.unflatten(dim, (linear_op.groups, -1))
        total: Tensor | None = None
        for i in range(1, self.shifts + 1):
            rolled = torch.roll(grouped, i, dim + 1).flatten(dim, dim + 1)
            term = along_channels(theta[i - 1], linear_op.channel_dim) * rolled
            total = term if total is None else total + term
        assert total is not None
        result = z + z * total
        if layer.bias is not None:
            result = result + along_channels(layer.bias.to(z.dtype), linear_op.channel_dim)
        return result.to(out.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return n + self.shifts, n + self.shifts + 1
