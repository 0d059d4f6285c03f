"""`quadric neurons` and `quadric cost`, called as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quadric.layers.table import neuron_facts, neuron_table
from tests.command_line import assert_mistake, output, quadric

NETS = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20 * 36, 5))


def reads_values():
    rates = [x.item() for x in torch.linspace(0, 0.1, 3)]
    return nn.Sequential(nn.Linear(8, 20), nn.Dropout(rates[1]), nn.Linear(20, 5))


def tokens():
    return nn.Sequential(nn.Embedding(30, 20), nn.Linear(20, 20), nn.Linear(20, 4))


def nothing():
    return 3


ready = nn.Sequential(nn.Linear(8, 20), nn.Linear(20, 5))
number = 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "some_nets", raising=False)
    return tmp_path


def test_neurons_markdown_and_json(tmp_path: Path) -> None:
    file = tmp_path / "neurons.json"
    assert (
        output("neurons", "--markdown", "--json", str(file)) == neuron_table(markdown=True) + "\n"
    )
    assert json.loads(file.read_text()) == neuron_facts()
    assert json.loads(output("neurons", "--json", "-")) == neuron_facts()


def test_cost_of_a_network(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    text = output("cost", "resnet20", "--neuron", "eigen", "--rank", "9", "--json", str(file))
    lines = text.splitlines()
    assert lines[0] == "CifarResNet, input 1x3x32x32"
    assert lines[1].split() == ["layer", "type", "output", "params", "MACs", "quadratic"]
    # 16 outputs at rank 9: neurons of rank 9 and 5, so 14 eigenvalues; 27 inputs, 1024 places.
    macs = 1024 * (27 * 16 + 28)
    conv1 = ["conv1", "QuadraticConv2d", "(eigen)", "1x16x32x32", "446", f"{macs:,}", "6.09%"]
    assert lines[3].split() == conv1
    total = next(line for line in lines if line.startswith("total")).split()
    assert total[1:] == ["270,330", "40,881,536", "0.81%"]
    values = json.loads(file.read_text())
    assert values["params"] == 270_330
    assert values["macs"] == 40_881_536


def test_cost_compares_neurons(tmp_path: Path) -> None:
    file = tmp_path / "compare.json"
    args = ("cost", "resnet8", "--compare", "linear,eigen,fan,quadralib", "--rank", "5")
    lines = output(*args, "--json", str(file)).splitlines()
    assert lines[0] == "resnet8, input 1x3x32x32"
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert list(rows) == ["linear", "eigen", "fan", "quadralib"]
    assert rows["linear"] == ["75,290", "1.000", "12,239,488", "1.000"]
    assert rows["eigen"][0] == "5"
    values = {row["neuron"]: row for row in json.loads(file.read_text())["neurons"]}
    assert values["eigen"]["rank"] == 5
    assert values["fan"]["rank"] is None
    assert values["fan"]["params_ratio"] == pytest.approx(2.97, abs=0.01)
    assert values["fan"]["macs"] == pytest.approx(3 * values["linear"]["macs"], rel=0.02)
    markdown = output(*args, "--markdown")
    assert "| linear |  | 75,290 | 1.000 | 12,239,488 | 1.000 |  |" in markdown


def test_first_layers_and_other_inputs() -> None:
    values = json.loads(
        output("cost", "resnet8", "--neuron", "kervolution", "--first", 3, "--json", "-")
    )
    assert [row["name"] for row in values["layers"] if row["neuron"]] == [
        "conv1",
        "layer1.0.conv1",
        "layer1.0.conv2",
    ]
    small = json.loads(output("cost", "resnet8", "--input", "3x16x16", "--json", "-"))
    assert small["input_shapes"] == [[1, 3, 16, 16]]
    assert small["layers"][0]["macs"] * 4 == values["layers"][0]["macs"] - 2 * 16 * 1024


def test_cost_of_an_importable_factory(nets: Path) -> None:
    values = json.loads(output("cost", "some_nets:build", "--input", "3x8x8", "--json", "-"))
    assert values["macs"] == 36 * 20 * 27 + 20 * 36 * 5
    eigen = json.loads(
        output("cost", "some_nets:build", "--input", "3x8x8", "--neuron", "eigen", "--json", "-")
    )
    assert eigen["macs"] == values["macs"] + 36 * 2 * 18
    assert [row["neuron"] for row in eigen["layers"]] == ["eigen", None]  # the head stays linear


def test_factories_of_all_kinds(nets: Path) -> None:
    for name in ("reads_values", "ready"):
        values = json.loads(output("cost", f"some_nets:{name}", "--input", "8", "--json", "-"))
        assert values["macs"] == 8 * 20 + 20 * 5
    tokens = json.loads(output("cost", "some_nets:tokens", "--input", "7:int64", "--json", "-"))
    assert tokens["macs"] == 7 * (400 + 80)
    table = output("cost", "some_nets:tokens", "--input", "7:int64", "--compare", "linear,shared")
    assert len(table.splitlines()) == 5


def test_a_comparison_leaves_a_ready_module_alone(nets: Path) -> None:
    """A factory may be a module itself: converting it for one neuron must not change the next."""
    args = ("cost", "some_nets:ready", "--input", "8", "--json", "-")
    values = json.loads(output(*args, "--compare", "linear,eigen,shared"))
    plain = json.loads(output(*args))
    rows = {row["neuron"]: row for row in values["neurons"]}
    assert rows["linear"]["macs"] == plain["macs"] == 8 * 20 + 20 * 5
    assert rows["eigen"]["macs"] == plain["macs"] + 2 * 18
    assert rows["shared"]["macs"] == plain["macs"] + 64 + 64 + 16 + 20


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["resnet9"], "unknown model 'resnet9': choose from resnet8, "),
        (["resnet8", "--compare", "linear,eign"], "one of linear, eigen,"),
        (["resnet8", "--input", "4x32x32"], "layer 'conv1' (Conv2d) refused an input of shape"),
        (["resnet8", "--input", "3xlarge"], "such as 3x32x32, or 128:int64 for token ids, got"),
        (["resnet8", "--input", "3x8x8:floaty"], "got '3x8x8:floaty'"),
        (["resnet8", "--neuron", "eigen", "--first", "0"], "--first"),
        (["resnet18", "--neuron", "general"], "max_bytes"),
        (["some_nets:build"], "add --input"),
        (["some_nets:bild", "--input", "3"], "'some_nets' must have 'bild'"),
        (["some_net:build", "--input", "3"], "'some_net' of 'some_net:build' must be importable"),
        (["some_nets:number", "--input", "3"], "must be a function that returns"),
        (["some_nets:nothing", "--input", "3"], "must return a torch.nn.Module, got int"),
        (["some_nets:build", "--input", "4x8x8", "--neuron", "fan"], "layer '0' (Conv2d) refused"),
        (["resnet8", "--json", "no/such/folder.json"], "no/such/folder.json"),
    ],
)
def test_mistakes_get_one_line(nets: Path, args: list[str], said: str) -> None:
    assert_mistake(quadric("cost", *args), said)


def test_a_factory_with_a_missing_import_keeps_its_traceback(nets: Path) -> None:
    (nets / "broken_nets.py").write_text("import not_installed_anywhere\n")
    result = quadric("cost", "broken_nets:build", "--input", "3")
    assert isinstance(result.exception, ModuleNotFoundError)
    assert result.exception.name == "not_installed_anywhere"
