"""Residuals that a user writes: differential equations, conditions, unknown constants."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacrev

from quadric.errors import InputError, InputTypeError
from quadric.layers import make_layer
from quadric.solve import Field, Term, least_squares
from quadric.solve.terms import TermProblem
from quadric.solve.unknowns import Unknowns

Points = torch.linspace(0.02, 0.98, 10, dtype=torch.float64)
INNER = torch.cartesian_prod(Points, Points)
EDGE = torch.cat([torch.stack([Points * 0 + end, Points], 1) for end in (0.0, 1.0)])
EDGE = torch.cat([EDGE, EDGE.flip(1)])


def network(
    columns: int = 2, outputs: int = 1, neuron: str = "linear", act: type[nn.Module] = nn.Tanh
) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before in (columns, 10):
        layers += [make_layer(nn.Linear, before, 10, neuron=neuron), act()]
    return nn.Sequential(*layers, nn.Linear(10, outputs)).double()


def wave(x: Tensor) -> Tensor:
    return (math.pi * x[..., 0]).sin() * (math.pi * x[..., 1]).sin()


def poisson(u: Field, x: Tensor) -> Tensor:
    return hessian(u)(x).diagonal().sum() + 2 * math.pi**2 * wave(x)


@pytest.mark.parametrize("neuron", ["linear", "shared"])
def test_poisson(neuron: str) -> None:
    model = network(neuron=neuron)
    terms = [Term(poisson, INNER), Term(lambda u, x: u(x), EDGE, weight=100)]
    fit = least_squares(model, terms=terms, regularization=None, max_steps=30)
    with torch.no_grad():
        error = (model(INNER)[:, 0] - wave(INNER)).norm() / wave(INNER).norm()
    assert float(error) < 5e-3
    assert len(fit.term_losses) == 2
    assert fit.loss == pytest.approx(fit.term_losses[0] + 100 * fit.term_losses[1])


def test_losses_of_terms_with_several_equations_add_up() -> None:
    model = network(outputs=2)
    terms = [Term(lambda u, x: u(x) - x.exp(), INNER, weight=3), Term(lambda u, x: u(x)[0], EDGE)]
    fit = least_squares(model, terms=terms, regularization=None, max_steps=2)
    assert fit.loss == pytest.approx(3 * fit.term_losses[0] + fit.term_losses[1])


@pytest.mark.slow
def test_poisson_with_500_parameters() -> None:
    line = torch.linspace(0, 1, 26, dtype=torch.float64)[1:-1]
    side = torch.linspace(0, 1, 30, dtype=torch.float64)
    edge = torch.cat([torch.stack([side * 0 + end, side], 1) for end in (0.0, 1.0)])
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    ).double()
    terms = [
        Term(poisson, torch.cartesian_prod(line, line)),
        Term(lambda u, x: u(x), torch.cat([edge, edge.flip(1)]), weight=100),
    ]
    least_squares(model, terms=terms, regularization=None, max_steps=150)
    x = torch.rand(2000, 2, dtype=torch.float64)
    with torch.no_grad():
        assert float((model(x)[:, 0] - wave(x)).norm() / wave(x).norm()) < 1e-4


class Decay(nn.Module):
    """A curve and the unknown rate of its equation."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = network(1)
        self.rate = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.curve(x)
        return out


def test_an_unknown_constant_is_found() -> None:
    times = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    model = Decay()
    terms = [
        Term(lambda u, x: grad(u)(x)[0] + u.parameters["rate"] * u(x), times),
        Term(lambda u, x: u(x) - (-1.7 * x[0]).exp(), times[::4]),
    ]
    least_squares(model, terms=terms, regularization=None, max_steps=60)
    assert float(model.rate.detach()) == pytest.approx(1.7, abs=1e-3)


def test_several_outputs_and_residuals() -> None:
    # (cos, sin) by their equations u' = -v, v' = u.
    times = torch.linspace(0, 3, 60, dtype=torch.float64)[:, None]
    model = network(1, 2)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    terms = [
        Term(lambda u, x: jacrev(u)(x)[:, 0] - turn @ u(x), times),
        Term(lambda u, x: u(x) - start, times[:1]),
    ]
    fit = least_squares(model, terms=terms, regularization=None, max_steps=60)
    with torch.no_grad():
        wanted = torch.cat([times.cos(), times.sin()], 1)
        assert float((model(times) - wanted).abs().max()) < 1e-3
    with pytest.raises(InputError, match="error bars belong to a fit to data"):
        fit.std(times)


