"""Problems of DeepXDE and PINA: functions of tables, and the real packages where they are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian

from quadric.errors import InputError
from quadric.solve import Term, least_squares
from quadric.solve.frameworks import TableTerm, _joined
from quadric.solve.terms import Way, way_of
from quadric.solve.unknowns import Unknowns

POINTS = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def slopes(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def test_a_function_of_tables_is_one_of_points() -> None:
    rate = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model, constants = _joined(network(), {"rate": rate})

    def table(x: Tensor, y: Tensor) -> list[Tensor]:
        first = slopes(y, x)
        return [slopes(first[:, :1], x)[:, 1:] + rate * y**2, first[:, 1:]]

    def point(u: Any, x: Tensor) -> Tensor:
        bend = hessian(u)(x)[0, 1] + u.parameters["constants.rate"] * u(x) ** 2
        return torch.stack([bend, torch.func.grad(u)(x)[1]])

    unknowns = Unknowns(model)
    ways = [
        TableTerm(table, POINTS, constants=constants).way(unknowns),
        Way(unknowns, Term(point, POINTS)),
    ]
    parameters = unknowns.split(unknowns.start() * 1.1 + 0.1)
    found = []
    for way in ways:
        into = torch.full((12, 2, unknowns.count), torch.nan, dtype=torch.float64)
        with torch.no_grad():
            r = way.rows(parameters, POINTS, into)
            torch.testing.assert_close(way.residuals(parameters, POINTS), r)
        found.append(torch.cat([r.unsqueeze(2), into], 2))
    torch.testing.assert_close(*found)
    assert rate.item() == pytest.approx(0.7)
    assert way_of(unknowns, Term(point, POINTS), 2)[0].reads == ["constants.rate"]  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[Any, str]] = {
    "a silent broadcast": (
        lambda x, y: y - x[:, 0],
        r"got shape \(12, 12\).*index with x\[:, 0:1\]",
    ),
    "a row for all": (lambda x, y: y.mean(0, keepdim=True), "a table of 12 rows"),
    "points that are joined": (lambda x, y: y - y.flip(0), "which joins several"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_mean_something_else_are_refused(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        least_squares(network(), terms=[TableTerm(function, POINTS)])


DEEPXDE = """
import deepxde as dde, numpy as np, torch
dde.config.set_default_float("float64")
dde.config.set_random_seed(0)
import quadric
from quadric.solve.terms import TermProblem
from quadric.solve.unknowns import Unknowns
square = dde.geometry.Rectangle([0, 0], [1, 1])
strength = dde.Variable(1.0)
def wave(x, sin=np.sin):
    return 2 * sin(np.pi * x[:, 0:1]) * sin(np.pi * x[:, 1:2])
def equation(x, y):
    bend = dde.grad.hessian(y, x, i=0, j=0) + dde.grad.hessian(y, x, i=1, j=1)
    return bend + strength * np.pi**2 * wave(x, torch.sin)
seen = np.random.rand(20, 2)
conditions = [
    dde.icbc.DirichletBC(square, lambda x: 0, lambda _, on: on),
    dde.icbc.PointSetBC(seen, wave(seen)),
]
data = dde.data.PDE(square, equation, conditions, num_domain=100, num_boundary=40)
net = dde.nn.FNN([2, 10, 10, 1], "tanh", "Glorot uniform")
model = dde.Model(data, net)
model.compile("adam", lr=1e-3, loss_weights=[1, 100, 100], external_trainable_variables=[strength])
x = torch.tensor(data.train_x).requires_grad_()
losses = data.losses(None, net(x), lambda zero, r: r.square().mean(), x, model)
wanted = float((losses[0] + 100 * losses[1] + 100 * losses[2]).detach())
network, terms = quadric.solve.from_deepxde(model)
unknowns = Unknowns(network)
problem = TermProblem(unknowns, terms)
assert abs(problem.loss(unknowns.start()) / problem.count / wanted - 1) < 1e-12
fit = quadric.solve.least_squares(network, terms=terms, regularization=None, max_steps=60)
x = square.random_points(200)
error = np.linalg.norm(model.predict(x) - wave(x)) / np.linalg.norm(wave(x))
assert error < 1e-3, error
assert abs(float(strength) - 2) < 1e-3, strength
assert quadric.convert_(net, "shared").names == ["linears.0", "linears.1"]
"""

PINA = """
import torch
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
from pina import Condition, LabelTensor
from pina.domain import CartesianDomain
from pina.equation import Equation
from pina.model import FeedForward
from pina.operator import laplacian
from pina.problem import InverseProblem, SpatialProblem
import quadric
def wave(x):
    return 2 * torch.sin(torch.pi * x.extract(["x"])) * torch.sin(torch.pi * x.extract(["y"]))
def equation(x, u, constants):
    return laplacian(u, x, components=["u"], d=["x", "y"]) + constants["k"] * torch.pi**2 * wave(x)
seen = LabelTensor(torch.rand(30, 2), ["x", "y"])
class Poisson(SpatialProblem, InverseProblem):
    output_variables = ["u"]
    spatial_domain = CartesianDomain({"x": [0, 1], "y": [0, 1]})
    unknown_parameter_domain = CartesianDomain({"k": [0.5, 1.5]})
    domains = {"inside": spatial_domain, "top": CartesianDomain({"x": [0, 1], "y": 1.0})}
    conditions = {
        "inside": Condition(domain="inside", equation=Equation(equation)),
        "top": Condition(domain="top", equation=Equation(lambda x, u: u)),
        "seen": Condition(input=seen, target=LabelTensor(wave(seen), ["u"])),
    }
problem = Poisson()
problem.discretise_domain(100, "random", domains=["inside"])
net = FeedForward(input_dimensions=2, output_dimensions=1, layers=[10, 10], func=torch.nn.Tanh)
try:
    quadric.solve.from_pina(problem, net)
    raise SystemExit("a domain without points was taken")
except quadric.errors.InputError as error:
    assert "'top'" in str(error)
problem.discretise_domain(20, "grid", domains=["top"])
network, terms = quadric.solve.from_pina(problem, net)
quadric.solve.least_squares(network, terms=terms, regularization=None, max_steps=80)
plain, wanted = (each.as_subclass(torch.Tensor) for each in (seen, wave(seen)))
away = (net(plain) - wanted).norm() / wanted.norm()
assert float(away) < 1e-3, away
assert abs(float(problem.unknown_parameters["k"]) - 2) < 1e-3, problem.unknown_parameters
assert quadric.convert_(net.model, "shared").names == ["0", "2"]
"""


@pytest.mark.parametrize(("package", "script"), [("deepxde", DEEPXDE), ("pina", PINA)])
def test_a_problem_of_the_real_package(package: str, script: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'quadric[equations]'")
    # A process of its own: both change torch's defaults.
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DDE_BACKEND": "pytorch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
