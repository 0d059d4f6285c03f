"""A network as a formula, against the network itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import quadric
from quadric.analysis import to_sympy
from quadric.analysis.formula import NetworkFormula
from quadric.data import laws
from quadric.data.tables import Standardization
from quadric.errors import InputError
from quadric.layers import QuadraticLinear


def network(*widths: int, neuron: str = "eigen", **options: int) -> nn.Sequential:
    """Quadratic layers without activations and a linear head."""
    layers: list[nn.Module] = [
        quadric.make_layer(nn.Linear(a, b), neuron=neuron, **options)
        for a, b in itertools.pairwise(widths)
    ]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.4)
    return nn.Sequential(*layers, nn.Linear(widths[-1], 2)).double()


def value(formula: NetworkFormula, place: int, x: torch.Tensor) -> float:
    assert formula.outputs is not None
    point = dict(zip(formula.symbols, x.tolist(), strict=True))
    return float(formula.outputs[place].subs(point))


@pytest.mark.parametrize("neuron", [n for n in quadric.neurons() if n not in ("linear", "glu")])
def test_a_formula_is_the_network(neuron: str) -> None:
    options = {"p": 2} if neuron == "kervolution" else {}
    model = network(3, 4, neuron=neuron, **options)
    formula = to_sympy(model)
    x = torch.randn(3, dtype=torch.float64)
    for place, expected in enumerate(model(x).tolist()):
        assert value(formula, place, x) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_layers_are_composed_with_what_stands_between_them() -> None:
    model = network(2, 3, 3, rank=2)
    norm = nn.BatchNorm1d(3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm(torch.randn(9, 3, dtype=torch.float64))
    full = nn.Sequential(model[0], norm, nn.Dropout(), nn.Identity(), *model[1:]).eval()
    formula = to_sympy(full, names=["mass (kg)", "v"])
    x = torch.randn(2, dtype=torch.float64)
    assert value(formula, 1, x) == pytest.approx(full(x[None])[0, 1].item(), rel=1e-9)
    assert formula.outputs is not None
    assert str(formula.symbols[0]) == "mass (kg)"
    degree = formula.outputs[0].as_poly(*formula.symbols).total_degree()
    assert degree == 4


def test_a_formula_in_the_columns_own_units() -> None:
    table = laws.table("lorentz", 100, 10)
    scale = table.standardization()
    model = network(5, 3)[0:1]
    model = nn.Sequential(*model, nn.Linear(3, 1).double())
    wide = Standardization(
        *(
            t.double()
            for t in (scale.input_mean, scale.input_std, scale.target_mean, scale.target_std)
        )
    )
    row = table.test_inputs[0].double()
    expected = wide.restore_targets(model(wide.inputs(row))).item()
    formula = to_sympy(model, names=table.input_names, scale=wide)
    assert value(formula, 0, row) == pytest.approx(expected, rel=1e-9)


def test_an_estimators_scaling_is_put_in() -> None:
    pytest.importorskip("sklearn")
    from quadric.sklearn import QuadraticRegressor

    x = torch.rand(200, 2, dtype=torch.float64).numpy() * [10, 0.1] + [5, 0]
    y = 3 * x[:, 0] * x[:, 1] - 2
    model = QuadraticRegressor((6,), activation="none", tol=1e3, random_state=0).fit(x, y)
    module = model.to_torch().double()
    formula = to_sympy(module, names=["a", "b"])
    row = torch.tensor(x[0])
    assert value(formula, 0, row) == pytest.approx(module(row[None]).item(), rel=1e-6)


def test_rounding_keeps_small_factors() -> None:
    layer = QuadraticLinear(2, 3, rank=2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e-7, 2.0], [1.0, 1.0], [1.0, -1.0]]))
        layer.eigenvalues.copy_(torch.tensor([0.25, -0.25]))
    formula = to_sympy(layer, names=["a", "b"], digits=3)
    # The first column may be large: its small factor stays.
    assert str(formula.outputs[0]) == "1.0*a*b + 1.0e-7*a + 2.0*b"  # type: ignore[index]


def test_with_activations_a_formula_is_layer_by_layer() -> None:
    first, second = network(2, 3), nn.Linear(2, 1)
    formula = to_sympy(nn.Sequential(first, nn.SiLU(), second), names=["a", "b"])
    assert formula.outputs is None
    assert list(formula.layers) == ["0.0", "0.1", "2"]
    assert {str(s) for e in formula.layers["0.0"] for s in e.free_symbols} == {"a", "b"}
    assert {str(s) for e in formula.layers["2"] for s in e.free_symbols} == {"x0", "x1"}
    assert "2[0] = " in str(formula)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.ReLU(), {}, "needs linear or quadratic layers, got ReLU without any"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {}, r"layers over columns, got Conv2d \(layer '0'\)"),
        (nn.Linear(2, 1), {"names": ["a"]}, "the network has 2 inputs, got 1 names"),
        (nn.Sequential(*(QuadraticLinear(8, 8) for _ in range(4))), {}, "more than 20,000"),
    ],
)
def test_what_has_no_formula(model: nn.Module, options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_sympy(model, **options)  # type: ignore[arg-type]


def test_layers_of_a_network_that_is_no_sequential_keep_their_names() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 1)

    assert list(to_sympy(Own()).layers) == ["head"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_estimator_with_heavy_tails_is_refused_or_exact() -> None:
    pytest.importorskip("sklearn")
    import pandas as pd

    from quadric.analysis import analyze
    from quadric.sklearn import QuadraticRegressor

    torch.manual_seed(0)
    rows = (torch.randn(400, 3) / torch.rand(400, 3)).double().numpy()
    table = pd.DataFrame(rows, columns=list("abc"))
    y = table.a * table.b + table.c**2 / 2
    fast = {"activation": "none", "members": 1, "random_state": 0, "max_iter": 40, "tol": 1e3}
    pressed = QuadraticRegressor((8,), **fast).fit(table, y)
    with pytest.raises(InputError, match=r"numbers of 'a', 'b', 'c' together.*standardize='plain'"):
        to_sympy(pressed)
    plain = QuadraticRegressor((8,), standardize="plain", **fast).fit(table, y)
    formula = to_sympy(plain)
    for row in (0, int(abs(table.a).argmax())):
        expected = plain.predict(table.iloc[row : row + 1])[0]
        assert value(formula, 0, torch.tensor(rows[row])) == pytest.approx(expected, rel=1e-6)
    sparse = to_sympy(plain, sparse=True, rows=(table, y), digits=5)
    assert str(sparse) == "1.0*a*b + 0.5*c**2"
    with pytest.raises(InputError, match="chosen by rows, got none"):
        to_sympy(plain, sparse=True)
    # The table is float64, and so is the network; products and squares have the true factors.
    found = analyze(plain, table)["couplings"]
    assert found["pairs"][0]["coefficient"] == pytest.approx(1, rel=1e-3)
    assert found["squares"][0]["coefficient"] == pytest.approx(0.5, rel=1e-3)
