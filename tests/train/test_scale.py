"""The trainer sets the scale of the eigenvalues, keeps it, and watches the curvature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quadric import calibrate_
from quadric.train.data import load_data
from quadric.train.network import build_network
from quadric.train.runner import plan_run, train
from quadric.watchdog import CurvatureWarning
from tests.train.small import curve, law_result, law_run


def state(folder: Path, name: str = "last") -> dict[str, Any]:
    path = folder / "checkpoints" / f"{name}.ckpt"
    whole: dict[str, Any] = torch.load(path, weights_only=True)["state_dict"]
    return whole


def resumed(folder: Path) -> dict[str, Any]:
    """The result of a run that goes on after its first epoch."""
    (folder / "result.json").unlink()
    first, last = (folder / "checkpoints" / f"{name}.ckpt" for name in ("epoch-0001", "last"))
    last.write_bytes(first.read_bytes())
    result = train(plan_run(str(folder)), resume=True)
    assert result is not None
    return result


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square"])
def test_the_first_step_sets_the_scale_for_good(tmp_path: Path, neuron: str) -> None:
    run = law_run(tmp_path / "run", neuron=neuron, keep_every=1)
    train(run)
    first, last = state(tmp_path / "run", "epoch-0001"), state(tmp_path / "run")
    data = load_data(run.recipe)
    network = build_network(run.recipe, data)
    calibrate_(network, next(iter(data.train(0, 1)))[0])
    scales = {k: v for k, v in network.state_dict().items() if k.endswith("_scale")}
    assert len(scales) == 2
    for name, scale in scales.items():
        assert scale != 1
        assert torch.equal(first[f"network.{name}"], scale)
        assert torch.equal(last[f"network.{name}"], scale)


def test_the_papers_rule_has_no_scale(tmp_path: Path) -> None:
    law_result(tmp_path / "run", neuron="eigen", quadratic_scale=False)
    assert not any(name.endswith("_scale") for name in state(tmp_path / "run"))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16-mixed"}, {"precision": "bf16-true"}, {"precision": "64-true"},
        {"ema": 0.9}, {"average": 2}, {"validation": 0.25}, {"quadratic_scale": False},
        {"batch_size": 1, "samples": 16},
    ],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)  # fmt: skip
def test_a_run_goes_on_to_the_same_curve(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"neuron": "shared", "keep_every": 1, **options}
    whole = law_result(tmp_path / "run", **options)
    again = resumed(tmp_path / "run")
    assert curve(again) == curve(whole)
    assert again["test_loss"] == whole["test_loss"]


def test_the_warning_is_recorded_and_survives_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"neuron": "shared", "quadratic_lr": 10.0, "keep_every": 1}
    with pytest.warns(CurvatureWarning, match="lower quadratic_lr"):
        whole = law_result(tmp_path / "run", **options)
    again = resumed(tmp_path / "run")
    assert again["curvature_warning"] == whole["curvature_warning"]
    assert "curvature_warning" not in law_result(tmp_path / "calm", neuron="shared")
