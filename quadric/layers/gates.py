"""Neurons that multiply a linear map by a gate, the products that practitioners deploy.

- bilinear: Shazeer, "GLU Variants Improve Transformer", 2020: (w1'x + b1)(w2'x + b2).
- glu: Dauphin et al., "Language Modeling with Gated Convolutional Networks", ICML 2017 (sigmoid),
  and Shazeer 2020 (silu is SwiGLU, gelu is GEGLU); relu6 is the product of StarNet, Ma et al.,
  CVPR 2024: act(w1'x + b1)(w2'x + b2).
- cross: Wang et al., "DCN V2", WWW 2021: z (1 + U V'z), a cross layer on the outputs z = Wx + b.

`weight` and `bias` are the factor without an activation, so that a linear layer can be taken over;
`weight2` and `bias2` are the gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.fused import fused
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, register, widened
from quadric.layers.parameters import uniform_start_
from quadric.ops.linear_ops import ConvOp


@dataclass(frozen=True)
class _Gate:
    """An activation function of a gate, and where it opens at the linear start."""

    function: Callable[[Tensor], Tensor]  # the activation
    offset: float  # the gate's bias at the linear start
    value: float = 1.0  # the activation there


# Where an activation reaches 1 it leaves the weights of a linear layer as they are. A sigmoid does
# not: it starts at its steepest point, with weights twice as large.
_NO_ACTIVATION = _Gate(lambda a: a, 1.0)
_GATES = {
    "silu": _Gate(F.silu, 1.278464542761074),
    "gelu": _Gate(F.gelu, 1.1444507183528787),
    "sigmoid": _Gate(torch.sigmoid, 0.0, 0.5),
    "relu6": _Gate(F.relu6, 1.0),
}


@register(
    "bilinear",
    paper="Shazeer 2020",
    formula="(w1'x + b1)(w2'x + b2)",
    params="2n",
    macs="2n + 1",
    note="without biases b2 stays a constant 1",
)
@dataclass(frozen=True)
class Bilinear(Neuron):
    """(w1'x + b1)(w2'x + b2): `weight` and `bias` are w1 and b1, `weight2` and `bias2` the gate.

    The linear start has w2 = 0 and b2 = 1. Without biases b2 stays a constant 1, or that start
    would be identically zero. The published start draws both maps as torch does.
    """

    quadratic = ("weight2", "bias2")
    maps = ("weight2",)
    biases = 2

    @property
    def gate(self) -> _Gate:
        """The activation of the gate."""
        return _NO_ACTIVATION

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        weight2, bias2 = layer.weight2, layer.bias2
        if init != "linear":
            uniform_start_(weight2, bias2)
            return
        nn.init.zeros_(weight2)
        if bias2 is not None:
            nn.init.constant_(bias2, self.gate.offset)

    def is_linear(self, layer: QuadraticLayer) -> bool:
        weight2, bias2 = layer.weight2, layer.bias2
        if weight2.is_meta or bool(weight2.any()):
            return False
        return bias2 is None or bool((bias2 == bias2.new_tensor(self.gate.offset)).all())

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        biases = [layer.bias, layer.bias2]
        factor, gate = fused(layer.linear_op, input, [layer.weight, layer.weight2], biases)
        a = widened(gate)
        if layer.bias2 is None:
            a = a + self.gate.offset
        return (widened(factor) * self.gate.function(a)).to(factor.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return 2 * n, 2 * n + 1


@register(
    "glu",
    paper="Dauphin et al. 2017, Shazeer 2020",
    formula="act(w1'x + b1)(w2'x + b2)",
    params="2n",
    macs="2n + 1",
    note="act is silu (SwiGLU) by default, gelu, sigmoid or relu6; without biases b1 is a constant",
)
@dataclass(frozen=True)
class GLU(Bilinear):
    """act(w1'x + b1)(w2'x + b2): `weight` and `bias` are w2 and b2, `weight2` and `bias2` the gate.

    It is not a polynomial. It brings its own activation: the networks of this package have none
    behind it, unless `keep_activation` is True.

    The linear start has w1 = 0 and b1 = c with act(c) = 1; for sigmoid c = 0, and the linear
    layer's weight and bias are doubled. Without biases b1 stays this constant c.
    """

    act: str = "silu"
    keep_activation: bool = False

    def __post_init__(self) -> None:
        if self.act not in _GATES:
            raise InputError(
                f"act must be one of {', '.join(_GATES)}, got {self.act!r}: silu makes a SwiGLU"
            )

    @property
    def gate(self) -> _Gate:
        """The activation of the gate."""
        return _GATES[self.act]

    @property
    def degree(self) -> None:
        """It is not a polynomial."""
        return

    @property
    def replaces_activation(self) -> bool:
        return not self.keep_activation

    @property
    def linear_scale(self) -> float:
        return 1 / self.gate.value

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        """The tangent at an input of zero, and the rest."""
        weights = [layer.weight, layer.weight2]
        factor, gate = (
            widened(part) for part in fused(layer.linear_op, input, weights, [None, None])
        )
        b1, b2 = layer.bias2, layer.bias
        start = gate.new_tensor([self.gate.offset]) if b1 is None else b1.to(gate.dtype)
        value, slope = torch.func.jvp(self.gate.function, (start,), (torch.ones_like(start),))[:2]
        linear = layer.along_channels(value) * factor
        if b2 is not None:
            b = b2.to(gate.dtype)
            linear = linear + layer.along_channels(b * slope) * gate
            linear = linear + layer.along_channels(b * value)
        out = self.forward(layer, input)
        return linear.to(out.dtype), out - linear.to(out.dtype)


@register(
    "cross",
    paper="Wang et al. 2021 (DCN V2)",
    formula="z (1 + U V'z), z = Wx + b, U and V of rank k over the layer's outputs",
    params="n + 2k",
    macs="n + 2k + 1",
    note="with groups, U and V are those of each convolution group",
)
@dataclass(frozen=True)
class Cross(Neuron):
    """z (1 + U V'z) with z = Wx + b: each output times k features of all outputs of its group.

    `u` holds a row of k numbers for each output, `v` k rows for each convolution group. The linear
    start has U = 0. The published one draws U and V by Xavier's normal law, as torchrec's
    LowRankCrossNet does; with W = I and no bias the layer is one of that network.
    """

    rank: int = 4
    quadratic = switches = ("u", "v")

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        groups, outputs = layer.linear_op.groups, layer.num_outputs
        extra = {"u": (outputs, self.rank), "v": (groups * self.rank, outputs // groups)}
        return super().shapes(layer, bias) | extra

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        u, v = layer.u, layer.v
        std = math.sqrt(2 / (self.rank + v.shape[1]))
        nn.init.normal_(v, std=std)
        if init == "linear":
            nn.init.zeros_(u)
        else:
            nn.init.normal_(u, std=std)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        out = layer.linear_op(input, layer.weight, layer.bias)
        z = widened(out)
        features = _mixed(layer, z, layer.v)
        return (z + z * _mixed(layer, features, layer.u)).to(out.dtype)

    def per_output(self, n: int) -> tuple[int, int]:
        return n + 2 * self.rank, n + 2 * self.rank + 1


def _mixed(layer: QuadraticLayer, channels: Tensor, matrix: Tensor) -> Tensor:
    """The channels of each group times its rows of a matrix, position by position."""
    linear_op, weight = layer.linear_op, matrix.to(channels.dtype)
    spatial = -1 - linear_op.channel_dim
    if not spatial:
        return F.linear(channels, weight)
    weight = weight.reshape(*weight.shape, *(1,) * spatial)
    return ConvOp(spatial, groups=linear_op.groups)(channels, weight, None)
