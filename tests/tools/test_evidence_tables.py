"""The evidence on tables: what is run, what is written, and that tuning sees no test row."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from quadric.data import uci
from tests.tools.loading import load_tool

ROWS = 200


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool on one small table, with three of its arms."""
    load_tool("evidence_runs", monkeypatch)
    module: Any = load_tool("evidence_tables", monkeypatch)
    monkeypatch.setitem(uci.ROWS, "toy", ROWS)
    module.ARMS = {part: arms[::2] for part, arms in module.ARMS.items()}
    module.OTHERS = ("HistGradientBoosting", "ridge")
    module.TABLES = ("toy",)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of a product, in three splits."""
    path = tmp_path / "data" / "toy"
    path.mkdir(parents=True)
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(ROWS, 3))
    target = inputs[:, :1] * inputs[:, 1:2]
    np.savetxt(path / "data.txt", np.hstack([inputs, target]))
    np.savetxt(path / "index_features.txt", [0, 1, 2], fmt="%d")
    np.savetxt(path / "index_target.txt", [3], fmt="%d")
    np.savetxt(path / "n_splits.txt", [3], fmt="%d")
    for split in range(3):
        order = draw.permutation(ROWS)
        np.savetxt(path / f"index_train_{split}.txt", order[20:], fmt="%d")
        np.savetxt(path / f"index_test_{split}.txt", order[:20], fmt="%d")
    return path.parent


def run(tool: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, out: Path) -> None:
    words = ["--data-dir", str(folder), "--out", str(out), "--steps", "30", "--tables", "toy"]
    monkeypatch.setattr(sys, "argv", ["evidence_tables.py", *words])
    tool.main()


def test_it_tunes_and_measures_every_arm_once(
    tool: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(tool, monkeypatch, folder, out)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*.json"))
    arms = ["equal/toy-linear", "equal/toy-shared-k4", "equal/toy-cross-k4"]
    arms += ["literature/toy-linear", "literature/toy-shared-k4"]
    tuning = [f"tuning/{arm.replace('/', '-')}" for arm in arms]
    others = ["others/toy-HistGradientBoosting", "others/toy-ridge"]
    assert files == sorted(f"{name}.json" for name in arms + tuning + others)

    plain, shared = (json.loads((out / f"{arm}.json").read_text()) for arm in arms[:2])
    assert plain["cost"]["params"] >= shared["cost"]["params"] > 0.9 * plain["cost"]["params"]
    assert [run["split"] for run in shared["runs"]] == [0, 1, 2]
    assert shared["settings"]["rows"] == 144  # 180 without the fifth that is held out
    assert shared["command"] == (
        "python tools/evidence_tables.py --data-dir data --out out --steps 30 --tables toy"
    )
    literature = json.loads((out / f"{arms[4]}.json").read_text())
    assert literature["cost"]["hidden"] == [50]
    assert literature["settings"]["rows"] == 180
    tuned = json.loads((out / f"{tuning[4]}.json").read_text())
    assert len(tuned["runs"]) == 3 * 2 * 3
    assert tuned["settings"]["rows"] == 144

    rows = list(csv.DictReader((out / "summary.csv").read_text().splitlines()))
    assert [(row["protocol"], row["arm"]) for row in rows][:2] == [
        ("equal", "linear"),
        ("equal", "shared-k4"),
    ]
    errors = [run["error"] for run in shared["runs"]]
    assert float(rows[1]["error_mean"]) == pytest.approx(sum(errors) / 3)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    run(tool, monkeypatch, folder, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_tuning_sees_no_test_row(tool: Any, folder: Path) -> None:
    tested = np.loadtxt(folder / "toy" / "index_test_0.txt", dtype=int)
    table = np.loadtxt(folder / "toy" / "data.txt")
    table[tested] = 1e6
    np.savetxt(folder / "toy" / "data.txt", table)
    for name in tool.ARMS:
        for tuning in (True, False):
            protocol = tool.Protocol(name, folder, 30)
            task = protocol.task(tool.Arm("shared", 4), "toy", 0, (1e-2, 1.0), tuning)
            seen = [task.job.train.inputs, task.job.train.targets, *task.judged]
            if task.job.validation is not None:
                seen += [task.job.validation.inputs, task.job.validation.targets]
            assert any(part.abs().max() > 1e3 for part in seen) is not tuning
            assert task.job.train.inputs.abs().max() < 10
