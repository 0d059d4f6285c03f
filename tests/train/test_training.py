"""Whole runs in this process: files, determinism, continuing, divergence, validation."""

from __future__ import annotations

import contextlib
import io
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quadric.data.batches import TensorBatches
from quadric.train.data import load_data
from quadric.train.evaluation import evaluate, measure
from quadric.train.network import build_network
from quadric.train.processes import InterruptedTraining
from quadric.train.runner import PlannedRun, plan_run, train
from quadric.train.step import TrainingModule
from quadric.watchdog import CurvatureWarning
from tests.train.small import curve, law_result, law_run, metrics, pictures

FIELDS = """recipe dataset model neuron rank seed status params macs test_loss quadratic_share
epochs seconds peak_memory_bytes versions machine command""".split()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> PlannedRun:
    """A short run on pictures."""
    overrides = {"neuron": "eigen", "epochs": 2, "limit": 200}
    run = plan_run("digits", overrides, runs=tmp_path_factory.mktemp("runs"))
    train(run)
    return run


def test_a_run_directory_holds_everything(digits: PlannedRun) -> None:
    directory = digits.directory
    assert directory.path.name.startswith("digits-eigen-k9-")
    assert directory.path.name.endswith("-s0")
    assert directory.recipe() == digits.recipe
    assert directory.recipe_file.read_text().startswith(
        "# quadric train digits --limit 200 --neuron eigen"
    )
    assert directory.last_checkpoint.is_file()
    assert not directory.best_checkpoint.exists()
    assert list((directory.path / "tensorboard").glob("events.*"))
    assert not list(directory.path.glob("*partial*"))
    weights = load_file(directory.weights_file)
    keys = set(build_network(digits.recipe, load_data(digits.recipe)).state_dict())
    assert {key for key in keys if not key.endswith("_scale")} == set(weights)


def test_the_result_is_as_the_design_says(digits: PlannedRun) -> None:
    text = digits.directory.result_file.read_text()
    result = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in strict JSON"))
    assert set(FIELDS) <= set(result)
    assert (result["recipe"], result["dataset"], result["model"]) == (
        "digits",
        "digits",
        "digits_cnn",
    )
    assert (result["neuron"], result["rank"], result["seed"], result["status"]) == (
        "eigen",
        9,
        0,
        "ok",
    )
    assert 0 <= result["test_accuracy"] <= result["test_top5"] <= 1
    assert "test_rmse" not in result
    assert (result["params"], result["macs"]) == (14528, 234304)
    assert set(result["quadratic_share"]) == {"conv1", "conv2", "conv3"}
    assert result["peak_memory_bytes"] > 10**7
    assert {"python", "quadric", "torch", "lightning"} <= set(result["versions"])
    assert result["command"] == digits.command
    assert result["settings"] == digits.recipe.identity()
    last = result["epochs"][-1]
    assert [record["epoch"] for record in result["epochs"]] == [1, 2]
    assert last["test_accuracy"] == result["test_accuracy"]
    assert last["largest_activation"] == result["largest_activation"] > 0
    assert last["largest_activation_layer"] in ("conv1", "conv2", "conv3", "fc")
    assert all(0 <= share <= 1 for share in last["quadratic_share"].values())
    assert result["seconds"] == pytest.approx(sum(r["seconds"] for r in result["epochs"]))


def test_metrics_csv_has_one_row_an_epoch(digits: PlannedRun) -> None:
    rows = metrics(digits.directory)
    records = digits.directory.result()["epochs"]
    assert [int(row["epoch"]) for row in rows] == [1, 2]
    for row, record in zip(rows, records, strict=True):
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "lr"):
            assert float(row[name]) == record[name]
        assert float(row["quadratic_share/conv2"]) == record["quadratic_share"]["conv2"]
        assert float(row["quadratic_share"]) == pytest.approx(
            sum(record["quadratic_share"].values()) / 3
        )


def test_evaluation_repeats_the_result(digits: PlannedRun) -> None:
    found, result = evaluate(digits.directory.path), digits.directory.result()
    for name in ("params", "macs", "test_accuracy", "test_top5", "largest_activation"):
        assert found[name] == pytest.approx(result[name], rel=1e-5), name
    assert found["test_loss"] == pytest.approx(result["test_loss"], rel=1e-4)


def test_pictures_with_crops_are_deterministic_too(tmp_path: Path) -> None:
    data = pictures((3, 8, 8), 4, 24, 8)
    results = []
    for name in ("a", "b"):
        overrides = {"epochs": 2, "batch_size": 8, "channels": [4, 8, 8], "model": "resnet8"}
        run = plan_run("cifar10-resnet20", overrides | {"neuron": "eigen"}, run_dir=tmp_path / name)
        results.append(train(run, data=data))
    assert curve(results[0]) == curve(results[1])  # type: ignore[arg-type]


