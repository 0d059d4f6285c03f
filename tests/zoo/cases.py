"""Every neuron with options, every kind of layer, and what the reference says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import quadric
from tests import reference

F64 = torch.float64


@dataclass(frozen=True)
class Kind:
    """A torch layer class with arguments, and the shape of an input for it."""

    plain: type[nn.Module]
    args: tuple[int, ...]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plain.__name__

    @property
    def groups(self) -> int:
        return int(self.options.get("groups", 1))

    def make_plain(self, bias: bool = True, dtype: torch.dtype = F64) -> Any:
        return self.plain(*self.args, **self.options, bias=bias, dtype=dtype)

    def input(self, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(self.shape, dtype=dtype)


# Five and seven outputs: every remainder of a group is there for the small ranks below.
KINDS = [
    Kind(nn.Linear, (4, 7), (2, 3, 4)),
    Kind(nn.Conv1d, (4, 10, 3), (2, 4, 5), {"stride": 2, "padding": 1, "groups": 2}),
    Kind(nn.Conv2d, (2, 7, 2), (2, 2, 3, 2), {"padding": 1, "padding_mode": "circular"}),
    Kind(nn.Conv2d, (1, 5, (3, 2)), (2, 1, 4, 3), {"padding": "same", "dilation": (1, 2)}),
    Kind(nn.Conv3d, (2, 10, 2), (1, 2, 3, 2, 2), {"stride": (2, 1, 1), "padding": 1, "groups": 2}),
]
KIND_IDS = [f"{kind.name}-{i}" for i, kind in enumerate(KINDS)]


@dataclass(frozen=True)
class Case:
    """A neuron with options, and its reference on one group of one layer."""

    neuron: str
    options: dict[str, Any]
    formula: Callable[[Any, slice, Tensor], Tensor]

    @property
    def name(self) -> str:
        return "-".join([self.neuron, *(f"{k}{v}" for k, v in self.options.items())])

    def make(self, kind: Kind, bias: bool = True, dtype: torch.dtype = F64) -> Any:
        """A layer whose parameters are all random, so that nothing of the formula is hidden."""
        layer = quadric.make_layer(
            kind.plain,
            *kind.args,
            **kind.options,
            bias=bias,
            dtype=dtype,
            neuron=self.neuron,
            **self.options,
        )
        return randomize_(layer)

    def reference(self, layer: Any, inputs: Tensor) -> Tensor:
        """The output by the reference, in float64, from the layer's parameters alone."""
        is_linear = hasattr(layer, "in_features")
        outputs = layer.out_features if is_linear else layer.out_channels
        x = inputs.double()
        if is_linear:
            return reference.over_vectors(lambda v: self.formula(layer, slice(0, outputs), v), x)
        per_group = outputs // layer.groups

        def neuron(group: int, patch: Tensor) -> Tensor:
            part = slice(group * per_group, (group + 1) * per_group)
            return self.formula(layer, part, patch)

        return reference.over_patches(
            neuron,
            x,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.padding_mode,
        )


