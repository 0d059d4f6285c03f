"""Value and derivatives for all points at once, against torch.func point by point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacrev

from quadric.layers import make_layer
from quadric.models.activations import Sin
from quadric.solve import Field, Term
from quadric.solve.jets import Orders
from quadric.solve.terms import NearWay, Way, way_of
from quadric.solve.unknowns import Unknowns

POINTS = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def chain(neuron: str = "linear", act: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for columns in (2, 7):
        layers += [make_layer(nn.Linear, columns, 7, neuron=neuron), act()]
    return nn.Sequential(*layers, nn.Linear(7, 2)).double()


class Forward(nn.Module):
    """What people write: a border that holds by construction, a gate, a learned slope, features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.slope = nn.Parameter(torch.tensor([1.2]))
        self.rate = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        t = torch.cat([torch.sin(2 * x), x**2], dim=1)
        a = torch.tanh(self.slope * self.first(t))
        b = torch.tanh(self.twice(a)) * (1 - a) + self.twice(a) / 3
        inside = x[:, 0:1] * (1 - x[:, 0:1])
        return 1.5 - inside * self.last(b) / (2 + torch.exp(x[:, 1:2]))


def mixed(u: Field, x: Tensor) -> Tensor:
    """Two equations with products, a mixed derivative and values."""
    second, first, value = hessian(u)(x), jacrev(u)(x), u(x)
    return torch.stack(
        [second[0].diagonal().sum() + value[1] ** 2, second[1, 0, 1] + first[0, 1] * x[0]]
    )


def both(model: nn.Module, function: Any, k: int) -> tuple[Way, list[Tensor]]:
    """The way that is chosen; residuals and derivatives by it and by torch.func."""
    unknowns, term = Unknowns(model), Term(function, POINTS)
    way, _ = way_of(unknowns, term, k)
    parameters = unknowns.split(unknowns.start() * 1.1 + 0.05)
    found = []
    for each in (way, Way(unknowns, term)):
        into = torch.full((len(POINTS), k, unknowns.count), torch.nan, dtype=torch.float64)
        with torch.no_grad():
            r = each.rows(parameters, POINTS, into)
            torch.testing.assert_close(each.residuals(parameters, POINTS), r)
        found += [torch.cat([r.unsqueeze(2), into], 2)]
    return way, found


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{neuron: lambda n=neuron: chain(n) for neuron in ("linear", "eigen", "shared", "square")},
    **{neuron: lambda n=neuron: chain(n, nn.Identity) for neuron in ("qres", "bilinear", "glu")},
    **{act.__name__: lambda a=act: chain("linear", a) for act in (nn.SiLU, nn.GELU, Sin)},
    "a forward of its own": lambda: Forward().double(),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_fast_way_is_the_plain_one(name: str) -> None:
    way, (fast, plain) = both(NETWORKS[name](), mixed, 2)
    assert isinstance(way, NearWay)
    assert way.orders == Orders((0, 1), ((0, 0), (0, 1), (1, 1)), 2)
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


def test_a_constant_of_the_equation() -> None:
    model = Forward().double()
    way, (fast, plain) = both(
        model, lambda u, x: grad(lambda x: u(x)[0])(x)[1] * u.parameters["rate"], 1
    )
    assert isinstance(way, NearWay)
    assert way.orders == Orders((1,), (), 2)
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


def test_points_may_hold_measured_values() -> None:
    joined = torch.cat([POINTS, POINTS[:, :1].sin()], 1)
    model = chain()
    way, _ = way_of(Unknowns(model), Term(lambda u, x: u(x[:2])[1] - x[2], joined), 1)
    assert isinstance(way, NearWay)
    found = way.residuals(way.unknowns.split(way.unknowns.start()), joined)
    torch.testing.assert_close(found[:, 0], model(POINTS)[:, 1] - joined[:, 2])


class Weighted(nn.Module):
    """Its weight is computed: a linear map of no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.square()).sin()


PLAIN: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "third derivatives": (chain, lambda u, x: grad(lambda x: hessian(u)(x)[0, 0, 0])(x)[0]),
    "another point": (chain, lambda u, x: u(x)[0] - u(-x)[0]),
    "a computed weight": (lambda: Weighted().double(), lambda u, x: u(x)),
    "another neuron": (lambda: chain("lowrank"), lambda u, x: u(x)[0]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_jets_cannot_stays_with_torch_func(name: str) -> None:
    make, function = PLAIN[name]
    way, _ = both(make(), function, 1)
    assert type(way) is Way


def test_one_point_that_looks_elsewhere_is_enough() -> None:
    line = torch.linspace(0.1, 0.9, 40, dtype=torch.float64)
    points = torch.stack([line, line.square()], 1)

    def function(u: Field, x: Tensor) -> Tensor:
        # Derivatives are compared at every other point, and this is none of them.
        return u(x)[0] + torch.where(x[0] == line[1], u(-x)[0], 0.0)

    way, _ = way_of(Unknowns(chain()), Term(function, points), 1)
    assert type(way) is Way
