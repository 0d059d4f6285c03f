"""The one base class of all layers of neurons: a linear map, and the neuron that computes over it.

A layer is not a subclass of `nn.Linear` or `nn.ConvNd`: code that tests for those reads `.weight`
directly and would drop the squares. It has their attributes under their names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.layers.dense import DENSE_LIMIT, dense_form
from quadric.layers.neuron import Neuron, get_neuron
from quadric.layers.parameters import (
    check_dtype,
    check_plain_parameters,
    scaled,
    uniform_start_,
)
from quadric.layers.scale import ScaledEigenvalues
from quadric.layers.tracing import as_node, is_proxy
from quadric.ops.blocks import Blocks
from quadric.ops.linear_ops import LinearOp
from quadric.support.checks import check_size

Self = TypeVar("Self", bound="QuadraticLayer")


class QuadraticLayer(ScaledEigenvalues):
    """Abstract base of every layer of quadratic neurons.

    Args:
        args: the arguments of the torch layer, which may be keywords too.
        neuron: the registry name.
        init: "published", "linear" or another start of the neuron.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
        options: keyword arguments of the torch layer, and the neuron's options.

    Attributes:
        rule: the neuron with its options.
        init: the start that its parameters were given.
        linear_op: the linear map under the neuron.
        blocks: where each of `effective_eigenvalues()` stands in z + S z^2, None for other neurons.
        eigenvalue_scale: what the eigenvalues are multiplied by, a number that the first batch of
            training sets (1 until then); None in a layer whose eigenvalues count as they are.
        stored_transposed: whether state dicts hold the weight transposed, as those of transformers'
            `Conv1D` do.
    """

    linear_class: ClassVar[type[nn.Module]]
    geometry_names: ClassVar[tuple[str, ...]]
    """The attributes of the torch layer that say which linear map it is, bias aside."""
    fixed_neuron: ClassVar[str | None] = None
    """The neuron of a class that takes no other."""

    rule: Neuron
    init: str
    linear_op: LinearOp
    blocks: Blocks | None
    # A neuron without a linear part (pure) has no weight: neurons that use it have one.
    weight: Any
    bias: nn.Parameter | None
    stored_transposed = False

    if TYPE_CHECKING:  # the parameters of the neurons

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        *args: Any,
        neuron: str,
        init: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_dtype(dtype)
        signature = inspect.signature(self.linear_class)
        own = [p for name, p in signature.parameters.items() if name not in ("device", "dtype")]
        signature = signature.replace(parameters=own)
        keywords = {k: options.pop(k) for k in signature.parameters if k in options}
        arguments = signature.bind(*args, **keywords).arguments
        self._set_geometry(arguments)
        row = get_neuron(neuron)
        self.rule = row.with_options(**options)
        self.init = row.check_start(init)
        self.register_buffer("eigenvalue_scale", None)
        self.awaits_scale = False
        self._set_up()
        shapes = self.rule.shapes(self, bool(arguments.get("bias", True)))
        for name in dict.fromkeys(["weight", "bias", *shapes, *self.rule.more_biases()]):
            shape = shapes.get(name)
            value = None if shape is None else torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, None if value is None else nn.Parameter(value))
        self.reset_parameters()

    def _set_geometry(self, arguments: Mapping[str, Any]) -> None:
        """Lets torch parse its own arguments, in a layer without storage."""
        for name in ("in_features", "out_features", "in_channels", "out_channels"):
            if name in arguments:
                check_size(name, arguments[name])
        try:
            parsed = self.linear_class(**{**arguments, "bias": False, "device": "meta"})
        except (TypeError, ValueError) as error:
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            name = self.linear_class.__name__
            raise kind(
                f"{error}, got {given}: give arguments that torch.nn.{name} takes"
            ) from error
        for name in self.geometry_names:
            setattr(self, name, getattr(parsed, name))

    def _set_up(self) -> None:
        """What follows from geometry and neuron, kept because building it takes time."""
        self.linear_op = self._make_linear_op()
        self.blocks = self.rule.blocks(self.num_outputs, self.linear_op.groups)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if "linear_op" in self.__dict__ and (name == "rule" or name in self.geometry_names):
            self._set_up()

    def _make_linear_op(self) -> LinearOp:
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

    @property
    def neuron(self) -> str:
        """The name of the neuron in the registry."""
        return self.rule.name

    @property
    def rank(self) -> int | None:
        """The neuron's rank, or None for a neuron that has none."""
        return getattr(self.rule, "rank", None)

    @property
    def normalize(self) -> bool:
        """Whether the squares are those of unit eigenvectors."""
        return getattr(self.rule, "normalize", False)

    @property
    def neuron_ranks(self) -> tuple[int, ...]:
        """The number of features of each neuron, in channel order.

        The last neuron of a convolution group may have fewer; rank 0 is a linear channel.
        """
        blocks = self._squares("neuron_ranks")
        if blocks.shape == "star":
            return tuple(size - 1 for size in blocks.sizes)
        return tuple(size for size in blocks.sizes for _ in range(size))

    def _squares(self, name: str) -> Blocks:
        if self.blocks is None:
            raise InputError(
                f"{name} is for neurons z + S z^2, got the neuron {self.neuron!r}: use eigen, "
                "shared or square"
            )
        return self.blocks

    @property
    def num_neurons(self) -> int:
        """m, the number of neurons: of eigen neurons one for each y, else one for each output."""
        star = self.blocks is not None and self.blocks.shape == "star"
        return len(self.neuron_ranks) if star else self.num_outputs

    @classmethod
    def geometry_of(cls, module: nn.Module) -> dict[str, Any]:
        """The arguments that give a layer the geometry of a torch layer, bias aside."""
        parameters = inspect.signature(cls.linear_class).parameters
        return {name: getattr(module, name) for name in cls.geometry_names if name in parameters}

    def reset_parameters(self) -> None:
        """Draws weight and bias as torch does, the other parameters by the start `init`."""
        if self.weight is not None:
            uniform_start_(self.weight, self.bias)
        elif self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.init == "linear" and self.rule.linear_scale != 1:
            with torch.no_grad():
                for parameter in [p for p in (self.weight, self.bias) if p is not None]:
                    parameter.mul_(self.rule.linear_scale)
        self.rule.start_(self, self.init)

    def effective_eigenvalues(self) -> Tensor:
        """The numbers in S of z + S z^2, in the order of `blocks`."""
        return self.rule.effective_eigenvalues(self)

    def quadratic_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that make the layer quadratic, by their name in this layer."""
        named = self._parameters.items()
        return {k: p for k, p in named if k in self.rule.quadratic and p is not None}

    def added_parameters(self) -> list[str]:
        """The names of the parameters that the neuron adds to a linear layer's."""
        named = self._parameters.items()
        return [k for k, p in named if p is not None and k not in ("weight", "bias")]

    def forward(self, input: Tensor) -> Tensor:
        """The neuron over the linear map of the input."""
        if is_proxy(input):
            return as_node(self, input)  # type: ignore[no-any-return]
        ready = self._checked(input)
        if self.awaits_scale and torch.is_grad_enabled() and self.eigenvalues.requires_grad:
            self._measure_scale_(ready)
        return self.rule.forward(self, ready)

    def _checked(self, input: Tensor) -> Tensor:
        """The input as the linear map takes it, once it is known to fit."""
        weight = self._parameters.get("weight")
        # None: a neuron without one, or a parametrization, which would run twice.
        like = torch.empty(self.weight_shape(), device="meta") if weight is None else weight
        self.linear_op.check(input, like)
        return self.linear_op.prepare(input)

    def responses(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of the output.

        Returns:
            What is linear in the input (constants included), what is quadratic, and the features
            that are handed on besides (of eigen neurons; the first two are then those of the y
            outputs). The output is the sum of the first two.
        """
        linear, quadratic, *features = self.rule.responses(self, self._checked(input))
        quadratic = quadratic.to(linear.dtype)
        none = linear.narrow(self.linear_op.channel_dim, 0, 0)
        return linear, quadratic, features[0] if features else none

    def along_channels(self, values: Tensor) -> Tensor:
        """A vector over the outputs, shaped to broadcast along the channels of an output."""
        return values.reshape(-1, *(1,) * (-1 - self.linear_op.channel_dim))

    def with_bias(self, out: Tensor) -> Tensor:
        """`out` plus the bias, for neurons whose bias stands outside of the linear map."""
        return out if self.bias is None else out + self.along_channels(self.bias.to(out.dtype))

    @classmethod
    def taken_over(
        cls: type[Self], module: nn.Module, neuron: str, init: str | None = None, **options: Any
    ) -> Self:
        """The layer for a torch layer, with its parameters where the start leaves them."""
        expected = cls.linear_class
        if not isinstance(module, expected):
            raise InputTypeError(
                f"{cls.__name__} stands in for torch.nn.{expected.__name__}, got "
                f"{type(module).__name__}: use quadric.make_layer for other layers"
            )
        check_plain_parameters(module)
        row = get_neuron(neuron)
        keeps = row.can_be_linear and (init in (None, "linear") or not row.redraws)
        if init is None:
            asked = not row.can_be_linear or "eigenvalue_init" in options
            init = "published" if asked else "linear"
        weight: Any = module.weight
        own = row.with_options(**options).options()
        arguments = cls.geometry_of(module) | own | {"bias": module.bias is not None}
        if cls.fixed_neuron is None:
            arguments |= {"neuron": neuron, "init": init}
        new = cls(**arguments, device="meta", dtype=weight.dtype)
        new.init = init
        if keeps:
            scale = new.rule.linear_scale
            new.weight, new.bias = scaled(weight, scale), scaled(module.bias, scale)  # type: ignore[arg-type]
            new._start_added_(weight.device, weight.dtype, init)
        else:
            new.to_empty(device=weight.device)
            new.reset_parameters()
        return new.train(module.training)

    def _start_added_(self, device: Any, dtype: torch.dtype, init: str) -> None:
        """Gives the added parameters new storage and a start; weight and bias stay."""
        for name in self.added_parameters():
            empty = torch.empty(getattr(self, name).shape, device=device, dtype=dtype)
            self._parameters[name] = nn.Parameter(empty)
        self.rule.start_(self, init)

    def linear_start(self, weight: Tensor) -> dict[str, Tensor]:
        """The added parameters that make the layer linear, like `weight`; none if it cannot be."""
        if not self.rule.can_be_linear:
            return {}
        filled = copy.copy(self)
        filled._parameters = dict(self._parameters)
        filled._start_added_(weight.device, weight.dtype, "linear")
        return {name: filled._parameters[name].detach() for name in self.added_parameters()}  # type: ignore[union-attr]

    def is_linear(self) -> bool:
        """Whether the layer computes a linear function now: its products have weight zero."""
        return self.rule.is_linear(self)

    def to_linear(self) -> nn.Module:
        """The torch layer without the products, with the same weight (and, but for fan, bias)."""
        if not self.rule.can_be_linear:
            raise InputError(
                "a layer must have a linear part of its own to be made linear, got the neuron "
                f"{self.neuron!r}, which has none: build a new torch layer"
            )
        check_plain_parameters(self)
        bias = self.bias is not None
        new: Any = self.linear_class(**self.geometry_of(self), bias=bias, device="meta")
        new.weight = scaled(self.weight, 1 / self.rule.linear_scale)
        if self.bias is not None:
            new.bias = scaled(self.rule.linear_bias(self), 1 / self.rule.linear_scale)
        new.train(self.training)
        return new  # type: ignore[no-any-return]

    @torch.no_grad()
    def to_dense(self, max_bytes: int = DENSE_LIMIT) -> tuple[Tensor, Tensor, Tensor]:
        """Each neuron as a general quadratic one, x'Mx + w'x + b over the n inputs of a neuron.

        Of an eigen layer these are the y outputs. A feature's bias enters: (q'x + b_f)^2 adds
        2 lambda b_f q to w and lambda b_f^2 to b.

        Args:
            max_bytes: the memory for the matrices above which it refuses.

        Returns:
            M (m, n, n), w (m, n), b (m).
        """
        blocks = self._squares("to_dense")
        n, m = self.num_inputs, self.num_neurons
        size = m * n * n * self.weight.element_size()
        if size > max_bytes:
            raise InputError(
                f"the dense form must fit max_bytes = {max_bytes:,}, but {m} matrices of {n} x "
                f"{n} need {size:,} bytes: raise max_bytes or use a smaller layer"
            )
        filters = self.linear_op.filters(self.weight)
        biases = filters.new_zeros(len(filters)) if self.bias is None else self.bias
        S = blocks.matrix(self.effective_eigenvalues().to(filters.dtype))
        channels = blocks.heads if blocks.shape == "star" else range(self.num_outputs)
        forms = [dense_form(S[channel], filters, biases, channel) for channel in channels]
        matrices, w, b = (torch.stack(part) for part in zip(*forms, strict=True))
        return matrices, w, b

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
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # A linear checkpoint holds this layer's weight and none of the parameters that the neuron
        # adds. Only then are they filled in, so that a partial load never erases trained ones.
        saved = local_metadata.get("quadric")
        linear = not any(prefix + name in state_dict for name in self.added_parameters())
        weight = state_dict.get(prefix + "weight")
        if self.stored_transposed and isinstance(weight, Tensor) and weight.dim() == 2:
            state_dict[prefix + "weight"] = weight.T
        named = [(state_dict.get(prefix + k), p) for k, p in self._parameters.items()]
        fits = all(p is None or v is None or v.shape == p.shape for v, p in named)
        if saved is not None and saved != self._signature() and fits:  # else torch names the misfit
            error_msgs.append(
                f"the layer {prefix[:-1]!r} was saved with {saved} and is {self._signature()}: "
                "build it with the neuron and rank it was saved with."
            )
            return
        weight, own = state_dict.get(prefix + "weight"), self._parameters.get("weight")
        if linear and isinstance(weight, Tensor) and own is not None and weight.shape == own.shape:
            for name, value in self.linear_start(weight).items():
                state_dict[prefix + name] = value
            scale = self.rule.linear_scale
            for name in ("weight", "bias") if scale != 1 else ():
                if prefix + name in state_dict:
                    state_dict[prefix + name] = state_dict[prefix + name] * scale
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        """What torch prints for the linear layer, and the neuron's options that are not default."""
        text = self.linear_class.extra_repr(self)
        if self.fixed_neuron is None:
            text += f", neuron={self.neuron!r}"
        if self.rank is not None:
            text += f", rank={self.rank}"
        if self.blocks is not None and self.blocks.shape == "star":
            text += f", num_neurons={self.num_neurons}"
        defaults = self.rule.defaults()
        for name, value in self.rule.options().items():
            if name != "rank" and value != defaults[name]:
                text += f", {name}={value!r}"
        return text
