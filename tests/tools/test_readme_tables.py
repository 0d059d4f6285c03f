"""The README's numbers are those of the result files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "readme_tables.py"
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


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)], capture_output=True, text=True
    )


def test_readme_is_up_to_date() -> None:
    assert "<!-- table: demo -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    checked = run("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_stale_table_is_found_and_mended(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps({"seeds": 1, "rows": [ROW]}), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: demo -->\nold\n<!-- /table -->\nafter\n", encoding="utf-8")
    where = ("--page", page, "--results", tmp_path)
    assert run("--check", *where).returncode == 1
    assert "old" in page.read_text(encoding="utf-8")
    assert run(*where).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- table: demo -->\n\n| scene |")
    assert "| eigen (rank 2) | 1,234 | 32 | 98.8 % right | 0.5 |" in text
    assert text.endswith("<!-- /table -->\nafter\n")
    assert "old" not in text
    assert run("--check", *where).returncode == 0

    page.write_text("<!-- table: nothing -->\n<!-- /table -->", encoding="utf-8")
    assert "unknown table 'nothing' in a marker: choose from demo" in run(*where).stderr
    page.write_text("<!-- table: demo -->\n", encoding="utf-8")
    assert "needs its own <!-- /table -->" in run(*where).stderr
