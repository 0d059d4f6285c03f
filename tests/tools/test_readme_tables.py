"""The README's numbers are those of the result files."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.tools.loading import ROOT, load_tool

ROW = {
    "scene": "plane",
    "task": "rings",
    "activation": "none",
    "solver": "Adam",
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
    assert "<!-- table: findings -->" in (ROOT / "README.md").read_text(encoding="utf-8")
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
    assert text.startswith("before\n<!-- table: demo -->\n\n| data |")
    assert "| eigen (rank 2) | 1,234 | 32 | 98.8 % right | 0.5 |" in text
    assert text.endswith("<!-- /table -->\nafter\n")
    assert "old" not in text
    assert tool.main(["--check", *where]) == 0


def test_markers_that_cannot_be_filled(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown table 'nothing' in a marker: choose from demo"):
        tool.fill("<!-- table: nothing -->\n<!-- /table -->", tmp_path)
    with pytest.raises(ValueError, match="needs its own <!-- /table -->"):
        tool.fill("<!-- table: demo -->\n", tmp_path)
