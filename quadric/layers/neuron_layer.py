"""Layers of any registered neuron: one class per kind of linear map; the rule computes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers.layer import (
    ConvGeometry,
    IntOrInts,
    LinearGeometry,
    QuadraticLayer,
    check_dtype,
    uniform_start_,
)
from quadric.layers.registry import Rule, get_neuron
from quadric.layers.tracing import as_node, is_proxy
from quadric.ops.blocks import Blocks

_CACHED = 1 << 23
"""Numbers that one call for several maps may put out: in float32 32 MB, about a last cache."""


class NeuronLayer(QuadraticLayer):
    """Abstract: a layer of the registry's neurons.

    Attributes:
        rule: the neuron's rule with its options.
        init: the start that its parameters were given.
    """

    rule: Rule
    init: str
    # A neuron without a linear part (pure) has no weight: rules that use it have one.
    weight: Any
    bias: nn.Parameter | None

    def _set_neuron(
        self,
        bias: bool,
        neuron: str,
        init: str | None,
        device: Any,
        dtype: torch.dtype | None,
        options: dict[str, Any],
    ) -> None:
        check_dtype(dtype)
        row = get_neuron(neuron)
        self.neuron = neuron
        self.rule = row.make_rule(**options)
        self.rank = getattr(self.rule, "rank", None)
        self.init = check_start(neuron, init)
        shapes = self.rule.shapes(self, bias)
        for name, shape in shapes.items():
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        for name in ("weight", "bias"):
            if name not in shapes:
                self.register_parameter(name, None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias as torch does, the other parameters by the start `init`."""
        if self.weight is not None:
            uniform_start_(self.weight, self.bias)
        elif self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.init == "linear":
            with torch.no_grad():
                for parameter in [p for p in (self.weight, self.bias) if p is not None]:
                    parameter.mul_(self.linear_scale)
        self.rule.start_(self, self.init)

    @property
    def blocks(self) -> Blocks | None:
        return self.rule.blocks(self.num_outputs, self.linear_op.groups)

    def effective_eigenvalues(self) -> Tensor:
        """The numbers in S of z + S z^2, in the order of `blocks`."""
        return self.parameter("eigenvalues")

    def parameter(self, name: str) -> Tensor:
        """The parameter of that name (a tensor under functional_call)."""
        parameter: Tensor = getattr(self, name)
        return parameter

    def quadratic_parameters(self) -> dict[str, nn.Parameter]:
        named = self._parameters.items()
        return {k: p for k, p in named if k in self.rule.quadratic and p is not None}

    def forward(self, input: Tensor) -> Tensor:
        if is_proxy(input):
            return as_node(self, input)  # type: ignore[no-any-return]
        linear_op = self.linear_op
        linear_op.check(input, self._any_weight())
        return self.rule.forward(self, linear_op.prepare(input))

    def _any_weight(self) -> Tensor:
        """A weight of the linear map's shape, to check inputs; a meta one if it has none."""
        if self.weight is not None:
            weight: Tensor = self.weight
            return weight
        return torch.empty(self.weight_shape(), device="meta")

    def responses(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of the output.

        Returns:
            What is linear in the input (constants included), what is quadratic, and the features
            that are handed on besides (none, for all neurons but eigen). The output is the sum of
            the first two.
        """
        linear_op = self.linear_op
        linear_op.check(input, self._any_weight())
        linear, quadratic = self.rule.responses(self, linear_op.prepare(input))
        return linear, quadratic, linear.narrow(linear_op.channel_dim, 0, 0)

    def fused(
        self, input: Tensor, weights: list[Tensor], biases: list[Tensor | None]
    ) -> list[Tensor]:
        """The outputs of several linear maps of one input, by one call where that is faster."""
        linear_op = self.linear_op
        if self._too_large(input, weights):
            each = zip(weights, biases, strict=True)
            return [linear_op(input, weight, own) for weight, own in each]
        bias = None
        if any(b is not None for b in biases):
            sizes = [linear_op.outputs(w) for w in weights]
            pairs = zip(biases, weights, sizes, strict=True)
            bias = linear_op.stack([b if b is not None else w.new_zeros(s) for b, w, s in pairs])
        out = linear_op(input, linear_op.stack(weights), bias)
        if len(weights) == 1:
            return [out]
        dim = out.dim() + linear_op.channel_dim
        groups = linear_op.groups
        sizes = [linear_op.outputs(w) // groups for w in weights]
        if groups == 1:
            return list(out.split(sizes, dim))
        parts = out.unflatten(dim, (groups, -1)).split(sizes, dim + 1)
        return [p.flatten(dim, dim + 1) for p in parts]

    def _too_large(self, input: Tensor, weights: list[Tensor]) -> bool:
        """Whether the outputs of one call would leave the processor's cache before they are used.

        A compiled graph must not depend on the size of a batch.
        """
        if torch.compiler.is_compiling() or input.device.type != "cpu" or input.numel() == 0:
            return False
        outputs = sum(self.linear_op.outputs(weight) for weight in weights)
        return input.numel() // input.shape[self.linear_op.channel_dim] * outputs > _CACHED

    def start_linear_(self, device: Any, dtype: torch.dtype) -> None:
        """Gives the added parameters new storage and the linear start; weight and bias stay."""
        for name in self.added_parameters():
            shape = self.parameter(name).shape
            empty = torch.empty(shape, device=device, dtype=dtype)
            self._parameters[name] = nn.Parameter(empty)
        self.rule.start_(self, "linear")

    @property
    def linear_scale(self) -> float:
        return self.rule.linear_scale

    def linear_start(self, weight: Tensor) -> dict[str, Tensor]:
        if "linear" not in self.rule.starts:
            return {}
        filled = copy.copy(self)
        filled._parameters = dict(self._parameters)
        filled.start_linear_(weight.device, weight.dtype)
        return {name: filled.parameter(name).detach() for name in self.added_parameters()}

    def is_linear(self) -> bool:
        return self.rule.is_linear(self)

    def to_linear(self) -> nn.Module:
        """The torch layer without the products, with the same weight (and, but for fan, bias)."""
        if "linear" not in self.rule.starts:
            raise InputError(
                "a layer must have a linear part of its own to be made linear, got the neuron "
                f"{self.neuron!r}, which has none: build a new torch layer"
            )
        linear = super().to_linear()
        if self.bias is not None:
            linear.bias = self.rule.linear_bias(self)  # type: ignore[assignment]
        back: Any = linear
        back.weight = scaled(back.weight, 1 / self.linear_scale)
        back.bias = scaled(back.bias, 1 / self.linear_scale)
        return linear

    def extra_repr(self) -> str:
        text = self.linear_repr() + f", neuron={self.neuron!r}"
        for name, value in self.rule.options().items():
            text += f", {name}={value!r}"
        return text


def scaled(parameter: nn.Parameter | None, scale: float) -> nn.Parameter | None:
    """A parameter times a number: the same object for 1, else a new one."""
    if parameter is None or scale == 1:
        return parameter
    return nn.Parameter(parameter.detach() * scale, requires_grad=parameter.requires_grad)


def brings_activation(layer: nn.Module) -> bool:
    """Whether a layer has an activation of its own, so that a network puts none behind it."""
    return isinstance(layer, NeuronLayer) and layer.rule.replaces_activation


def check_start(neuron: str, init: str | None) -> str:
    """The start `init` of a neuron, by default the published one."""
    starts = get_neuron(neuron).starts
    init = "published" if init is None else init
    if init not in starts:
        reason = " (it cannot represent a linear layer)" if init == "linear" else ""
        raise InputError(
            f"init of the neuron {neuron!r} must be one of {', '.join(starts)}, got "
            f"{init!r}{reason}"
        )
    return init


class NeuronLinear(LinearGeometry, NeuronLayer):
    """A layer of the neuron `neuron` in place of `nn.Linear`.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        bias: whether the neuron has its constant terms.
        neuron: the registry name.
        init: "published", "linear" or another start of the neuron.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
        options: the neuron's options.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        neuron: str,
        init: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._set_geometry(in_features, out_features)
        self._set_neuron(bias, neuron, init, device, dtype, options)


class _NeuronConvNd(ConvGeometry, NeuronLayer):
    """A layer of the neuron `neuron` in place of torch's convolution.

    Args: torch's, then `neuron`, `init`, `device`, `dtype` and the neuron's options, as in
        `NeuronLinear`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrInts,
        stride: IntOrInts = 1,
        padding: IntOrInts | str = 0,
        dilation: IntOrInts = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        neuron: str,
        init: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._set_geometry(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        )
        self._set_neuron(bias, neuron, init, device, dtype, options)


class NeuronConv1d(_NeuronConvNd):
    """A layer of any registered neuron in place of `nn.Conv1d`."""

    spatial = 1
    linear_class = nn.Conv1d


class NeuronConv2d(_NeuronConvNd):
    """A layer of any registered neuron in place of `nn.Conv2d`."""

    spatial = 2
    linear_class = nn.Conv2d


class NeuronConv3d(_NeuronConvNd):
    """A layer of any registered neuron in place of `nn.Conv3d`."""

    spatial = 3
    linear_class = nn.Conv3d
