"""Neurons with a full quadratic form: n^2 parameters per output, for small layers.

- general: Zoumpourlis et al., "Non-linear Convolution Filters for CNN-Based Learning", ICCV 2017:
  x'Mx + w'x + b. The source keeps the upper triangle of M; ours is the whole matrix, as in the
  paper's Table I.
- pure: Mantini and Shah, "CQNN", 2021: x'Mx (+ b). Their code appends a constant 1 to x, which
  brings a linear part back; the formula of Table I, which is ours, has none.

The released code of `pure` starts M by Glorot's uniform rule, and so do we. The source of `general`
does not say; our start is scaled so that x'Mx has the variance of one input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import Neuron, register, widened
from quadric.ops.linear_ops import ConvOp

MEMORY_LIMIT = 2**30
"""Bytes (in float32) above which a layer with full quadratic forms refuses to be built, unless told
otherwise."""


def patches(layer: QuadraticLayer, input: Tensor) -> Tensor:
    """The inputs of every neuron: (*, positions…, groups, n), the channel dimension last."""
    linear_op = layer.linear_op
    if not isinstance(linear_op, ConvOp):
        return input.unsqueeze(-2)
    spatial = linear_op.spatial
    kernel, stride, dilation = linear_op.kernel_size, linear_op.strides, linear_op.dilations
    sides = linear_op.sides()
    if linear_op.pads_itself(sides):
        flat = [p for side in reversed(sides) for p in side]
        input = nn.functional.pad(input, flat)
    batched = input.dim() == spatial + 2
    x = input if batched else input.unsqueeze(0)
    for d in range(spatial):
        reach = dilation[d] * (kernel[d] - 1) + 1
        # Each unfold appends the window as a new last dimension.
        x = x.unfold(2 + d, reach, stride[d])[..., :: dilation[d]]
    # (N, C, *positions, *kernel) -> (N, *positions, groups, C / groups * prod(kernel))
    x = x.movedim(1, 1 + spatial)
    patch: Tensor = x.unflatten(1 + spatial, (linear_op.groups, -1)).flatten(2 + spatial)
    return patch if batched else patch.squeeze(0)


def quadratic_forms(layer: QuadraticLayer, input: Tensor, forms: Tensor) -> Tensor:
    """Computes x'Mx for every output, with the channels where the linear map puts them."""
    x = patches(layer, input)
    groups, n = x.shape[-2:]
    per_group = forms.reshape(groups, -1, n)
    product = torch.einsum("...gn,gmn->...gm", x, per_group).unflatten(-1, (-1, n))
    out = (widened(product) * widened(x).unsqueeze(-2)).sum(-1).flatten(-2)
    return out.movedim(-1, out.dim() + layer.linear_op.channel_dim).to(product.dtype)


@dataclass(frozen=True)
class _Full(Neuron):
    """What general and pure have in common: the forms and the memory limit."""

    max_bytes: int = MEMORY_LIMIT
    quadratic = ("forms",)
    transposable = False

    def _form_shape(self, layer: QuadraticLayer) -> tuple[int, int, int]:
        n, outputs = layer.num_inputs, layer.num_outputs
        size = 4 * outputs * n * n
        if size > self.max_bytes:
            raise InputError(
                f"a layer of the neuron {self.name!r} must fit max_bytes = {self.max_bytes:,}, "
                f"but {outputs} forms of "
                f"{n} x {n} need {size:,} bytes: raise max_bytes, or use the rank-k neuron 'eigen' "
                f"({4 * outputs * (n + 1):,} bytes) or 'symmetric'"
            )
        return outputs, n, n

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        forms = layer.forms
        if init == "linear":
            nn.init.zeros_(forms)
        else:
            bound = self._bound(layer.num_inputs)
            nn.init.uniform_(forms, -bound, bound)

    def _bound(self, n: int) -> float:
        """Entries of variance 1 / n^2: x'Mx then has the scale of one input."""
        return math.sqrt(3) / n


@register(
    "general",
    paper="Zoumpourlis et al. 2017",
    formula="x'Mx + w'x + b",
    params="n^2 + n",
    macs="n^2 + 2n",
    printed_params="n^2 + n",
    printed_macs="n^2 + 2n",
)
@dataclass(frozen=True)
class General(_Full):
    """x'Mx + w'x + b."""

    switches = ("forms",)

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        return super().shapes(layer, bias) | {"forms": self._form_shape(layer)}

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        linear = layer.linear_op(input, layer.weight, layer.bias)
        return linear, quadratic_forms(layer, input, layer.forms)

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        linear, quadratic = self.responses(layer, input)
        return linear + quadratic

    def per_output(self, n: int) -> tuple[int, int]:
        return n * n + n, n * n + 2 * n


@register(
    "pure",
    paper="Mantini and Shah 2021",
    formula="x'Mx + b",
    params="n^2",
    macs="n^2 + n",
    printed_params="n^2",
    printed_macs="n^2 + n",
)
@dataclass(frozen=True)
class Pure(_Full):
    """x'Mx + b. It cannot represent a linear layer."""

    starts = ("published",)

    def _bound(self, n: int) -> float:
        """Glorot's uniform start for an n x n matrix."""
        return math.sqrt(3 / n)

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"forms": self._form_shape(layer)}
        return shapes | {"bias": (layer.num_outputs,)} if bias else shapes

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        return layer.with_bias(quadratic_forms(layer, input, layer.forms))

    def per_output(self, n: int) -> tuple[int, int]:
        return n * n, n * n + n
