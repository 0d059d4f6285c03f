"""What all Quadric layers have in common: the base class, and the geometry of the linear map.

A layer is not a subclass of `nn.Linear` or `nn.ConvNd`: code that tests for those reads `.weight`
directly and would drop the squares. It has their attributes under their names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from quadric.errors import InputError, InputTypeError
from quadric.functional import check_groups
from quadric.ops.blocks import Blocks
from quadric.ops.linear_ops import ConvOp, DenseOp, LinearOp, TransposedConvOp

IntOrInts = int | Sequence[int]


class QuadraticLayer(nn.Module):
    """Abstract base of every layer of quadratic neurons.

    Attributes:
        neuron: the name of the neuron in the registry.
        rank: the neuron's rank, or None for a neuron that has none.
        stored_transposed: whether state dicts hold the weight transposed, as those of transformers'
            `Conv1D` do.
    """

    linear_class: ClassVar[type[nn.Module]]

    neuron: str
    rank: int | None
    bias: nn.Parameter | None
    stored_transposed = False

    @property
    def linear_op(self) -> LinearOp:
        """The linear map under the neuron."""
        raise NotImplementedError

    @property
    def blocks(self) -> Blocks | None:
        """Where each of `effective_eigenvalues()` stands in z + S z^2, None for other neurons."""
        return None

    def effective_eigenvalues(self) -> Tensor:
        """The numbers in S, in the order of `blocks`."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        """The number of output channels."""
        raise NotImplementedError

    @property
    def num_inputs(self) -> int:
        """n, the number of inputs that one neuron sees."""
        raise NotImplementedError

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        """The shape of a weight with `filters` filters (default: one per output)."""
        raise NotImplementedError

    @classmethod
    def geometry_of(cls, module: nn.Module) -> dict[str, Any]:
        """The arguments that give a layer the geometry of a torch layer, bias aside."""
        raise NotImplementedError

    def geometry(self) -> dict[str, Any]:
        """The arguments of the torch layer of the same geometry, bias aside."""
        return self.geometry_of(self)

    def _geometry_repr(self) -> str:
        raise NotImplementedError

    def linear_repr(self) -> str:
        """What torch prints for the linear layer of this geometry."""
        has_bias = self.bias is not None
        if isinstance(self, LinearGeometry):
            return f"{self._geometry_repr()}, bias={has_bias}"
        return self._geometry_repr() + ("" if has_bias else ", bias=False")

    def quadratic_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that make the layer quadratic, by their name in this layer."""
        raise NotImplementedError

    def added_parameters(self) -> list[str]:
        """The names of the parameters that the neuron adds to a linear layer's."""
        named = self._parameters.items()
        return [k for k, p in named if p is not None and k not in ("weight", "bias")]

    @property
    def linear_scale(self) -> float:
        """Weight and bias at the linear start, as a multiple of the linear layer's."""
        return 1.0

    def linear_start(self, weight: Tensor) -> dict[str, Tensor]:
        """The added parameters at which the layer is linear, with the device and dtype of `weight`.

        Empty for a neuron that cannot represent a linear layer.
        """
        raise NotImplementedError

    def _signature(self) -> dict[str, Any]:
        """What a checkpoint must agree with beyond shapes: its vector may fit another rank, too."""
        return {"neuron": self.neuron, "rank": self.rank}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.stored_transposed and prefix + "weight" in destination:
            destination[prefix + "weight"] = destination[prefix + "weight"].T
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["quadric"] = self._signature()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # A linear checkpoint holds this layer's weight and none of the parameters that the neuron
        # adds. Only then are they filled in, so that a partial load never erases trained ones.
        metadata = args[0] if args else kwargs.get("local_metadata", {})
        errors = args[4] if len(args) > 4 else kwargs["error_msgs"]
        saved = metadata.get("quadric")
        linear = not any(prefix + name in state_dict for name in self.added_parameters())
        weight = state_dict.get(prefix + "weight")
        if self.stored_transposed and isinstance(weight, Tensor) and weight.dim() == 2:
            state_dict[prefix + "weight"] = weight.T
        named = [(state_dict.get(prefix + k), p) for k, p in self._parameters.items()]
        fits = all(p is None or v is None or v.shape == p.shape for v, p in named)
        if saved is not None and saved != self._signature() and fits:  # else torch names the misfit
            errors.append(
                f"the layer {prefix[:-1]!r} was saved with {saved} and is {self._signature()}: "
                "build it with the neuron and rank it was saved with."
            )
            return
        weight, own = state_dict.get(prefix + "weight"), self._parameters.get("weight")
        if linear and isinstance(weight, Tensor) and own is not None and weight.shape == own.shape:
            for name, value in self.linear_start(weight).items():
                state_dict[prefix + name] = value
            for name in ("weight", "bias") if self.linear_scale != 1 else ():
                if prefix + name in state_dict:
                    state_dict[prefix + name] = state_dict[prefix + name] * self.linear_scale
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def is_linear(self) -> bool:
        """Whether the layer computes a linear function now: its squares have weight zero."""
        raise NotImplementedError

    def to_linear(self) -> nn.Module:
        """The torch layer without the squares, with the same weight and bias objects."""
        own: Any = self
        check_plain_parameters(self)
        new = self.linear_class(**self.geometry(), bias=self.bias is not None, device="meta")
        new.weight = own.weight
        if self.bias is not None:
            new.bias = self.bias
        return new.train(self.training)

    def responses(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of the output: linear in the input, quadratic, and the features handed on."""
        raise NotImplementedError


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raises for a dtype in which a layer cannot compute."""
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise InputTypeError(f"dtype must be a torch.dtype, got {dtype!r}: use torch.float32, say")
    if not dtype.is_floating_point:
        raise InputTypeError(
            f"dtype must be a real floating-point type, got {dtype}: use torch.float32 or another "
            "float"
        )


def check_size(name: str, value: int) -> None:
    """Raises unless `value` is a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputTypeError(
            f"{name} must be an integer >= 1, got {value!r} of type {type(value).__name__}: give "
            "a whole number"
        )
    if value < 1:
        raise InputError(f"{name} must be >= 1, got {value}: give a positive number")


def check_plain_parameters(module: nn.Module) -> None:
    """Raises for a layer whose weight is not there yet (lazy) or computed (a parametrization)."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise InputError(
            f"the layer must have its parameters, got an uninitialized {type(module).__name__}: "
            "run one forward pass first"
        )
    for name in ("weight", "bias"):
        if getattr(module, name, None) is not None and name not in module._parameters:
            raise InputError(
                f"the {name} of the {type(module).__name__} must be a plain parameter, got a "
                "computed one (a parametrization?): remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations first"
            )


