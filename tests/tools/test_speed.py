"""The tool behind the tables of times: which cases it holds, and what is read off."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_tool("speed", monkeypatch)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_the_suite_compiles_only_the_image_network(tool: ModuleType) -> None:
    paths = ("plain", "kernels", "compiled")
    cases = tool.suite_cases(paths, "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    assert len({case.name for case in cases}) == len(cases)
    timed = [(c.group.split(",")[0], c.path) for c in cases if c.neuron == "eigen"]
    assert list(dict.fromkeys(timed)) == [
        *(("resnet8", path) for path in paths),
        *(
            (name, path)
            for name in ("transformer", "perceptron", "helmholtz")
            for path in paths[:2]
        ),
        ("conv 4x5x5", "kernels"),
    ]
    again = {(c.group.split(",")[0], c.neuron) for c in cases if c.neuron.endswith("recompute")}
    networks = ("resnet8", "shared"), ("transformer", "eigen"), ("transformer", "shared")
    assert again == {(name, f"{neuron}, recompute") for name, neuron in networks}


def test_a_summary_takes_the_better_format_of_each(tool: ModuleType) -> None:
    row = {"group": "net", "neuron": "eigen", "path": "kernels", "dtype": "float32"}
    slow = {"training": 1.5, "inference": 1.1, "training_turns": 1.6, "inference_turns": 1.3}
    fast = {"training": 1.2, "inference": 1.4, "training_turns": 1.25, "inference_turns": 1.5}
    rows = [{**row, "format": "nchw", **slow}, {**row, "format": "channels_last", **fast}]
    assert tool.summary(rows).splitlines()[2] == "| net | kernels | 1.25 / 1.30 (1.20 / 1.10) |  |"


def measured(tool: ModuleType, tmp_path: Path, *words: str) -> Any:
    file = tmp_path / "out.json"
    tool.main([*words, "--out", str(file), "--rounds", "2", "--repeats", "1"])
    return json.loads(file.read_text(encoding="utf-8"))


def test_fits_of_tables(tool: ModuleType, tmp_path: Path) -> None:
    data = measured(tool, tmp_path, "tables", "--rows", "60", "--networks", "2")
    assert [row["neuron"] for row in data["rows"]] == ["linear", "eigen", "shared"]
    for row in data["rows"]:
        assert row["ratio"] == row["seconds"] / data["seconds"]["MLPRegressor"]
    assert set(data["seconds"]) >= {"shared", "shared together", "shared one by one"}
