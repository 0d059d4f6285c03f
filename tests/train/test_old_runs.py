"""Runs that older versions wrote are evaluated, continued and tabulated as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quadric.runs.groups import group
from quadric.runs.reading import read_runs
from quadric.runs.tables import group_table
from quadric.train.evaluation import evaluate
from quadric.train.runner import find_run, train

OLD = Path(__file__).parent.parent / "data_files" / "old_runs"


@pytest.mark.parametrize("name", ["digits-finished", "law-finished"])
def test_an_old_run_is_evaluated(name: str) -> None:
    result = json.loads((OLD / name / "result.json").read_text())
    told = []
    found = evaluate(OLD / name, progress=lambda **step: told.append(step["total"]))
    assert set(told) == {len(told)}  # once for each batch
    metric = "test_accuracy" if name.startswith("digits") else "test_rmse"
    for key in ("recipe", "neuron", "rank", "seed", "params", "macs"):
        assert found[key] == result[key]
    for key in (metric, "test_loss", "largest_activation"):
        assert found[key] == pytest.approx(result[key], rel=1e-4)


def test_an_old_run_is_continued(tmp_path: Path) -> None:
    shutil.copytree(OLD / "digits-interrupted", tmp_path / "run")
    run = find_run(str(tmp_path / "run"))
    assert run.epochs_done == 1
    assert run.moved is None
    result = train(run, resume=True)
    expected = json.loads((OLD / "digits-whole.json").read_text())
    assert result is not None
    assert [record["epoch"] for record in result["epochs"]] == [1, 2, 3]
    for ours, theirs in zip(result["epochs"], expected["epochs"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["val_accuracy"] == pytest.approx(theirs["val_accuracy"], abs=0.02)
        assert ours["lr"] == theirs["lr"]
    assert result["best_epoch"] == expected["best_epoch"]
    assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)


def test_a_finished_old_run_is_not_trained_again() -> None:
    run = find_run(str(OLD / "law-finished"))
    assert train(run) == json.loads((OLD / "law-finished" / "result.json").read_text())


def test_old_runs_are_tabulated() -> None:
    runs, notes = read_runs(OLD / name for name in ("digits-finished", "law-finished"))
    assert notes == []
    lines = group_table(group(runs)).splitlines()
    assert lines[2].split()[:6] == ["digits", "eigen[3]", "1", "1,045", "16,976", "15.33"]
    assert lines[3].split()[:7] == ["law-lorentz", "shared[8]", "1", "257", "256", "-", "25.46"]


def test_directories_keep_their_names() -> None:
    """Names that older versions gave, fields that were added since at their defaults."""
    options = {"neuron": "eigen", "rank": 3, "epochs": 1}
    one = find_run("digits", options | {"limit": 100})
    assert one.directory.path == Path("runs/digits-eigen-k3-a119d334-s0")
    two = find_run("digits", options | {"limit": 200, "channels": [4, 6, 6]})
    assert two.directory.path == Path("runs/digits-eigen-k3-58a7672e-s0")
