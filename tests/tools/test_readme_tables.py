"""The README's numbers are those of the result files."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tools.loading import ROOT, load_tool

ROW = {
    "scene": "plane",
    "task": "rings",
    "activation": "none",
    "neuron": "eigen",
    "rank": 2,
    "params": 1234,
    "macs": 32,
    "metric": "accuracy",
    "mean": 0.9876,
    "std": None,
    "seconds": 0.5,
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_tool("readme_tables", monkeypatch)


def test_readme_is_up_to_date(tool: ModuleType) -> None:
    assert "<!-- table: laws -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert tool.main(["--check"]) == 0


def test_a_stale_table_is_found_and_rewritten(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.json").write_text(json.dumps({"seeds": 1, "rows": [ROW]}), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: demo -->\nold\n<!-- /table -->\nafter\n", encoding="utf-8")
    where = ["--page", str(page), "--results", str(tmp_path)]
    assert tool.main(["--check", *where]) == 1
    assert capsys.readouterr().out.startswith("page.md is out of date: run")
    assert "old" in page.read_text(encoding="utf-8")
    assert tool.main(where) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- table: demo -->\n\n| scene |")
    assert "| eigen (rank 2) | 1,234 | 32 | 98.8 % right | 0.5 |" in text
    assert text.endswith("<!-- /table -->\nafter\n")
    assert "old" not in text
    assert tool.main(["--check", *where]) == 0


def test_tables_of_compare_and_of_the_bench(tool: ModuleType, tmp_path: Path) -> None:
    def result(neuron: str | None, model: str, error: float) -> dict[str, object]:
        return {"neuron": neuron, "model": model, "test_rmse": error}

    compared: dict[str, Any] = {
        "task": "regression",
        "rows": 8192,
        "command": "quadric compare law:x",
        "verdict": "eigen lowers the error.",
        "differences": {
            "eigen": {"mean": -12.34, "half_width": 3.21},
            "shared": {"mean": 0.5, "half_width": 2.0},
        },
        "results": [
            result("linear", "mlp", 1.0),
            result("eigen", "mlp", 0.8766),
            result("shared", "mlp", 1.005),
            result(None, "ridge", 3.0),
            result(None, "SVR (RBF)", 2.0),
        ],
    }
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "x.json").write_text(json.dumps(compared), encoding="utf-8")
    page = tool.fill("<!-- table: compared -->\n<!-- /table -->", tmp_path)
    assert (
        "| `quadric compare law:x` | 8,192 | 1.000 | 0.8766 (−12.3 ± 3.2 %) | 1.005 (+0.5 ± 2.0 %) "
        "| SVR (RBF) 2.000 | eigen lowers the error. |"
    ) in page
    for entry in compared["results"]:
        entry["test_accuracy"] = entry.pop("test_rmse")
    compared["task"] = "classification"
    (tmp_path / "compare" / "x.json").write_text(json.dumps(compared), encoding="utf-8")
    page = tool.fill("<!-- table: compared -->\n<!-- /table -->", tmp_path)
    assert "± 3.2 points)" in page
    assert "| ridge 3.000 |" in page  # the highest accuracy
    bench = {
        "seconds": {"MLPRegressor": 2.0},
        "settings": {"networks": 15},
        "rows": [{"neuron": "eigen", "seconds": 3.0, "ratio": 1.5, "limit": 2.0, "speedup": 2.96}],
    }
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "tables.json").write_text(json.dumps(bench), encoding="utf-8")
    page = tool.fill("<!-- table: table-fits -->\n<!-- /table -->", tmp_path)
    assert "| MLPRegressor | 2.00 | 1 |" in page
    assert "| eigen | 3.00 | 1.50 | 2.0 | 3.0 times as fast |" in page


def suite_row(group: str, neuron: str, path: str) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group, "neuron": neuron, "path": path, "format": ""}
    for kind in ("training", "inference"):
        row |= {kind: 1.25, f"{kind}_turns": 1.5, f"{kind}_runs": 7}
    return row | {"rank": None, "peak_memory_bytes": 2**20, "memory": 1.0}


def test_tables_of_the_suite_from_old_and_new_files(tool: ModuleType, tmp_path: Path) -> None:
    """Old files have joined and fused paths, and no training of fused networks."""
    kept = [
        suite_row("resnet20, batch 128", "eigen", "plain"),
        suite_row("resnet20, batch 128", "eigen", "kernels"),
        suite_row("transformer, batch 64", "shared", "kernels"),
    ]
    more = [
        suite_row("resnet20, batch 128", "shared, recompute", "kernels"),
        suite_row("resnet20, batch 128", "eigen", "compiled"),
        suite_row("helmholtz, 1024 points", "eigen", "plain"),
    ]
    fused = suite_row("resnet20, batch 128", "eigen", "kernels-fused")
    fused |= {"training": None, "training_turns": None, "peak_memory_bytes": None, "memory": None}
    old = [
        suite_row("resnet20, batch 128", "eigen", "kernels-joined"),
        suite_row("resnet20, batch 128", "linear and a bare pass", "kernels"),
        fused,
    ]
    (tmp_path / "bench").mkdir()
    found = []
    for rows in ([*kept, *more], [*kept, *more, *old]):
        data = {
            "rows": rows, "repeats": 7, "rounds": 1, "command": "quadric bench --suite",
            "machine": {"cpu": "Fast", "cores": 2}, "versions": {"torch": "2"},
        }  # fmt: skip
        (tmp_path / "bench" / "suite.json").write_text(json.dumps(data), encoding="utf-8")
        names = ("speed", "networks", "memory")
        markers = "".join(f"<!-- table: {name} -->\n<!-- /table -->\n" for name in names)
        found.append(tool.fill(markers, tmp_path))
    assert found[0] == found[1]
    short = found[0].partition("<!-- /table -->")[0]
    assert [line.split(" | ")[0] for line in short.splitlines() if "1.50 / 1.50" in line] == [
        "| resnet20, batch 128",
        "| resnet20, batch 128",
        "| transformer, batch 64",
    ]
    assert "| resnet20, batch 128 | kernels | 1.50 / 1.50 (1.25 / 1.25) |  |" in short
    assert "| helmholtz, 1024 points | plain |" in found[0]
    assert "| resnet20, batch 128 | shared, recompute | 1.0 | 1.000 |" in found[0]


def test_markers_that_cannot_be_filled(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown table 'nothing' in a marker: choose from demo"):
        tool.fill("<!-- table: nothing -->\n<!-- /table -->", tmp_path)
    with pytest.raises(ValueError, match="needs its own <!-- /table -->"):
        tool.fill("<!-- table: demo -->\n", tmp_path)
