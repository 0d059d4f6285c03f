"""`quadric demo` from end to end, with a few training steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from quadric.cli.app import app
from quadric.demo import NEXT, _program
from quadric.demo.table import demo_table
from tests.command_line import output


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return out, CliRunner().invoke(app, ["demo", "--quick", "--seed", "4", "--out", str(out)])


def test_says_where_everything_is(quick: tuple[Path, Any]) -> None:
    out, result = quick
    assert result.exit_code == 0, result.output
    names = ["boundaries.png", "laws.png", "table.md", "demo.json"]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    for name in names:
        assert str(out / name) in result.stdout
    assert result.stderr.startswith("three scenes, in a few seconds\n")
    assert "steps" not in result.stdout


def test_report(quick: tuple[Path, Any]) -> None:
    report = json.loads((quick[0] / "demo.json").read_text(encoding="utf-8"))
    assert (report["seed"], report["seeds"], report["quick"]) == (4, 2, True)
    assert report["versions"]["torch"] == torch.__version__
    assert report["machine"]["threads"] == 1
    assert {row["scene"] for row in report["rows"]} == {"plane", "laws", "digits"}
    kinds = [(row["task"], row["activation"], row["neuron"]) for row in report["rows"]]
    assert len(set(kinds)) == 14  # the laws are there twice, by Adam and by second order
    solvers = {(row["task"], row["solver"]) for row in report["rows"] if row["scene"] == "laws"}
    assert len(solvers) == 4
    for row in report["rows"]:
        assert len(row["values"]) == 2
        assert min(row["values"]) <= row["mean"] <= max(row["values"])
    # 2 → 6 outputs, two groups of 3 with 3² eigenvalues each, then 6 → 2.
    rings = report["rows"][kinds.index(("rings", "none", "shared"))]
    assert (rings["params"], rings["macs"]) == (12 + 6 + 18 + 12 + 2, 12 + 18 + 6 + 12)
    table = (quick[0] / "table.md").read_text(encoding="utf-8")
    assert table == demo_table(report, markdown=True)
    assert demo_table(report) in quick[1].stdout


def test_ends_with_commands_to_try(quick: tuple[Path, Any]) -> None:
    _, _, last = quick[1].stdout.partition("Try next:\n")
    assert [line.split("#")[0].split() for line in last.splitlines()] == [
        ["quadric", *command.split()] for command in NEXT
    ]


def test_commands_to_try_are_named_by_where_the_program_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["elsewhere/bin/quadric", "demo"])
    assert _program() == "elsewhere/bin/quadric"
    monkeypatch.setattr(sys, "argv", ["/x/quadric/__main__.py", "demo"])
    assert _program() == "quadric"


@pytest.mark.slow  # a comparison takes half a minute
@pytest.mark.parametrize("command", NEXT)
def test_commands_to_try_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert output(*command.split()).strip()


def test_table_of_what_went_wrong() -> None:
    row = {
        "scene": "laws",
        "task": "x",
        "activation": "SiLU",
        "solver": "Adam",
        "neuron": "linear",
        "rank": None,
        "params": 1281,
        "macs": 1216,
        "metric": "error",
        "mean": 0.01234,
        "std": 0.001,
        "seconds": 1.26,
    }
    lost = {**row, "neuron": "shared", "rank": 3, "mean": None, "std": None}
    table = demo_table({"seeds": 3, "rows": [row, lost]}, markdown=True)
    assert "| linear | 1,281 | 1,216 | 0.012 ± 0.001 error | 1.3 |" in table
    assert "| shared (rank 3) | 1,281 | 1,216 | diverged | 1.3 |" in table
    assert "over 3 seeds" in table
