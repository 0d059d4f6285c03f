"""The registry: one class for each published quadratic neuron, with its formula and its facts.

A neuron says which parameters it has, how they start, what it computes over a linear map and what
that costs. One class gives Linear, Conv1d, Conv2d, Conv3d and transposed layers, the cost formulas,
the table of `quadric neurons` and its place in conversion and training.

A neuron of your own takes part in all of that once it is registered:

    @quadric.layers.register("mine", paper="…", formula="z + a z^2", params="n + 1", macs="n + 2")
    @dataclass(frozen=True)
    class Mine(quadric.layers.Neuron):
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
from quadric.layers.parameters import draw_
from quadric.ops.blocks import Blocks
from quadric.ops.reference import accumulation_dtype
from quadric.support.checks import check_size

if TYPE_CHECKING:
    from quadric.layers.layer import QuadraticLayer

N = TypeVar("N", bound="type[Neuron]")


@dataclass(frozen=True)
class Neuron:
    """What a neuron computes over a linear map. Its dataclass fields are the neuron's options.

    A neuron has no state: parameters live in the layer. Those named `weight` and `bias` are the
    linear part, with torch's shapes, so that a linear layer can be taken over. The first
    attributes, up to `default_rank`, are the facts that `register` writes.

    Attributes:
        name: the registry name.
        paper: the source.
        formula: the formula of one neuron over its n inputs x.
        params: parameters per output of our layer, a formula in n and k, biases aside.
        macs: multiply-accumulates per output, a formula in n and k.
        printed_params: the parameters that the paper's Table I prints, where it has the neuron.
        printed_macs: the computation that this table prints.
        note: the reason why printed and exact counts differ, or another remark.
        can_be_linear: whether it can represent a linear layer: trained networks then convert
            without loss.
        has_rank: whether it has a rank.
        default_rank: the rank it has by default, or None.
        starts: the values that `init` takes; "linear" where the neuron can represent a linear
            layer.
        quadratic: the names of the quadratic parameters.
        switches: parameters each of which, being zero, leaves the linear part alone. At the linear
            start the last one is zero.
        maps: further weights of the shape of `weight`.
        biases: the number of biases of an output: `bias`, `bias2`, …
        redraws: whether the published start draws new weights for a layer that has some.
        transposable: whether it can be computed over transposed convolutions.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    params: ClassVar[str] = ""
    macs: ClassVar[str] = ""
    printed_params: ClassVar[str | None] = None
    printed_macs: ClassVar[str | None] = None
    note: ClassVar[str] = ""
    can_be_linear: ClassVar[bool] = True
    has_rank: ClassVar[bool] = False
    default_rank: ClassVar[int | None] = None

    starts: ClassVar[tuple[str, ...]] = ("published", "linear")
    quadratic: ClassVar[tuple[str, ...]] = ()
    switches: ClassVar[tuple[str, ...]] = ()
    maps: ClassVar[tuple[str, ...]] = ()
    biases: ClassVar[int] = 1
    redraws: ClassVar[bool] = True
    transposable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if "rank" in self.defaults():
            check_size("rank", self.options()["rank"])

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

    def shapes(self, layer: QuadraticLayer, bias: bool) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer, by name."""
        shapes = {"weight": layer.weight_shape()}
        if bias:
            shapes["bias"] = (layer.num_outputs,)
        shapes |= dict.fromkeys(self.maps, layer.weight_shape())
        return shapes | dict.fromkeys(self.more_biases() if bias else (), (layer.num_outputs,))

    def more_biases(self) -> list[str]:
        """The names of the biases after the first, which are None in a layer without biases."""
        return [f"bias{i}" for i in range(2, self.biases + 1)]

    def start_(self, layer: QuadraticLayer, init: str) -> None:
        """Fills the parameters by the start `init`, weight and bias aside, which torch drew."""
        for name in self.quadratic:
            zero = init == "linear" and name in self.switches[-1:]
            (nn.init.zeros_ if zero else draw_)(getattr(layer, name))

    def blocks(self, outputs: int, groups: int) -> Blocks | None:
        """Where each eigenvalue stands, for a neuron z + S z^2; None for other neurons."""
        return None

    def effective_eigenvalues(self, layer: QuadraticLayer) -> Tensor:
        """The numbers in S, in the order of `blocks`."""
        eigenvalues: Tensor = layer.eigenvalues
        return eigenvalues

    def forward(self, layer: QuadraticLayer, input: Tensor) -> Tensor:
        """The output of a layer. The input has been checked and prepared (padded)."""
        raise NotImplementedError

    def responses(self, layer: QuadraticLayer, input: Tensor) -> tuple[Tensor, ...]:
        """The part that is linear in the input (constants included), and the quadratic part.

        Their sum is the output. A third part are features that are handed on besides.
        """
        positive, negative = self.forward(layer, input), self.forward(layer, -input)
        constant = self.forward(layer, torch.zeros_like(input))
        linear = (positive - negative) / 2 + constant
        return linear, (positive + negative) / 2 - constant

    def is_linear(self, layer: QuadraticLayer) -> bool:
        """Whether a layer's parameters leave nothing but its linear part."""
        switches = [getattr(layer, name) for name in self.switches]
        return any(not p.is_meta and not bool(p.any()) for p in switches)

    def linear_bias(self, layer: QuadraticLayer) -> nn.Parameter | None:
        """The bias of the linear layer that is left without the products."""
        return layer.bias

    def per_output(self, n: int) -> tuple[int, int]:
        """Parameters (without biases) and multiply-accumulates of one output over n inputs.

        A neuron whose cost is not the same for each output overrides `num_params` and `num_macs`.
        """
        raise NotImplementedError

    def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
        """The number of parameters of a layer whose neurons see n inputs."""
        return outputs * (self.per_output(n)[0] + self.biases * bias)

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
        """The options of this neuron, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The neuron's options with their defaults."""
        return {f.name: f.default for f in dataclasses.fields(cls)}

    @classmethod
    def with_options(cls, rank: int | None = None, **options: Any) -> Neuron:
        """The neuron with these options; refuses options that it does not have."""
        known = cls.defaults()
        if rank is not None:
            if not cls.has_rank:
                ranked = [name for name, row in _NEURONS.items() if row.has_rank]
                raise InputError(
                    f"the neuron {cls.name!r} has no rank, got rank={rank}: leave rank out "
                    f"(neurons with a rank: {', '.join(ranked)})"
                )
            options["rank"] = rank
        for option in options:
            if option not in known:
                raise InputError(
                    f"the neuron {cls.name!r} has no option {option!r}; its options are: "
                    f"{', '.join(known) or 'none'}"
                )
        return cls(**options)

    @classmethod
    def check_start(cls, init: str | None) -> str:
        """The start `init`, by default the published one."""
        init = "published" if init is None else init
        if init not in cls.starts:
            reason = " (it cannot represent a linear layer)" if init == "linear" else ""
            raise InputError(
                f"init of the neuron {cls.name!r} must be one of {', '.join(cls.starts)}, got "
                f"{init!r}{reason}"
            )
        return init


