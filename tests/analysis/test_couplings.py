"""Couplings: of functions that are known, and of interactions that were planted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.analysis import analyze
from quadric.analysis.couplings import couplings, ranked_list
from quadric.analysis.samples import samples
from quadric.data import laws
from quadric.data.tables import TableData
from quadric.errors import InputError
from quadric.layers import QuadraticLinear


def product_layer() -> QuadraticLinear:
    """A layer whose only output is 3 a b - b."""
    layer = QuadraticLinear(3, 3, rank=2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, -1, 0], [1, 1, 0], [1, -1, 0]]))
        layer.eigenvalues.copy_(torch.tensor([0.75, -0.75]))
    return layer


class First(nn.Module):
    """Hands the first column on."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


def table(function: object, inputs: Tensor, names: tuple[str, ...]) -> TableData:
    targets = function(inputs)  # type: ignore[operator]
    half = len(inputs) // 2
    parts = [inputs[:half], targets[:half], inputs[half:], targets[half:]]
    return TableData("made", *parts, input_names=names, target_name="y")


def test_a_product_is_found_with_its_factor() -> None:
    inputs = torch.randn(300, 3) * torch.tensor([2.0, 0.5, 1.0])
    found = couplings(
        nn.Sequential(product_layer(), First()), samples(inputs, 500, names=["a", "b", "c"])
    )
    first = found["pairs"][0]
    assert first["columns"] == ["a", "b"]
    assert first["coefficient"] == pytest.approx(3, rel=1e-4)
    # Both columns by one deviation: 3 times their product.
    spread = inputs.std(0, correction=0)
    assert first["strength"] == pytest.approx(float(3 * spread[0] * spread[1]), rel=1e-4)
    for other in (*found["pairs"][1:], *found["squares"]):
        assert other["strength"] == pytest.approx(0, abs=1e-5)


def test_factors_are_in_the_columns_own_units() -> None:
    """A network on standardized columns, in which 4 a^2 + 3 a b was put by hand."""
    inputs = torch.rand(400, 2) * torch.tensor([10.0, 0.2]) + 1
    data = table(lambda x: 4 * x[:, :1] ** 2 + 3 * x[:, :1] * x[:, 1:], inputs, ("a", "b"))
    scale = data.standardization()
    (sa, sb), t = scale.input_std.tolist(), float(scale.target_std)
    matrix = torch.tensor([[4 * sa * sa, 1.5 * sa * sb], [1.5 * sa * sb, 0]]) / t
    layer = QuadraticLinear.from_dense(matrix[None], torch.zeros(1, 2), torch.zeros(1), rank=2)
    found = couplings(nn.Sequential(layer, First()), samples(data, 100))
    assert found["pairs"][0]["coefficient"] == pytest.approx(3, rel=1e-3)
    assert found["squares"][0]["columns"] == ["a", "a"]
    assert found["squares"][0]["coefficient"] == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "fan", "kervolution"])
def test_forms_and_activations_add_up(neuron: str) -> None:
    """ReLU bends nowhere: all curvature is that of the forms. SiLU adds its own."""
    torch.manual_seed(1)
    options = {} if neuron == "kervolution" else {"init": "linear"}

    def network(activation: nn.Module) -> nn.Sequential:
        layers = [quadric.make_layer(nn.Linear(3, 8), neuron=neuron, **options) for _ in "a"]
        layers += [activation, quadric.make_layer(nn.Linear(8, 8), neuron=neuron, **options)]
        model = nn.Sequential(*layers, nn.Linear(8, 2)).double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        return model

    rows = samples(torch.randn(40, 3, dtype=torch.float64), 40, names="abc")
    relu = couplings(network(nn.ReLU(inplace=True)), rows)
    torch.testing.assert_close(torch.tensor(relu["strength"]), torch.tensor(relu["total"]))
    assert relu["pairs"][0]["strength"] > 0
    silu = couplings(network(nn.SiLU()), rows)
    assert not torch.allclose(torch.tensor(silu["strength"]), torch.tensor(silu["total"]))
    assert "coefficient" not in silu["pairs"][0]  # two outputs


def test_a_linear_network_couples_by_its_activations_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    found = couplings(model, samples(torch.randn(30, 2), 30, names=["a", "b"]))
    assert found["ranked_by"] == "total"
    assert found["strength"] == [[0, 0], [0, 0]]
    assert found["pairs"][0]["total"] > 0
    assert len(ranked_list(found)[0]) == 3


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(InputError, match="at most 200 columns, got 201"):
        couplings(nn.Linear(201, 1), samples(torch.zeros(2, 201), 2, names=range(201)))