class LinearGeometry(QuadraticLayer):
    """The arguments of `nn.Linear`."""

    linear_class = nn.Linear

    in_features: int
    out_features: int

    def _set_geometry(self, in_features: int, out_features: int) -> None:
        check_size("in_features", in_features)
        check_size("out_features", out_features)
        self.in_features = in_features
        self.out_features = out_features

    @property
    def linear_op(self) -> LinearOp:
        return DenseOp()

    @property
    def num_outputs(self) -> int:
        return self.out_features

    @property
    def num_inputs(self) -> int:
        return self.in_features

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        """The shape of a weight with `filters` filters (default: one per output)."""
        return (self.out_features if filters is None else filters, self.in_features)

    @classmethod
    def geometry_of(cls, module: nn.Module) -> dict[str, Any]:
        """The arguments that give a layer the geometry of a torch layer."""
        return {"in_features": module.in_features, "out_features": module.out_features}

    def _geometry_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class ConvGeometry(QuadraticLayer):
    """The arguments of `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`."""

    spatial: ClassVar[int]

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    padding_mode: str

    def _set_geometry(self, in_channels: int, out_channels: int, **arguments: Any) -> None:
        check_size("in_channels", in_channels)
        check_size("out_channels", out_channels)
        check_groups(out_channels, arguments.get("groups", 1))
        if in_channels % arguments.get("groups", 1):
            raise InputError(
                f"in_channels must be divisible by groups, got {in_channels} and "
                f"{arguments['groups']}: choose "
                "another number of groups"
            )
        # torch parses its own arguments: a layer without storage, of which only the geometry is
        # read.
        parsed = self.linear_class(
            in_channels, out_channels, bias=False, device="meta", **arguments
        )
        for name in (
            "in_channels",
            "out_channels",
            "kernel_size",
            "stride",
            "padding",
            "dilation",
            "transposed",
            "output_padding",
            "groups",
            "padding_mode",
        ):
            setattr(self, name, getattr(parsed, name))

    @property
    def linear_op(self) -> LinearOp:
        return ConvOp(
            self.spatial,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.padding_mode,
            self.kernel_size,
        )

    @property
    def num_outputs(self) -> int:
        return self.out_channels

    @property
    def num_inputs(self) -> int:
        return self.in_channels // self.groups * math.prod(self.kernel_size)

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        """The shape of a weight with `filters` filters (default: one per output)."""
        filters = self.out_channels if filters is None else filters
        return (filters, self.in_channels // self.groups, *self.kernel_size)

    @classmethod
    def geometry_of(cls, module: nn.Module) -> dict[str, Any]:
        """The arguments that give a layer the geometry of a torch layer."""
        names = (
            "in_channels",
            "out_channels",
            "kernel_size",
            "stride",
            "padding",
            "dilation",
            "groups",
            "padding_mode",
        )
        return {name: getattr(module, name) for name in names}

    def _geometry_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        ones, zeros = (1,) * self.spatial, (0,) * self.spatial
        if self.padding != zeros:
            parts.append(f"padding={self.padding!r}")
        if self.dilation != ones:
            parts.append(f"dilation={self.dilation}")
        if self.output_padding != zeros:
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class ConvTransposeGeometry(ConvGeometry):
    """The arguments of `nn.ConvTranspose1d`, `nn.ConvTranspose2d` or `nn.ConvTranspose3d`."""

    def _set_geometry(self, in_channels: int, out_channels: int, **arguments: Any) -> None:
        mode = arguments.get("padding_mode", "zeros")
        if mode != "zeros":
            raise InputError(
                f"padding_mode must be 'zeros' for a transposed convolution, got {mode!r}: pad "
                "the output yourself"
            )
        super()._set_geometry(in_channels, out_channels, **arguments)

    @property
    def linear_op(self) -> LinearOp:
        return TransposedConvOp(
            self.spatial,
            self.stride,
            self.padding,  # type: ignore[arg-type]  # torch allows no string padding here
            self.output_padding,
            self.groups,
            self.dilation,
        )

    def map_to(self, input: Tensor, output_size: Sequence[int] | None) -> LinearOp:
        """The map that makes an output of that spatial size, where the stride leaves a choice."""
        linear_op = self.linear_op
        if output_size is None or not isinstance(linear_op, TransposedConvOp):
            return linear_op
        chosen = nn.modules.conv._ConvTransposeNd._output_padding(
            self,  # type: ignore[arg-type]  # only its output_padding is read
            input,
            list(output_size),
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            self.spatial,
            self.dilation,  # type: ignore[arg-type]
        )
        return dataclasses.replace(linear_op, output_padding=tuple(chosen))

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        filters = self.out_channels if filters is None else filters
        return (self.in_channels, filters // self.groups, *self.kernel_size)

    @classmethod
    def geometry_of(cls, module: nn.Module) -> dict[str, Any]:
        """The arguments that give a layer the geometry of a torch layer."""
        return super().geometry_of(module) | {"output_padding": module.output_padding}


def uniform_start_(weight: Tensor, bias: Tensor | None) -> None:
    """Fills a weight and a bias as torch's own linear and convolution layers do."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in, _ = nn.init._calculate_fan_in_and_fan_out(weight)
        if fan_in > 0:
            bound = 1 / math.sqrt(fan_in)
            nn.init.uniform_(bias, -bound, bound)
