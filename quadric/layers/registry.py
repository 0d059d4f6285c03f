"""The registry: one row for each published quadratic neuron, its facts and its rule.

A row is a `Rule`, a small class that says which parameters a neuron has, how they start, what it
computes over a linear map and what that costs, together with the facts of its source. One row gives
Linear, Conv1d, Conv2d and Conv3d layers, the cost formulas, the table of `quadric neurons` and its
place in conversion and training.

A neuron of your own takes part in all of that once it is registered:

    @quadric.layers.register("mine", paper="…", formula="z + tanh(a) z^2", params="n + 1", macs="n +
    2")
    @dataclass(frozen=True)
    class Mine(quadric.layers.Rule):
        ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.ops.blocks import Blocks
from quadric.ops.reference import accumulation_dtype

if TYPE_CHECKING:
    from quadric.layers.neuron_layer import NeuronLayer

R = TypeVar("R", bound="type[Rule]")


@dataclass(frozen=True)
class Rule:
    """What a neuron computes over a linear map. Its dataclass fields are the neuron's options.

    A rule has no state: parameters live in the layer. Those named `weight` and `bias` are the
    linear part, with torch's shapes, so that a linear layer can be taken over.
    """

    name: ClassVar[str] = ""
    starts: ClassVar[tuple[str, ...]] = ("published", "linear")
    quadratic: ClassVar[tuple[str, ...]] = ()
    # Parameters each of which, being zero, leaves the linear part alone: the way back to linear.
    switches: ClassVar[tuple[str, ...]] = ()

    @property
    def degree(self) -> int | None:
        """The degree of the output as a polynomial of the input; None if it is no polynomial."""
        return 2

    @property
    def replaces_activation(self) -> bool:
        """Whether it brings an activation: networks built with it have none behind it."""
        return False

    @property
    def linear_scale(self) -> float:
        """Its weight and bias at the linear start, as a multiple of the linear layer's."""
        return 1.0

    def shapes(self, layer: NeuronLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer, by name."""
        shapes = {"weight": layer.weight_shape()}
        if bias:
            shapes["bias"] = (layer.num_outputs,)
        return shapes

    def start_(self, layer: NeuronLayer, init: str) -> None:
        """Fills the parameters by the start `init`, weight and bias aside, which torch drew."""

    def blocks(self, outputs: int, groups: int) -> Blocks | None:
        """Where each eigenvalue stands, for a neuron z + S z^2; None for other neurons."""
        return None

    def forward(self, layer: NeuronLayer, input: Tensor) -> Tensor:
        """The output of a layer. The input has been checked and prepared (padded)."""
        raise NotImplementedError

    def responses(self, layer: NeuronLayer, input: Tensor) -> tuple[Tensor, Tensor]:
        """The part that is linear in the input (constants included), and the quadratic part.

        Their sum is the output.
        """
        positive, negative = self.forward(layer, input), self.forward(layer, -input)
        constant = self.forward(layer, torch.zeros_like(input))
        linear = (positive - negative) / 2 + constant
        return linear, (positive + negative) / 2 - constant

    def is_linear(self, layer: NeuronLayer) -> bool:
        """Whether a layer's parameters leave nothing but its linear part."""
        switches = [layer.parameter(name) for name in self.switches]
        return any(not p.is_meta and not bool(p.any()) for p in switches)

    def linear_bias(self, layer: NeuronLayer) -> nn.Parameter | None:
        """The bias of the linear layer that is left without the products."""
        return layer.bias

    def per_output(self, n: int) -> tuple[int, int]:
        """Parameters (without biases) and multiply-accumulates of one output over n inputs.

        A neuron whose cost is not the same for each output overrides `num_params` and `num_macs`.
        """
        raise NotImplementedError

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        """The number of parameters of a layer whose neurons see n inputs."""
        return outputs * (self.per_output(n)[0] + bias)

    def num_macs(
        self, n: int, outputs: int, groups: int = 1, positions: int = 1, inputs: int | None = None
    ) -> int:
        """The multiply-accumulates of a layer: products of the squares count, biases do not.

        Args:
            n: inputs of one neuron.
            outputs: output channels.
            groups: convolution groups.
            positions: the number of times the layer is applied: batch times output pixels.
            inputs: elements of the input tensor (default: n per position).

        Returns:
            The count for all positions.
        """
        return positions * outputs * self.per_output(n)[1]

    def options(self) -> dict[str, Any]:
        """The options of this rule, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True)
class Neuron:
    """A row of the registry.

    Attributes:
        name: the registry name.
        paper: the paper it comes from.
        formula: the formula of one neuron over its n inputs x.
        params: parameters per output of our layer, a formula in n and k, biases aside.
        macs: multiply-accumulates per output, a formula in n and k.
        printed_params: the parameters that the paper's Table I prints, where it has the neuron.
        printed_macs: the computation that this table prints.
        note: the reason why printed and exact counts differ, or another remark.
        rule: the class that computes it.
    """

    name: str
    paper: str
    formula: str
    params: str
    macs: str
    printed_params: str | None
    printed_macs: str | None
    note: str
    rule: type[Rule]

    @property
    def options(self) -> dict[str, Any]:
        """The neuron's options with their defaults."""
        return {f.name: f.default for f in dataclasses.fields(self.rule)}

    @property
    def default_rank(self) -> int | None:
        """The rank it has by default, None for a neuron without a rank."""
        rank: int | None = self.options.get("rank")
        return rank

    @property
    def has_rank(self) -> bool:
        """Whether the neuron has a rank at all."""
        return "rank" in self.options

    @property
    def can_be_linear(self) -> bool:
        """Whether it can represent a linear layer: trained networks then convert without loss."""
        return "linear" in self.rule.starts

    @property
    def starts(self) -> tuple[str, ...]:
        """The values that `init` takes."""
        return self.rule.starts

    @property
    def quadratic(self) -> tuple[str, ...]:
        """The names of its quadratic parameters."""
        return self.rule.quadratic

    def make_rule(self, rank: int | None = None, **options: Any) -> Rule:
        """The rule with these options; refuses options that the neuron does not have."""
        known = self.options
        if rank is not None:
            if not self.has_rank:
                raise InputError(
                    f"the neuron {self.name!r} has no rank, got rank={rank}: leave rank out "
                    "(neurons with a rank: "
                    f"{', '.join(n for n, row in _NEURONS.items() if row.has_rank)})"
                )
            options["rank"] = rank
        for option in options:
            if option not in known:
                listed = ", ".join(known) or "none"
                raise InputError(
                    f"the neuron {self.name!r} has no option {option!r}; its options are: {listed}"
                )
        return self.rule(**options)


_NEURONS: dict[str, Neuron] = {}


def register(
    name: str,
    *,
    paper: str,
    formula: str,
    params: str,
    macs: str,
    printed_params: str | None = None,
    printed_macs: str | None = None,
    note: str = "",
) -> Callable[[R], R]:
    """Registers a rule as the neuron `name`; see `Neuron` for the facts."""

    def decorate(rule: R) -> R:
        if not (
            isinstance(rule, type) and issubclass(rule, Rule) and dataclasses.is_dataclass(rule)
        ):
            raise InputTypeError(
                "a neuron must be a dataclass that derives from quadric.layers.Rule, got "
                f"{rule!r}: decorate such a class"
            )
        if name in _NEURONS:
            raise InputError(
                f"the name of a neuron must be new, got {name!r}, which is registered: choose "
                "another name or call "
                f"quadric.layers.unregister({name!r}) first"
            )
        rule.name = name
        _NEURONS[name] = Neuron(
            name, paper, formula, params, macs, printed_params, printed_macs, note, rule
        )
        return rule

    return decorate


def unregister(name: str) -> None:
    """Takes a neuron out of the registry."""
    get_neuron(name)
    del _NEURONS[name]


def neurons() -> dict[str, Neuron]:
    """All registered neurons by name: source, formula, exact and printed costs, options."""
    return dict(_NEURONS)


def get_neuron(name: str) -> Neuron:
    """The neuron of that name, or an error that lists the names."""
    if not isinstance(name, str) or name not in _NEURONS:
        raise InputError(f"neuron must be one of {', '.join(_NEURONS)}, got {name!r}")
    return _NEURONS[name]


def squared_dtype(tensor: Tensor) -> Tensor:
    """`tensor` in the dtype in which products are computed: float32 for the half precisions."""
    return tensor.to(accumulation_dtype(tensor.dtype))


def along_channels(values: Tensor, channel_dim: int) -> Tensor:
    """A vector over the outputs, shaped to broadcast along the channel dimension."""
    return values.reshape(-1, *(1,) * (-1 - channel_dim))


def draw_(weight: Tensor) -> None:
    """Fills an extra weight as torch fills a linear layer's."""
    nn.init.kaiming_uniform_(weight, a=5**0.5)