def fitted(data: TableData, neuron: str) -> nn.Module:
    """A small network that learned a table, standardized."""
    torch.manual_seed(0)
    source = data.standardized()
    model = nn.Sequential(nn.Linear(data.num_inputs, 18), nn.SiLU(), nn.Linear(18, 1))
    quadric.convert_(model, neuron)
    steps = 500
    # It starts from random weights: nine times the rate for its curvature.
    optimizer = torch.optim.Adam(quadric.param_groups(model, 0.02, 0.18))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(source.train_inputs), source.train_targets)
        loss.backward()
        optimizer.step()
        schedule.step()
    assert loss < 0.02
    return model


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_the_planted_interaction_of_friedman_1_is_found(neuron: str) -> None:
    def friedman(x: Tensor) -> Tensor:
        wave = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1])
        return (wave + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4])[:, None]

    names = tuple(f"x{i}" for i in range(1, 11))  # the last five are noise
    data = table(friedman, torch.rand(2000, 10), names)
    found = analyze(fitted(data, neuron), data)["couplings"]
    first, second = found["pairs"][:2]
    assert first["columns"] == ["x1", "x2"]
    assert first["strength"] > 2 * second["strength"]
    by_total = sorted(found["pairs"], key=lambda pair: -pair["total"])
    assert by_total[0]["columns"] == ["x1", "x2"]
    assert by_total[0]["total"] > 4 * by_total[1]["total"]
    # 20 (x3 - 1/2)^2 moves by 2 * 20 / 12 when x3 moves by a deviation twice.
    squares = {one["columns"][0]: one["total"] for one in found["squares"]}
    assert squares["x3"] == pytest.approx(40 / 12, rel=0.15)
    assert max(squares[name] for name in names[3:]) < 0.5


@pytest.mark.parametrize(
    ("law", "products"),
    [
        ("kinetic-energy", [{"m", "v"}, {"m", "u"}, {"m", "w"}]),
        ("center-of-mass", [{"m1", "r1"}, {"m1", "r2"}, {"m2", "r1"}, {"m2", "r2"}]),
    ],
)
def test_the_products_of_laws_are_found(law: str, products: list[set[str]]) -> None:
    data = laws.table(law, 1500, 500)
    found = analyze(fitted(data, "shared"), data)["couplings"]
    ranked = sorted(found["pairs"], key=lambda pair: -pair["total"])
    top = [set(pair["columns"]) for pair in ranked[: len(products)]]
    assert sorted(map(sorted, top)) == sorted(map(sorted, products))
    if law == "kinetic-energy":
        by_forms = [set(pair["columns"]) for pair in found["pairs"][:3]]
        assert sorted(map(sorted, by_forms)) == sorted(map(sorted, products))
        assert found["target_unit"] == "J"
        assert found["pairs"][0]["unit"] == "J / (kg · (m s^-1))"


def test_a_piecewise_linear_activation_is_noted() -> None:
    for activation, count in ((nn.ReLU(), 2), (nn.SiLU(), 0)):  # nor has it any coupling
        model = nn.Sequential(nn.Linear(2, 4), activation, nn.Linear(4, 1))
        found = analyze(model, torch.randn(9, 2), names=["a", "b"])
        assert len(found["couplings"]["notes"]) == count
        assert ("ReLU is piecewise linear" in str(found)) == bool(count)


def test_the_factor_is_that_of_the_whole_network() -> None:
    """An activation behind the forms takes its share: the factor is the network's derivative."""
    layer = QuadraticLinear(2, 3, rank=2, bias=False)
    model = nn.Sequential(layer, First(), nn.Softplus()).double()
    nn.init.normal_(layer.eigenvalues)
    x = torch.randn(50, 2, dtype=torch.float64)
    found = couplings(model, samples(x, 50, names=["a", "b"]))
    hessian = torch.func.vmap(torch.func.hessian(lambda row: model(row[None])[0, 0]))(x).mean(0)
    hessian = hessian.detach()
    assert found["pairs"][0]["coefficient"] == pytest.approx(float(hessian[0, 1]), rel=1e-9)
    squares = {entry["columns"][0]: entry["coefficient"] for entry in found["squares"]}
    assert squares["b"] == pytest.approx(float(hessian[1, 1]) / 2, rel=1e-9)
    assert any("²" in row[0] for row in ranked_list(found))


def test_a_linear_network_is_said_to_couple_nothing() -> None:
    found = couplings(nn.Linear(2, 1), samples(torch.randn(9, 2), 9, names=["a", "b"]))
    assert found["notes"] == [
        "the network couples no columns: its second derivatives are zero everywhere"
    ]
