"""The registry: what each row says, neurons of third parties, and the table that is printed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import quadric
from quadric import layers
from quadric.layers import Neuron, neurons
from quadric.layers.table import HEADER, neuron_facts, neuron_table

NAMES = [
    "linear",
    "general",
    "pure",
    "qres",
    "lowrank",
    "fan",
    "quadralib",
    "kervolution",
    "quadenhancer",
    "bilinear",
    "glu",
    "cross",
    "symmetric",
    "eigen",
    "square",
    "shared",
]


def test_the_neurons() -> None:
    assert sorted(neurons()) == sorted(NAMES)
    assert quadric.neurons is neurons
    for name, row in neurons().items():
        assert row.name == name == row.name
        assert row.paper
        assert row.formula
        assert row.params
        assert row.macs


def test_changing_the_dict_does_not_change_the_registry() -> None:
    neurons().clear()
    assert sorted(neurons()) == sorted(NAMES)


def test_ranks_and_starts() -> None:
    ranks = {name: row.default_rank for name, row in neurons().items() if row.has_rank}
    assert ranks == {"eigen": 9, "symmetric": 9, "lowrank": 2, "shared": 8, "cross": 4}
    not_linear = [name for name, row in neurons().items() if not row.can_be_linear]
    assert sorted(not_linear) == ["kervolution", "pure"]
    assert neurons()["fan"].starts == ("published", "linear", "random")
    assert neurons()["kervolution"].defaults() == {"p": 3, "c": 1.0, "learnable_c": False}


def test_options_with_their_defaults_make_the_default_rule() -> None:
    for row in neurons().values():
        assert row.with_options(**row.defaults()) == row.with_options()
        assert row.with_options().options() == row.defaults()


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match=r"neuron must be one of linear, .*shared, got 'quartic'"):
        layers.get_neuron("quartic")
    with pytest.raises(ValueError, match="got 'quartic'"):
        layers.unregister("quartic")


# ------------------------------------------------------------------------------------------------
# A neuron of a third party
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def gated() -> Iterator[type[Neuron]]:
    """z + a z^2 scaled: a neuron that the library does not know, with an option."""

    @layers.register(
        "gated",
        paper="a test",
        formula="z + s a z^2, z = w'x + b",
        params="n + 1",
        macs="n + 3",
        note="made up",
    )
    @dataclass(frozen=True)
    class Gated(Neuron):
        scale: float = 2.0
        quadratic = ("gate",)

        def shapes(self, layer: Any, bias: bool) -> dict[str, tuple[int, ...]]:
            return super().shapes(layer, bias) | {"gate": (layer.num_outputs,)}

        def start_(self, layer: Any, init: str) -> None:
            nn.init.zeros_(layer.gate)

        def forward(self, layer: Any, input: Tensor) -> Tensor:
            z = layer.linear_op(input, layer.weight, layer.bias)
            gate = layer.along_channels(layer.gate)
            return z + self.scale * gate * z * z

        def num_params(self, n: int, outputs: int, groups: int = 1, bias: bool = False) -> int:
            return outputs * (n + 1 + bias)

        def num_macs(
            self,
            n: int,
            outputs: int,
            groups: int = 1,
            positions: int = 1,
            inputs: int | None = None,
        ) -> int:
            return positions * outputs * (n + 2)

    yield Gated
    if "gated" in neurons():
        layers.unregister("gated")


def test_a_registered_neuron_makes_layers(gated: type[Neuron]) -> None:
    plain = nn.Conv2d(3, 5, 3, padding=1)
    layer: Any = quadric.make_layer(plain, neuron="gated", scale=3.0)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(layer(x), plain(x))
    nn.init.ones_(layer.gate)
    torch.testing.assert_close(layer(x), plain(x) + 3 * plain(x) ** 2)
    assert list(layer.quadratic_parameters()) == ["gate"]
    assert layer.rule == gated(scale=3.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="'gated' has no option 'p'; its options are: scale"):
        quadric.make_layer(plain, neuron="gated", p=3)
    linear, quadratic, _ = layer.responses(x)
    torch.testing.assert_close(linear + quadratic, layer(x))


def test_a_registered_neuron_takes_part_in_all_else(gated: type[Neuron]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    before, x = quadric.cost(model, torch.zeros(1, 4)), torch.randn(3, 4)
    expected = model(x)
    report = quadric.convert_(model, neuron="gated", scale=5.0)
    assert report.names == ["0"]
    torch.testing.assert_close(model(x), expected)
    after = quadric.cost(model, torch.zeros(1, 4))
    assert after.params == before.params + 6
    assert after.macs == before.macs + 2 * 6
    assert after.by_layer()[0].neuron == "gated"
    groups = quadric.param_groups(model, lr=1.0)
    assert any(p is model[0].gate for g in groups for p in g["params"])
    assert sum(p.numel() for g in groups for p in g["params"]) == after.params
    created = quadric.models.create("resnet8", neuron="gated")
    assert created.conv1.neuron == "gated"
    assert "gated" in neuron_table()
    assert any(facts["name"] == "gated" for facts in neuron_facts())


def test_unregister(gated: type[Neuron]) -> None:
    layers.unregister("gated")
    assert "gated" not in neurons()
    with pytest.raises(ValueError, match="got 'gated'"):
        quadric.make_layer(nn.Linear(2, 3), neuron="gated")


def test_a_neuron_without_a_cost_formula_is_counted_by_what_runs(gated: type[Neuron]) -> None:
    layers.unregister("gated")

    @layers.register("gated", paper="a test", formula="?", params="?", macs="?")
    @dataclass(frozen=True)
    class Uncosted(gated):  # type: ignore[valid-type, misc]
        num_macs = Neuron.num_macs

    layer = quadric.make_layer(nn.Linear, 4, 6, neuron="gated")
    report = quadric.cost(layer, torch.zeros(2, 4))
    assert report.macs == 2 * 24
    assert {entry.operator for entry in report.uncounted} == {"mul", "add"}


def test_registering_refuses() -> None:
    facts: dict[str, Any] = {"paper": "x", "formula": "x", "params": "n", "macs": "n"}
    with pytest.raises(ValueError, match=r"'fan', which is registered.*unregister"):
        layers.register("fan", **facts)(type(neurons()["fan"].with_options()))
    with pytest.raises(TypeError, match=r"derives from quadric\.layers\.Neuron, got <class 'int'>"):
        layers.register("whole", **facts)(int)  # type: ignore[type-var]
    assert "whole" not in neurons()


# ------------------------------------------------------------------------------------------------
# The table
# ------------------------------------------------------------------------------------------------


def test_facts_are_plain_values() -> None:
    facts = json.loads(json.dumps(neuron_facts(), allow_nan=False))
    assert [row["name"] for row in facts] == list(neurons())
    by_name = {row["name"]: row for row in facts}
    assert by_name["lowrank"]["options"] == {"rank": 2}
    assert by_name["lowrank"]["rank"] == 2
    assert by_name["fan"]["printed_macs"] == "4n"
    assert by_name["fan"]["quadratic_parameters"] == ["weight2", "bias2", "weight3", "bias3"]


def test_markdown_table_has_every_neuron_and_its_printed_cost_where_it_differs() -> None:
    lines = neuron_table(markdown=True).splitlines()
    shown = [name for name in HEADER if name != "printed params"]  # they all agree
    assert lines[0] == "| " + " | ".join(shown) + " |"
    rows = [line.strip("| ").split(" | ") for line in lines[2:] if line.startswith("| ")]
    assert [row[0].strip("`") for row in rows] == list(neurons())
    by_name = {row[0].strip("`"): row for row in rows}
    # printed in Table I of the paper: 2n, 2kn + k, 4n, 3n MACs; the others agree
    printed = {name: row[5].strip("`") for name, row in by_name.items() if row[5:] and row[5]}
    assert printed == {
        "qres": "O(2n)",
        "lowrank": "O(2kn + k)",
        "fan": "O(4n)",
        "quadralib": "O(3n)",
    }
    for name in printed:  # each with its reason
        number = by_name[name][6].strip("[]")
        assert any(line.startswith(f"[{number}] ") for line in lines)


def test_text_table_is_aligned() -> None:
    lines = neuron_table().splitlines()
    header, rule, first = lines[:3]
    assert header.startswith("neuron ")
    assert set(rule) == {"-", " "}
    start = header.index("formula")
    assert first[start:].startswith("w'x + b")
    assert len(lines) == 2 + len(neurons()) + 2 + neuron_notes()


def neuron_notes() -> int:
    return len({row.note for row in neurons().values() if row.note})


# ------------------------------------------------------------------------------------------------
# The page about the neurons
# ------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "neurons.md"


def test_the_page_has_the_table_that_the_command_prints() -> None:
    page = PAGE.read_text(encoding="utf-8")
    block = page.partition("<!-- table: neurons -->")[2].partition("<!-- /table -->")[0]
    assert block.strip() == neuron_table(markdown=True)


def test_the_neuron_of_the_page_works() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert "class Cubic" in code
    try:
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), {"__name__": "page"})
        plain = nn.Conv2d(2, 3, 3)
        layer: Any = quadric.make_layer(plain, neuron="cubic")
        x = torch.randn(2, 2, 5, 5)
        torch.testing.assert_close(layer(x), plain(x))
        nn.init.ones_(layer.a)
        torch.testing.assert_close(layer(x), plain(x) + plain(x) ** 3)
        assert layer.rule.degree == 3
        report = quadric.cost(layer, x)
        assert report.macs == 2 * 9 * 3 * (18 + 3)
        assert report.params == sum(p.numel() for p in layer.parameters())
    finally:
        layers.unregister("cubic")


def test_the_counts_on_the_page() -> None:
    """The first and the last row of the table of counters; the others need other packages."""
    page = PAGE.read_text(encoding="utf-8")
    ours, torchs = [], []
    for neuron in ("linear", "eigen", "fan"):
        layer = quadric.make_layer(nn.Conv2d, 3, 20, 3, padding=1, neuron=neuron)
        x = torch.zeros(1, 3, 8, 8)
        ours.append(f"{quadric.cost(layer, x).macs:,}")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(x)
        torchs.append(f"{counter.get_total_flops() // 2:,}")
    assert "| `quadric.cost` | " + " | ".join(ours) + " |\n" in page
    assert "| `torch.utils.flop_counter`, halved | " + " | ".join(torchs) + " |\n" in page


def test_rules_are_frozen() -> None:
    rule = neurons()["lowrank"].with_options(rank=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.rank = 4  # type: ignore[attr-defined]
