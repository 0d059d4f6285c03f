"""Every neuron with options, every geometry, and what the reference says of each.

A layer is a geometry times a neuron. What a layer must do is tested once, over this table; flags
say what a neuron cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests import reference

F64 = torch.float64


@dataclass(frozen=True)
class Geometry:
    """A torch layer class with arguments, and the shape of an input for it."""

    plain: type[nn.Module]
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plain.__name__

    @property
    def transposed(self) -> bool:
        return "Transpose" in self.name

    @property
    def groups(self) -> int:
        return int(self.options.get("groups", 1))

    @property
    def outputs(self) -> int:
        return int(self.args[1])

    @property
    def dim(self) -> int:
        """The channel dimension of a batched input or output."""
        return -1 if self.plain is nn.Linear else 1

    def make_plain(self, bias: bool = True, dtype: torch.dtype = F64, **more: Any) -> Any:
        return self.plain(*self.args, **self.options, bias=bias, dtype=dtype, **more)

    def make(self, neuron: str = "eigen", dtype: torch.dtype = F64, **more: Any) -> Any:
        """A fresh layer of any neuron."""
        more = {"dtype": dtype, "neuron": neuron, **self.options, **more}
        return quadric.make_layer(self.plain, *self.args, **more)

    def input(self, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(self.shape, dtype=dtype)


# Five, seven and ten outputs: every remainder of a group is there for the small ranks below.
GEOMETRIES = [
    Geometry(nn.Linear, (4, 7), (2, 3, 4)),
    Geometry(nn.Conv1d, (4, 10, 3), (2, 4, 5), {"stride": 2, "padding": 1, "groups": 2}),
    Geometry(nn.Conv2d, (2, 7, 2), (2, 2, 3, 2), {"padding": 1, "padding_mode": "circular"}),
    Geometry(nn.Conv2d, (1, 5, (3, 2)), (2, 1, 4, 3), {"padding": "same", "dilation": (1, 2)}),
    Geometry(
        nn.Conv3d, (2, 10, 2), (1, 2, 3, 2, 2), {"stride": (2, 1, 1), "padding": 1, "groups": 2}
    ),
    Geometry(
        nn.ConvTranspose1d,
        (4, 10, 3),
        (2, 4, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    Geometry(
        nn.ConvTranspose2d,
        (3, 7, 2),
        (2, 3, 2, 2),
        {"stride": 2, "padding": 1, "dilation": 2},
    ),
    Geometry(nn.ConvTranspose3d, (2, 5, 2), (1, 2, 2, 2, 1), {"stride": 2}),
]
LINEAR, CONV1D, CONV2D, _, CONV3D, _, TRANSPOSED2D, _ = GEOMETRIES
IDS = [f"{geometry.name}-{i}" for i, geometry in enumerate(GEOMETRIES)]
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)


@dataclass(frozen=True)
class Case:
    """A neuron with options, its reference on one group of one layer, and what it cannot do."""

    neuron: str
    options: dict[str, Any]
    formula: Callable[[Any, slice, Tensor], Tensor]
    degree: int | None = 2
    can_be_linear: bool = True
    transposable: bool = True

    @property
    def name(self) -> str:
        return "-".join([self.neuron, *(f"{k}{v}" for k, v in self.options.items())])

    def make(self, geometry: Geometry, **more: Any) -> Any:
        """A layer whose parameters are all random, so that nothing of the formula is hidden."""
        return randomize_(geometry.make(self.neuron, **self.options, **more))

    def reference(self, layer: Any, inputs: Tensor) -> Tensor:
        """The output by the reference, in float64, from the layer's parameters alone."""
        x = inputs.double()
        if hasattr(layer, "in_features"):
            part = slice(0, layer.out_features)
            return reference.over_vectors(lambda v: self.formula(layer, part, v), x)
        per_group = layer.out_channels // layer.groups

        def neuron(group: int, patch: Tensor) -> Tensor:
            return self.formula(layer, slice(group * per_group, (group + 1) * per_group), patch)

        if layer.transposed:
            return reference.over_transposed_patches(
                neuron,
                x,
                layer.kernel_size,
                layer.stride,
                layer.padding,
                layer.output_padding,
                layer.groups,
                layer.dilation,
            )
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


def filters(layer: Any, name: str) -> Tensor:
    weight = getattr(layer, name).double()
    if getattr(layer, "transposed", False):
        return reference.transposed_rows(weight, layer.groups)
    return weight.flatten(1)


def rows(layer: Any, name: str, part: slice) -> Tensor:
    """The filters of some outputs, flattened: (outputs, n)."""
    return filters(layer, name)[part]


def factors(layer: Any, name: str, part: slice) -> Tensor:
    """k filters for each of some outputs: (outputs, k, n)."""
    weight = filters(layer, name)
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
    return reference.eigen(x, weight, bias, _part_of(layer, o), layer.rank, layer.normalize)


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
    Case("linear", {}, _linear, degree=1),
    Case("eigen", {"rank": 2}, _eigen),
    Case("eigen", {"rank": 9}, _eigen),
    Case("eigen", {"rank": 3, "normalize": True}, _eigen),
    Case("symmetric", {"rank": 2}, _symmetric),
    Case("square", {}, _square),
    Case("general", {}, _general, transposable=False),
    Case("pure", {}, _pure, can_be_linear=False, transposable=False),
    Case("kervolution", {}, _kervolution, degree=3, can_be_linear=False),
    Case("kervolution", {"p": 2, "c": 0.5}, _kervolution, can_be_linear=False),
    Case("kervolution", {"learnable_c": True}, _kervolution, degree=3, can_be_linear=False),
    Case("qres", {}, _qres),
    Case("lowrank", {"rank": 1}, _lowrank),
    Case("lowrank", {"rank": 3}, _lowrank),
    Case("fan", {}, _fan),
    Case("quadralib", {}, _quadralib),
    Case("quadenhancer", {}, _quadenhancer),
    Case("quadenhancer", {"shifts": 2}, _quadenhancer),
    Case("bilinear", {}, _bilinear),
    *(Case("glu", {"act": act}, _glu, degree=None) for act in GATE_OFFSETS),
    Case("cross", {"rank": 1}, _cross),
    Case("cross", {"rank": 4}, _cross),
    Case("shared", {"rank": 3}, _shared),
    Case("shared", {"rank": 8, "recompute": True}, _shared),
    Case("shared", {"rank": 1}, _shared),
]
QUADRATIC = [case for case in CASES if case.neuron != "linear"]
ONCE = list({case.neuron: case for case in reversed(QUADRATIC)}.values())
EIGEN, SHARED = (next(c for c in CASES if c.neuron == name) for name in ("eigen", "shared"))


def _product(cases: list[Case]) -> Any:
    pairs = [(c, g) for c in cases for g in GEOMETRIES if c.transposable or not g.transposed]
    ids = [f"{c.name}-{g.name}-{GEOMETRIES.index(g)}" for c, g in pairs]
    return pytest.mark.parametrize(("case", "geometry"), pairs, ids=ids)


each_layer = _product(CASES)
each_quadratic_layer = _product(QUADRATIC)
each_squares_layer = _product([EIGEN, SHARED])
each_case = pytest.mark.parametrize("case", QUADRATIC, ids=[case.name for case in QUADRATIC])
each_neuron = pytest.mark.parametrize("case", ONCE, ids=[case.neuron for case in ONCE])
each_linear_start = pytest.mark.parametrize(
    "case", [c for c in CASES if c.can_be_linear], ids=[c.name for c in CASES if c.can_be_linear]
)
