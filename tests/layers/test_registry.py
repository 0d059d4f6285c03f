"""The registry: what each row says, neurons of third parties, and the table that is printed."""

from __future__ import annotations

import json
import pickle
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import quadric
from quadric import layers
from quadric.layers import Neuron, neurons
from quadric.layers.table import HEADER, neuron_facts, neuron_table
from tests.conftest import assert_close
from tests.layers.cases import Geometry, each_geometry

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


FILE = Path(__file__).parents[1] / "data_files" / "own_parts" / "my_neurons.py"


@pytest.fixture
def bent() -> Iterator[type[Neuron]]:
    """A neuron that the library does not know, from a file of its own: z + a z^2."""
    runpy.run_path(str(FILE))
    yield neurons()["bent"]
    if "bent" in neurons():
        layers.unregister("bent")


def test_a_neuron_is_one_file_of_less_than_40_lines(bent: type[Neuron]) -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    assert {line for line in lines if "import" in line} == {
        "from dataclasses import dataclass",
        "from torch import nn",
        "import quadric",
    }


@each_geometry
def test_a_new_neuron_makes_layers_of_every_kind(bent: type[Neuron], geometry: Geometry) -> None:
    plain, x = geometry.make_plain(), geometry.input().requires_grad_()
    layer: Any = quadric.make_layer(plain, neuron="bent")
    assert_close(layer(x), plain(x))
    nn.init.normal_(layer.a)
    a = layer.a.reshape(-1, *(1,) * (0 if geometry.dim == -1 else plain(x).dim() - 2))
    truth = plain(x) + a * plain(x) ** 2
    assert_close(layer(x), truth)
    inputs, seed = [x, *layer.parameters()], torch.randn_like(truth)
    got = torch.autograd.grad(layer(x), inputs, seed)
    for one, other in zip(got, torch.autograd.grad(truth, inputs, seed), strict=True):
        assert_close(one, other)
    linear, quadratic, _ = layer.responses(x)
    assert_close(linear + quadratic, truth)
    report, before = quadric.cost(layer, x.detach()), quadric.cost(plain, x.detach())
    assert report.params == before.params + geometry.outputs
    assert report.macs == before.macs + 2 * truth.numel()
    assert torch.equal(pickle.loads(pickle.dumps(layer.state_dict()))["a"], layer.a)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), truth)


def test_a_new_neuron_takes_part_in_all_else(bent: type[Neuron], tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(3, 4)
    expected = model(x)
    assert quadric.convert_(model, neuron="bent").names == ["0"]
    torch.testing.assert_close(model(x), expected)
    groups = quadric.param_groups(model, lr=1.0)
    assert any(p is model[0].a for group in groups for p in group["params"])
    nn.init.ones_(model[0].a)
    quadric.save(model, tmp_path / "model.safetensors")
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    quadric.load_(other, tmp_path / "model.safetensors")
    torch.testing.assert_close(other(x), model(x))
    assert quadric.models.create("resnet8", neuron="bent").conv1.neuron == "bent"
    assert "bent" in neuron_table()
    attention = quadric.QuadraticMultiheadAttention(8, 2, neuron="bent")
    assert attention.q_proj.neuron == "bent"
    with pytest.raises(ValueError, match="'bent' has no option 'p'; its options are: none"):
        quadric.make_layer(nn.Linear, 2, 3, neuron="bent", p=3)
    layers.unregister("bent")
    with pytest.raises(ValueError, match="got 'bent'"):
        quadric.make_layer(nn.Linear(2, 3), neuron="bent")


def test_a_neuron_without_a_cost_formula_is_counted_by_what_runs(bent: type[Neuron]) -> None:
    layers.unregister("bent")

    @layers.register("bent", paper="a test", formula="?", params="?", macs="?")
    @dataclass(frozen=True)
    class Uncosted(bent):  # type: ignore[valid-type, misc]
        per_output = Neuron.per_output

    report = quadric.cost(quadric.make_layer(nn.Linear, 4, 6, neuron="bent"), torch.zeros(2, 4))
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