_NEURONS: dict[str, type[Neuron]] = {}


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
) -> Callable[[N], N]:
    """Registers a class as the neuron `name`; see `Neuron` for the facts."""

    def decorate(neuron: N) -> N:
        fits = isinstance(neuron, type) and issubclass(neuron, Neuron)
        if not (fits and dataclasses.is_dataclass(neuron)):
            raise InputTypeError(
                "a neuron must be a dataclass that derives from quadric.layers.Neuron, got "
                f"{neuron!r}: decorate such a class"
            )
        if name in _NEURONS:
            raise InputError(
                f"the name of a neuron must be new, got {name!r}, which is registered: choose "
                f"another name or call quadric.layers.unregister({name!r}) first"
            )
        neuron.name, neuron.paper, neuron.formula = name, paper, formula
        neuron.params, neuron.macs, neuron.note = params, macs, note
        neuron.printed_params, neuron.printed_macs = printed_params, printed_macs
        neuron.can_be_linear = "linear" in neuron.starts
        neuron.has_rank = "rank" in neuron.defaults()
        neuron.default_rank = neuron.defaults().get("rank")
        _NEURONS[name] = neuron
        return neuron

    return decorate


def unregister(name: str) -> None:
    """Takes a neuron out of the registry."""
    get_neuron(name)
    del _NEURONS[name]


def neurons() -> dict[str, type[Neuron]]:
    """All registered neurons by name: source, formula, exact and printed costs, options."""
    return dict(_NEURONS)


def get_neuron(name: str) -> type[Neuron]:
    """The neuron of that name, or an error that lists the names."""
    if not isinstance(name, str) or name not in _NEURONS:
        raise InputError(f"neuron must be one of {', '.join(_NEURONS)}, got {name!r}")
    return _NEURONS[name]


def widened(tensor: Tensor) -> Tensor:
    """`tensor` in the dtype in which products are computed: float32 for the half precisions."""
    return tensor.to(accumulation_dtype(tensor.dtype))