def test_given_data_are_recorded_and_not_those_of_the_recipe(tmp_path: Path) -> None:
    data = pictures((1, 8, 8), 4, 24, 8)
    run = plan_run("digits", {"epochs": 1}, run_dir=tmp_path / "run")
    result = train(run, data=data)
    assert result is not None
    assert result["dataset"] == result["settings"]["dataset"] == "given:random"
    assert run.directory.recipe().dataset == "given:random"
    assert not result["command"].startswith("quadric train")
    # And a linear network has no quadratic parameters.
    assert (result["quadratic_share"], result["rank"]) == (None, None)
    assert "quadratic_lr" not in result["epochs"][0]
    assert train(run, data=data) == result  # finished, and the same run
    # Nothing else may be taken for these data: neither for a test of the weights nor to go on.
    told = r"data that Python code gave it, 'given:random'"
    with pytest.raises(ValueError, match=told):
        evaluate(tmp_path / "run")
    with pytest.raises(ValueError, match=r"dataset is 'given:random', not 'digits'"):
        train(run, overwrite=True)
    with pytest.raises(ValueError, match=told):
        train(plan_run(str(tmp_path / "run")), overwrite=True)


def test_every_epoch_has_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    each = TensorBatches.__iter__

    def listened(batches: TensorBatches) -> Any:
        for inputs, targets in each(batches):
            if batches.batching.shuffle:
                orders.append(inputs.clone())
            yield inputs, targets

    monkeypatch.setattr(TensorBatches, "__iter__", listened)
    law_result(tmp_path / "run", epochs=3)
    assert len(orders) == 3 * 4
    epochs = [torch.cat(orders[4 * i : 4 * i + 4]) for i in range(3)]
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    for epoch in epochs[1:]:
        torch.testing.assert_close(epoch.sort(0).values, epochs[0].sort(0).values)