def test_terms_and_rows_are_the_same_fit() -> None:
    x = 4 * INNER[::3] - 2
    y = wave(x)
    height = float(y.std(correction=0))
    models = [network(), network()]
    rows = least_squares(models[0], x, y / height, max_steps=8, regularization=0.01)
    term = Term(lambda u, x: u(x) - wave(x) / height, x)
    terms = least_squares(models[1], terms=[term], max_steps=8, regularization=0.01)
    assert terms.loss == pytest.approx(rows.loss, rel=1e-6)
    assert terms.solver == rows.solver


def test_points_in_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [Term(poisson, INNER), Term(lambda u, x: u(x), EDGE)]
    first = least_squares(network(), terms=terms, max_steps=4)
    monkeypatch.setattr("quadric.solve.terms.POINTS", 50)
    second = least_squares(network(), terms=terms, max_steps=4)
    assert second.loss == pytest.approx(first.loss, rel=1e-6)


def test_piecewise_linear_activations_have_no_laplacian() -> None:
    model = network(act=nn.ReLU)
    terms = [Term(poisson, INNER)]
    with pytest.warns(UserWarning, match="second derivatives of a network with relu"):
        least_squares(model, terms=terms, max_steps=1)
    slopes = [Term(lambda u, x: grad(u)(x).sum(), INNER)]
    least_squares(model, terms=slopes, max_steps=1)  # first derivatives: no warning


def test_float32_says_what_it_costs() -> None:
    model = nn.Linear(2, 1)
    terms = [Term(lambda u, x: u(x) - x[0] / 3, INNER)]
    fit = least_squares(model, terms=terms, regularization=None)
    assert any("model.double()" in note for note in fit.notes)
    assert 0 < fit.loss < 1e-12


def test_points_are_drawn_where_the_residual_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quadric.solve.terms.REDRAW", 2)
    asked: list[Tensor] = []

    def function(u: Field, x: Tensor) -> Tensor:
        return u(x) - 1 / (0.01 + x @ x)  # steep at 0

    def draw() -> Tensor:
        asked.append(torch.rand(1000, 2, dtype=torch.float64))
        return asked[-1]

    torch.manual_seed(0)
    problem = TermProblem(Unknowns(network()), [Term(function, INNER, draw=draw)])
    u = problem.unknowns.start()
    assert not problem.renew(u, 1)
    assert problem.renew(u, 2)
    points = problem.terms[0].points
    assert points.shape == INNER.shape
    assert float(points.norm(dim=1).mean()) < 0.8 * float(asked[0].norm(dim=1).mean())
    model = network()
    fit = least_squares(model, terms=[Term(function, INNER, draw=draw)], max_steps=6)
    assert len(asked) > 1
    assert fit.steps == 6
    few = Term(function, INNER, draw=lambda: INNER[:5])
    with pytest.raises(InputError, match="draw of term 0 must give at least 100 points"):
        least_squares(model, terms=[few], max_steps=6)


def test_parameters_that_no_residual_depends_on_are_named() -> None:
    model = network()
    fit = least_squares(model, terms=[Term(poisson, INNER)], max_steps=1)
    assert fit.notes[-1] == "the residuals do not depend on 4.bias: they stay as they were"
    both = [Term(poisson, INNER), Term(lambda u, x: u(x), EDGE)]
    fit = least_squares(model, terms=both, max_steps=1, progress=True)
    assert not any("depend" in note for note in fit.notes)


TABLE = wave(INNER)

# The terms, and words of the error.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "residuals that are not finite": (
        lambda: [Term(lambda u, x: u(x) / (x[0] - Points[0]), INNER)],
        "at the start, got 10 of 100",
    ),
    "a table of the targets": (lambda: [Term(lambda u, x: u(x) - TABLE, INNER)], r"shape \(100,\)"),
    "a column of the targets": (
        lambda: [Term(lambda u, x: u(x) - TABLE[:, None], INNER)],
        r"shape \(100, 1\)",
    ),
    "a function of tables": (
        lambda: [Term(lambda u, x: u(x[:, 0]), INNER)],
        "must work for one point",
    ),
    "u of a table": (lambda: [Term(lambda u, x: u(x[None]), INNER)], r"one point of shape \(d,\)"),
    "points on a line": (lambda: [Term(lambda u, x: u(x), Points)], r"x\[:, None\]"),
    "infinite points": (lambda: [Term(lambda u, x: u(x), INNER / 0)], "points of term 0"),
    "a weight of 0": (lambda: [Term(lambda u, x: u(x), INNER, weight=0)], "weight of term 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_terms_that_mean_something_else_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=words):
        least_squares(model, terms=make())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize("terms", [[], [3], Term(poisson, INNER)])
def test_terms_are_a_list_of_them(terms: Any) -> None:
    with pytest.raises(InputTypeError, match="terms must be a list of"):
        least_squares(network(), terms=terms)
