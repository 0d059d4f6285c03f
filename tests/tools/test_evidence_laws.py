"""The evidence on laws: what is run, what is written, and that it goes on where it was."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quadric.data import laws
from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool on two laws of three variables, few rows and seeds."""
    load_tool("evidence_runs", monkeypatch)
    module: Any = load_tool("evidence_laws", monkeypatch)
    monkeypatch.setattr(laws, "names", lambda: ["torque", "sound"])
    module.ROWS, module.HELD_OUT = 600, 200
    module.TUNING_LAWS, module.CURVE_LAWS = ("torque",), ("sound",)
    module.TUNING_SEEDS, module.TEST_SEEDS, module.CURVE_SEEDS = range(1), range(10, 12), [10]
    return module


def run(tool: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> None:
    arguments = ["evidence_laws.py", "--out", str(out), "--steps", "30", "--widths", "16"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--arms", "linear", "shared-k4", *more])
    tool.main()


def test_it_tunes_tests_and_draws_curves(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(tool, monkeypatch, tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    parts = [f"{part}/{arm}.json" for part in ("test", "tuning") for arm in ("linear", "shared-k4")]
    widths = ["tuning/linear-16.json", "tuning/shared-k4-16.json"]
    assert files == ["curve/linear-16.json", "curve/shared-k4-16.json", *sorted(parts + widths)]

    tuned = json.loads((tmp_path / "tuning/shared-k4.json").read_text())
    errors = {(r["lr"], r["factor"]): r["error"] for r in tuned["runs"]}
    assert len(errors) == 6  # three learning rates, two factors
    best = min(errors, key=lambda trial: errors[trial])
    assert (tuned["chosen"]["lr"], tuned["chosen"]["factor"]) == best
    linear = json.loads((tmp_path / "tuning/linear.json").read_text())
    assert len(linear["runs"]) == 6  # as many trials for linear
    narrow = json.loads((tmp_path / "tuning/shared-k4-16.json").read_text())
    rates = [(r["lr"], r["factor"]) for r in narrow["runs"]]
    assert rates == [(lr, best[1]) for lr in tool.RATES]
    curve = json.loads((tmp_path / "curve/shared-k4-16.json").read_text())
    assert [r["lr"] for r in curve["runs"]] == [narrow["chosen"]["lr"]]

    tested = json.loads((tmp_path / "test/shared-k4.json").read_text())
    assert [(r["law"], r["seed"]) for r in tested["runs"]] == [
        ("torque", 10), ("torque", 11), ("sound", 10), ("sound", 11),
    ]  # fmt: skip
    assert {(r["lr"], r["factor"]) for r in tested["runs"]} == {best}
    assert all(0 < r["error"] < 2 and 0 < r["quadratic_share"] < 1 for r in tested["runs"])
    cost = tested["cost"]["3"]
    assert (
        cost["params"]
        <= json.loads((tmp_path / "test/linear.json").read_text())["cost"]["3"]["params"]
    )
    assert {"versions", "machine", "command", "settings"} <= set(tested)

    rows = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))
    assert [(r["arm"], r["law"], r["seeds"]) for r in rows] == [
        ("linear", "torque", "2"), ("linear", "sound", "2"),
        ("shared-k4", "torque", "2"), ("shared-k4", "sound", "2"),
    ]  # fmt: skip
    plain = json.loads((tmp_path / "test/linear.json").read_text())
    pairs = zip(tested["runs"][:2], plain["runs"][:2], strict=True)
    logs = [math.log(ours["error"] / theirs["error"]) for ours, theirs in pairs]
    assert float(rows[2]["ratio"]) == pytest.approx(math.exp(sum(logs) / 2))
    assert float(rows[0]["ratio"]) == 1

    # It goes on where it was: what is there is not trained again.
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    lost = tmp_path / "test" / "linear.json"
    lost.unlink()
    trained: list[int] = []
    shared: Any = sys.modules["evidence_runs"]
    train = shared.train_tasks
    monkeypatch.setattr(
        shared, "train_tasks", lambda tasks, what: trained.append(len(tasks)) or train(tasks, what)
    )
    run(tool, monkeypatch, tmp_path)
    assert trained == [4]  # two laws, two seeds
    assert all(path.read_bytes() == text for path, text in first.items() if path != lost)
    again = json.loads(lost.read_bytes())
    assert [r["error"] for r in again["runs"]] == [r["error"] for r in plain["runs"]]