def test_a_terminal_gets_a_bar_and_a_line_for_each_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    train(law_run(tmp_path / "run", epochs=2), screen=screen)
    lines = [line for line in screen.getvalue().splitlines() if line.startswith("epoch")]
    assert [line[:9] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    captured = capsys.readouterr()
    assert "4/4" in captured.out + captured.err


@pytest.mark.parametrize(
    ("overrides", "lines"), [({"neuron": "eigen"}, 1), ({"neuron": "linear"}, 0)]
)
def test_a_line_says_whether_the_kernels_are_on(
    tmp_path: Path, overrides: dict[str, Any], lines: int
) -> None:
    screen = io.StringIO()
    train(law_run(tmp_path / "run", **overrides), screen=screen)
    assert screen.getvalue().count("fused kernels are o") == lines


def test_divergence_stops_and_names_the_layer(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run", neuron="eigen", optimizer="sgd", lr=1e30, quadratic_lr=1e30)
    with pytest.warns(CurvatureWarning, match="layer 'hidden1': its outputs are not finite"):
        result = train(run)
    assert result is not None
    assert "layer 'hidden1': its outputs are not finite" in result["curvature_warning"]
    assert result["status"] == "diverged"
    assert (result["test_rmse"], result["test_loss"]) == (None, None)
    assert result["epochs"] == []
    assert 0 < result["seconds"] < 60
    told = result["diverged"]
    assert told["epoch"] == 1
    assert told["step"] == 2
    assert told["layer"] == "layer 'hidden1' (QuadraticLinear)"
    assert "the first to be not finite is layer 'hidden1'" in told["message"]
    json.loads(run.directory.result_file.read_text(), parse_constant=lambda n: pytest.fail(n))


def test_ctrl_c_is_not_lost_where_exceptions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops what is raised while it finalizes an object: then the next step stops."""
    begin = TrainingModule.on_train_epoch_start

    def dropped(self: TrainingModule) -> None:
        begin(self)
        if self.trainer.current_epoch == 1:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingModule, "on_train_epoch_start", dropped)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = law_run(tmp_path / "run")
        with pytest.raises(InterruptedTraining):
            train(run)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.epochs_done == 1


def test_a_run_may_go_on_at_another_place(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run", data_dir="/old")
    train(run)
    run.directory.result_file.unlink()
    moved = plan_run(str(tmp_path / "run"), {"data_dir": "/new"})
    result = train(moved, resume=True)
    assert result is not None
    assert "--data-dir /new" in result["command"]
    assert result["settings"]["data_dir"] == "/new"
    assert run.directory.recipe().data_dir == "/new"


@pytest.mark.parametrize("more", [{}, {"ema": 0.5}])
def test_the_best_epoch_on_the_validation_part_counts(tmp_path: Path, more: dict[str, Any]) -> None:
    # A rate that grows worse: a constant large one, so that the last epoch is not the best.
    overrides: dict[str, Any] = {
        "validation": 0.25, "optimizer": "sgd", "lr": 0.3, "schedule": "constant", "epochs": 8,
        "momentum": 0.95, **more,
    }  # fmt: skip
    run = law_run(tmp_path / "run", **overrides)
    result = train(run)
    assert result is not None
    values = [record["val_rmse"] for record in result["epochs"]]
    assert result["best_epoch"] == values.index(min(values)) + 1 < 8
    assert not any("test" in name for name in result["epochs"][0])
    # The weights are those of the best epoch: they repeat its validation error.
    recipe, data = run.recipe, load_data(run.recipe)
    network = build_network(recipe, data)
    network.load_state_dict(load_file(run.directory.weights_file))
    held = data.validation(0, 1)
    assert held is not None
    cpu = torch.device("cpu")
    assert measure(network, held, data.task, cpu, "32-true")["rmse"] == pytest.approx(min(values))
    tested = measure(network, data.test(0, 1), data.task, cpu, "32-true")
    assert result["test_rmse"] == pytest.approx(tested["rmse"])


def parameters(folder: Path, **overrides: Any) -> dict[str, torch.Tensor]:
    options = {"neuron": "eigen", "optimizer": "sgd", "lr": 0.1, "epochs": 1} | overrides
    law_result(folder, **options)
    return load_file(folder / "weights.safetensors")


def test_the_quadratic_parameters_have_their_own_rate_and_decay(tmp_path: Path) -> None:
    plain = parameters(tmp_path / "a", quadratic_lr=0.01)
    frozen = parameters(tmp_path / "b", quadratic_lr=0)
    assert plain["hidden1.eigenvalues"].abs().max() > 0
    assert frozen["hidden1.eigenvalues"].abs().max() == 0
    decayed = parameters(tmp_path / "c", quadratic_lr=0.01, quadratic_weight_decay=20.0)
    assert decayed["hidden1.eigenvalues"].norm() < 0.9 * plain["hidden1.eigenvalues"].norm()


def test_the_schedule_of_the_eigenvalues(tmp_path: Path) -> None:
    options: dict[str, Any] = {"neuron": "eigen", "quadratic_lr": 0.02, "schedule": "cosine"}
    same = law_result(tmp_path / "a", **options)["epochs"]
    constant = law_result(tmp_path / "b", quadratic_schedule="constant", **options)["epochs"]
    assert same[0]["lr"] == 0.003
    assert same[1]["lr"] == pytest.approx(0.003 * 0.75)  # a third of the way down the cosine
    assert same[1]["quadratic_lr"] == pytest.approx(0.02 * 0.75)
    assert [record["quadratic_lr"] for record in constant] == [0.02] * 3
    assert constant[1]["lr"] == same[1]["lr"]


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    before = build_network(
        law_run(tmp_path / "x", neuron="eigen").recipe, load_data(law_run(tmp_path / "x").recipe)
    ).state_dict()
    options: dict[str, Any] = {"momentum": 0.0, "batch_size": 256, "clip": 1e-3}
    after = parameters(tmp_path / "a", quadratic_lr=0.1, **options)
    moved = math.sqrt(sum(float((after[n] - before[n]).square().sum()) for n in after))
    assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_precisions(tmp_path: Path, precision: str) -> None:
    result = law_result(tmp_path / "run", neuron="shared", epochs=1, precision=precision)
    assert result["status"] == "ok"
    found = evaluate(tmp_path / "run")
    assert found["test_loss"] == pytest.approx(result["test_loss"], rel=1e-2)


def test_a_launcher_decides_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 5), ("LOCAL_RANK", 1), ("WORLD_SIZE", 8), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    run = law_run(tmp_path / "run")
    assert (run.recipe.devices, run.recipe.nodes) == (4, 2)
    with pytest.raises(ValueError, match="must be what the launcher started, 4 and 2, got 3"):
        train(law_run(tmp_path / "run", devices=3))


def test_slurm_decides_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"SLURM_PROCID": "3", "SLURM_NTASKS": "6", "SLURM_NNODES": "3"}
    for name, value in (values | {"SLURM_JOB_NAME": "train"}).items():
        monkeypatch.setenv(name, value)
    run = law_run(tmp_path / "run")
    assert (run.recipe.devices, run.recipe.nodes) == (2, 3)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert law_run(tmp_path / "run").recipe.devices == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own
def test_compiled_training_agrees(tmp_path: Path) -> None:
    plain = law_result(tmp_path / "a", neuron="shared")
    compiled = law_result(tmp_path / "b", neuron="shared", compile=True)
    for one, two in zip(plain["epochs"], compiled["epochs"], strict=True):
        assert two["test_loss"] == pytest.approx(one["test_loss"], rel=1e-3)
