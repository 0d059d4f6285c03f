"""Results of runs as they are kept in the repository."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from quadric.runs.groups import group
from quadric.runs.reading import read_runs
from tests.analysis.made import trained_runs
from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    load_tool("evidence_runs", monkeypatch)
    return load_tool("collect_results", monkeypatch)


def make_run(folder: Path, seed: int, epochs: int = 45, **more: Any) -> Path:
    """The files that a finished run has and the tool reads."""
    run = folder / f"r8-eigen-s{seed}"
    run.mkdir(parents=True)
    curve = [{"epoch": e, "val_accuracy": e / 100, "seconds": 1.0} for e in range(1, epochs + 1)]
    result = {
        "recipe": "cifar10-resnet20", "neuron": "eigen", "rank": 9, "seed": seed, "status": "ok",
        "test_accuracy": 0.5, "params": 1000, "macs": 2000, "seconds": 3.0, "epochs": curve,
        "command": f"quadric train /home/me/recipes/cifar10-resnet20.yaml --data-dir "
        f"/home/me/data/cifar --seed {seed}",
        "settings": {"lr": 0.1, "seed": seed, "data_dir": "/home/me/data/cifar",
                     "code": ["/home/me/own.py"]},
        **more,
    }  # fmt: skip
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (run / "recipe.yaml").write_text("name: cifar10-resnet20\n", encoding="utf-8")
    return run


def test_runs_become_files_without_paths_and_with_a_thin_curve(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / "runs", seed, best_epoch=31) for seed in (0, 1)]
    open_run = tmp_path / "runs" / "open"
    open_run.mkdir()
    (open_run / "recipe.yaml").write_text("name: digits\n", encoding="utf-8")
    into = tmp_path / "results" / "images"
    tool.main([*map(str, [*runs, open_run]), "--into", str(into)])
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(into / f"r8-eigen-s{seed}.json") for seed in (0, 1)]
    assert "open is not finished" in said.err

    text = (into / "r8-eigen-s1.json").read_text(encoding="utf-8")
    assert "/home" not in text
    assert str(tmp_path) not in text
    kept = json.loads(text)
    assert kept["command"] == "quadric train cifar10-resnet20 --data-dir cifar --seed 1"
    assert kept["settings"]["code"] == ["own.py"]
    epochs = [point["epoch"] for point in kept["epochs"]]
    assert len(epochs) == 20
    assert (epochs[0], epochs[-1]) == (1, 45)
    assert 31 in epochs  # the one that was kept
    assert epochs == sorted(set(epochs))
    # What is kept reads as runs do.
    found, notes = read_runs(into)
    assert notes == []
    assert [each.seeds for each in group(found)] == [[0, 1]]


def test_an_analysis_comes_along_without_pictures(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs", 0)
    analysis = {
        "version": 1,
        "layers": [],
        "responses": {"pictures": ["AABA"]},
        "command": f"analyze {run}",
    }
    (run / "analysis.json").write_text(json.dumps(analysis), encoding="utf-8")
    into = tmp_path / "results" / "images"
    tool.main([str(run), "--into", str(into)])
    kept = json.loads((into / "r8-eigen-s0.analysis.json").read_text(encoding="utf-8"))
    assert kept == {"version": 1, "layers": [], "command": "analyze r8-eigen-s0"}
    # Neither the command nor the summary takes it for a run.
    (found,), notes = read_runs(into)
    assert (found.name, notes) == ("r8-eigen-s0", [])
    rows = list(load_tool("results_summary", monkeypatch).of_runs(into))
    assert [row["seeds"] for row in rows] == [1]


def test_tuning_runs_become_rows_of_one_file(tool: Any, tmp_path: Path) -> None:
    first = make_run(tmp_path / "runs", 0, best_epoch=30)
    second = make_run(tmp_path / "runs", 1)
    for run in (first, second, first):  # again: replaced, not doubled
        tool.main([str(run), "--into", str(tmp_path / "out"), "--tuning"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tuning.csv"]
    with (tmp_path / "out" / "tuning.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["seed"], row["lr"]) for row in rows] == [
        ("r8-eigen-s0", "0", "0.1"),
        ("r8-eigen-s1", "1", "0.1"),
    ]
    assert [row["val_accuracy"] for row in rows] == ["0.3", "0.45"]  # the epoch that was kept
    assert "/home" not in (tmp_path / "out" / "tuning.csv").read_text(encoding="utf-8")


def test_weights_are_published_with_their_card(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    tool.main([str(trained_runs() / "digits"), "--weights", "tiny"])
    weights = tmp_path / "tiny" / "digits_cnn-eigen-k3.safetensors"
    assert weights.read_bytes() == (trained_runs() / "digits" / "weights.safetensors").read_bytes()
    assert "recipe `digits`, 1 epochs, seed 0" in weights.with_suffix(".md").read_text()
