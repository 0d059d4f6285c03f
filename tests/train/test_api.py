"""Training from Python: the functions of `quadric.train`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import quadric
from quadric.errors import InputError
from quadric.train.evaluation import evaluate
from tests.command_line import output

LAW: dict[str, Any] = {"samples": 128, "batch_size": 64, "epochs": 2, "progress": False}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_gives_metrics_path_and_model(here: Path) -> None:
    result = quadric.train.run("law-lorentz", neuron="shared", rank=4, seed=1, **LAW)
    assert result.is_ok
    assert result.path.parent == Path("runs")
    assert set(result.metrics) == {"rmse", "loss"}
    assert result.metrics["rmse"] == pytest.approx(evaluate(result.path)["test_rmse"], rel=1e-5)
    assert (result.recipe.neuron, result.recipe.rank, result.recipe.seed) == ("shared", 4, 1)
    assert list(result.epochs.index) == [1, 2]
    assert result.epochs["test_rmse"][2] == result.metrics["rmse"]
    model = result.model()
    assert not model.training
    again = quadric.train.load(result)
    x = torch.randn(3, 5)
    assert torch.equal(model(x), again(x))
    assert "test RMSE" in repr(result)
    assert "<td>shared, rank 4</td>" in result._repr_html_()


def test_a_sweep_combines_lists_and_gives_results(here: Path) -> None:
    fields: dict[str, Any] = {**LAW, "neuron": ["linear", "eigen"], "hidden": [[8], [4, 4]]}
    found = quadric.train.sweep("law-lorentz", seeds=2, optimizer="adam", **fields)
    assert len(found) == 8
    assert [r.recipe.seed for r in found] == [0] * 4 + [1] * 4
    frame = quadric.train.results("runs")
    assert len(frame) == 8
    assert {"recipe", "neuron", "rank", "seed", "hidden", "params", "test_rmse"} <= set(frame)
    assert "lr" not in frame
    mean = frame.groupby("neuron")["test_rmse"].mean()
    expected = [r.metrics["rmse"] for r in found if r.recipe.neuron == "eigen"]
    assert mean["eigen"] == pytest.approx(sum(expected) / 4)
    assert len(quadric.train.results(found[:3])) == 3
    assert quadric.train.results(found[0])["path"][0] == str(found[0].path)
    # The table of the command line is of the same runs.
    assert len(json.loads(output("results", "runs", "--json", "-"))["groups"]) == 4


def test_a_sweep_says_which_run_failed(here: Path) -> None:
    with pytest.raises(quadric.errors.QuadricError, match=r"1 of 2 runs failed: law-lorentz-lin"):
        quadric.train.sweep("law-lorentz", model=["mlp", "resnet20"], hidden=None, **LAW)
    assert len(quadric.train.results("runs")) == 1


def test_progress_is_a_line_an_epoch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quadric.train.run("law-lorentz", **(LAW | {"progress": True}))
    assert capsys.readouterr().err.count("epoch ") == 2
    quadric.train.run("law-lorentz", seed=1, **LAW)
    assert capsys.readouterr() == ("", "")


def test_unknown_fields_and_paths_are_refused(here: Path) -> None:
    with pytest.raises(InputError, match="unknown field 'neurons': did you mean 'neuron'"):
        quadric.train.run("digits", neurons="eigen")
    with pytest.raises(InputError, match="no such run: nowhere"):
        quadric.train.results("nowhere")
    with pytest.raises(InputError, match=r"no finished run in \.:"):
        quadric.train.results(".")
    with pytest.raises(AttributeError, match=r"'quadric.train' has no attribute 'nothing'"):
        _ = quadric.train.nothing  # type: ignore[attr-defined]


def test_a_result_does_not_wait_for_lightning(here: Path) -> None:
    quadric.train.run("law-lorentz", run_dir="run", **LAW)
    code = "import quadric, sys; quadric.train.results('run'); quadric.train.load('run');"
    code += "assert 'lightning' not in sys.modules"
    root = str(Path(quadric.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": root})


def test_a_profile_names_operators(here: Path) -> None:
    fields = [*"--set samples=1024 --batch-size 64 --epochs 1".split(), "--run-dir", "run"]
    shown = output("train", "law-lorentz", "--profile", "--quiet", *fields)
    assert "where the time goes: run/profile.txt" in shown
    text = Path("run/profile.txt").read_text()
    assert "aten::addmm" in text
    assert "Self CPU" in text
    assert json.loads(Path("run/trace.json").read_text())["traceEvents"]