def randomize_(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def rows(layer: Any, name: str, part: slice) -> Tensor:
    """The filters of some outputs, flattened: (outputs, n)."""
    return getattr(layer, name).double().flatten(1)[part]


def factors(layer: Any, name: str, part: slice) -> Tensor:
    """k filters for each of some outputs: (outputs, k, n)."""
    weight = getattr(layer, name).double().flatten(1)
    return weight.reshape(-1, layer.rank, weight.shape[1])[part]


def values(layer: Any, name: str, part: slice) -> Tensor | None:
    """One value for each of some outputs, or None where the layer has none."""
    parameter = getattr(layer, name, None)
    return None if parameter is None else parameter.double()[part]


def _part_of(layer: Any, part: slice) -> Tensor:
    """The eigenvalues of one convolution group, which are stored group by group."""
    group = part.start // (part.stop - part.start)
    return layer.eigenvalues.double().chunk(getattr(layer, "groups", 1))[group]


def _linear(layer: Any, o: slice, x: Tensor) -> Tensor:
    return reference.linear(x, rows(layer, "weight", o), values(layer, "bias", o))


def _eigen(layer: Any, o: slice, x: Tensor) -> Tensor:
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.eigen(x, weight, bias, _part_of(layer, o), layer.rank)


def _shared(layer: Any, o: slice, x: Tensor) -> Tensor:
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.shared(x, weight, bias, _part_of(layer, o), layer.rank)


def _symmetric(layer: Any, o: slice, x: Tensor) -> Tensor:
    lam = layer.eigenvalues.double()[o]
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.symmetric(x, factors(layer, "eigenvectors", o), lam, weight, bias)


def _square(layer: Any, o: slice, x: Tensor) -> Tensor:
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.square(x, weight, bias, layer.eigenvalues.double()[o])


def _general(layer: Any, o: slice, x: Tensor) -> Tensor:
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.general(x, layer.forms.double()[o], weight, bias)


def _pure(layer: Any, o: slice, x: Tensor) -> Tensor:
    return reference.pure(x, layer.forms.double()[o], values(layer, "bias", o))


def _kervolution(layer: Any, o: slice, x: Tensor) -> Tensor:
    c = values(layer, "offset", o)
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.kervolution(x, weight, layer.rule.c if c is None else c, layer.rule.p, bias)


def _qres(layer: Any, o: slice, x: Tensor) -> Tensor:
    w1, w2 = rows(layer, "weight", o), rows(layer, "weight2", o)
    return reference.qres(x, w1, w2, values(layer, "bias", o))


def _lowrank(layer: Any, o: slice, x: Tensor) -> Tensor:
    q1, q2 = factors(layer, "q1", o), factors(layer, "q2", o)
    return reference.lowrank(x, q1, q2, rows(layer, "weight", o), values(layer, "bias", o))


def _fan(layer: Any, o: slice, x: Tensor) -> Tensor:
    w1, w2, w3 = (rows(layer, name, o) for name in ("weight", "weight2", "weight3"))
    b1, b2, c = (values(layer, name, o) for name in ("bias", "bias2", "bias3"))
    if b2 is None:  # without biases b2 stays the constant 1
        b2 = torch.ones(len(w1), dtype=F64)
    return reference.fan(x, w1, b1, w2, b2, w3, c)


def _quadralib(layer: Any, o: slice, x: Tensor) -> Tensor:
    w1, w2, w3 = (rows(layer, name, o) for name in ("weight1", "weight2", "weight"))
    return reference.quadralib(x, w1, w2, w3, values(layer, "bias", o))


def _quadenhancer(layer: Any, o: slice, x: Tensor) -> Tensor:
    theta = layer.theta.double()[:, o]
    return reference.quadenhancer(x, rows(layer, "weight", o), theta, values(layer, "bias", o))


def _bilinear(layer: Any, o: slice, x: Tensor) -> Tensor:
    w1, w2 = rows(layer, "weight", o), rows(layer, "weight2", o)
    b1, b2 = values(layer, "bias", o), values(layer, "bias2", o)
    if b2 is None:  # without biases b2 stays the constant 1
        b2 = torch.ones(len(w2), dtype=F64)
    return reference.bilinear(x, w1, b1, w2, b2)


# Where each activation is 1; a sigmoid never is.
GATE_OFFSETS = {"silu": 1.278464542761074, "gelu": 1.1444507183528787, "sigmoid": 0.0, "relu6": 1.0}


def _glu(layer: Any, o: slice, x: Tensor) -> Tensor:
    w1, w2 = rows(layer, "weight2", o), rows(layer, "weight", o)
    b1, b2 = values(layer, "bias2", o), values(layer, "bias", o)
    if b1 is None:  # without biases b1 stays a constant
        b1 = torch.full((len(w1),), GATE_OFFSETS[layer.rule.act], dtype=F64)
    return reference.glu(x, layer.rule.act, w1, b1, w2, b2)


def _cross(layer: Any, o: slice, x: Tensor) -> Tensor:
    group = o.start // (o.stop - o.start)
    features = layer.v.double()[group * layer.rank : (group + 1) * layer.rank]
    weight, bias = rows(layer, "weight", o), values(layer, "bias", o)
    return reference.cross(x, weight, bias, layer.u.double()[o], features)


CASES = [
    Case("linear", {}, _linear),
    Case("eigen", {"rank": 2}, _eigen),
    Case("eigen", {"rank": 9}, _eigen),
    Case("symmetric", {"rank": 2}, _symmetric),
    Case("square", {}, _square),
    Case("general", {}, _general),
    Case("pure", {}, _pure),
    Case("kervolution", {}, _kervolution),
    Case("kervolution", {"p": 2, "c": 0.5}, _kervolution),
    Case("kervolution", {"learnable_c": True}, _kervolution),
    Case("qres", {}, _qres),
    Case("lowrank", {"rank": 1}, _lowrank),
    Case("lowrank", {"rank": 3}, _lowrank),
    Case("fan", {}, _fan),
    Case("quadralib", {}, _quadralib),
    Case("quadenhancer", {}, _quadenhancer),
    Case("quadenhancer", {"shifts": 2}, _quadenhancer),
    Case("bilinear", {}, _bilinear),
    *(Case("glu", {"act": act}, _glu) for act in GATE_OFFSETS),
    Case("cross", {"rank": 1}, _cross),
    Case("cross", {"rank": 4}, _cross),
    Case("shared", {"rank": 3}, _shared),
    Case("shared", {"rank": 8}, _shared),
    Case("shared", {"rank": 1}, _shared),
]
CASE_IDS = [case.name for case in CASES]
