"""Averaged weights, patience and kept checkpoints, and that continuing is exact with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quadric.train.data import load_data
from quadric.train.evaluation import evaluate
from quadric.train.network import build_network
from quadric.train.runner import plan_run, train
from quadric.train.step import TrainingModule
from tests.train.small import curve, law_result, law_run, pictures
from tests.train.test_states import UNSTABLE


def test_the_average_is_that_of_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pictures((3, 8, 8), 4, train=48, test=8)
    options = {"epochs": 1, "milestones": [1], "batch_size": 8, "model": "resnet8", "ema": 0.6}
    options |= {"channels": [4, 8, 16], "lr": 0.01, "memory_format": "contiguous"}
    run = plan_run("cifar10-resnet20", options, run_dir=tmp_path / "run")
    seen = []
    end = TrainingModule.on_train_batch_end

    def watched(self: TrainingModule, *args: Any) -> None:
        seen.append(copy.deepcopy(self.network.state_dict()))
        end(self, *args)

    monkeypatch.setattr(TrainingModule, "on_train_batch_end", watched)
    assert train(run, data=data) is not None
    start = build_network(run.recipe, load_data(run.recipe, data)).state_dict()
    assert len(seen) == 6
    average = {name: value.double() for name, value in start.items()}
    for step, state in enumerate(seen, start=1):
        decay = min(0.6, step / (step + 9))
        for name, value in state.items():
            if value.is_floating_point():
                average[name] = decay * average[name] + (1 - decay) * value.double()
            else:
                average[name] = value
    saved = load_file(run.directory.weights_file)
    for name, value in average.items():
        torch.testing.assert_close(saved[name].double(), value.double(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(saved["conv1.weight"], seen[-1]["conv1.weight"])
    assert int(saved["bn1.num_batches_tracked"]) == 6


def test_the_average_is_what_is_tested(tmp_path: Path) -> None:
    result = law_result(tmp_path / "run", neuron="eigen", ema=0.9)
    plain = law_result(tmp_path / "plain", neuron="eigen")
    first, second = result["epochs"][-1], plain["epochs"][-1]
    assert first["train_loss"] == second["train_loss"]
    assert first["test_loss"] != second["test_loss"]
    assert first["quadratic_share"] != second["quadratic_share"]
    found = evaluate(tmp_path / "run")
    assert found["test_rmse"] == pytest.approx(result["test_rmse"], rel=1e-5)
    assert found["largest_activation"] == pytest.approx(result["largest_activation"], rel=1e-5)


def test_patience_stops_and_the_best_epoch_counts(tmp_path: Path) -> None:
    result = law_result(tmp_path / "run", epochs=12, patience=2, **UNSTABLE)
    values = [record["val_rmse"] for record in result["epochs"]]
    best = values.index(min(values))
    assert result["best_epoch"] == best + 1
    assert len(values) == best + 1 + 2 < 12
    assert result["stopped_early"] is True
    assert result["status"] == "ok"


def test_a_run_that_had_stopped_does_not_go_on(tmp_path: Path) -> None:
    """Killed after its last checkpoint, before its result."""
    options = UNSTABLE | {"epochs": 12, "patience": 2}
    run = law_run(tmp_path / "run", **options)
    before = train(run)
    assert before is not None
    run.directory.result_file.unlink()
    after = train(plan_run(str(tmp_path / "run")), resume=True)
    assert after is not None
    assert curve(after) == curve(before)
    assert after["test_loss"] == before["test_loss"]


def test_every_nth_checkpoint_is_kept(tmp_path: Path) -> None:
    law_result(tmp_path / "run", epochs=5, keep_every=2)
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in folder.glob("epoch-*")) == [
        "epoch-0002.ckpt",
        "epoch-0004.ckpt",
    ]
    second = torch.load(folder / "epoch-0002.ckpt", weights_only=True)
    assert second["epoch"] == 1
    law_result(tmp_path / "every", epochs=2, keep_every=1)
    assert len(list((tmp_path / "every" / "checkpoints").glob("epoch-*"))) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patience": 3}, "patience needs a part to validate on, got patience=3 without one"),
        ({"ema": 0.9, "precision": "bf16-true"}, "ema does not work with precision 'bf16-true'"),
        ({"ema": 0.9, "strategy": "fsdp"}, "strategy 'fsdp' does not work with ema"),
        ({"ema": 1.0}, "ema must be less than 1"),
        ({"average": 2, "validation": 0.1}, "got average=2 with validation=0.1: leave one"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        law_run(tmp_path, **fields)
