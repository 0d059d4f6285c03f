"""Real processes: two that train together, one that is killed, one that gets Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quadric.train.directory import RunDirectory
from quadric.train.evaluation import evaluate
from quadric.train.runner import plan_run, train
from tests.train.small import LISTENING, curve, law_result, law_run, metrics

QUADRIC = [str(Path(sys.executable).parent / "quadric"), "train"]


def start(*arguments: str) -> subprocess.Popen[str]:
    # A group of its own, as a shell would make: a signal for it is not one for the tests.
    return subprocess.Popen(
        [*LISTENING, *QUADRIC, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_for_epochs(process: subprocess.Popen[str], directory: RunDirectory, epochs: int) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if directory.last_checkpoint.is_file() and len(metrics(directory)) >= epochs:
            return
        time.sleep(0.01)
    process.kill()
    pytest.fail(f"no {epochs} epochs: {process.communicate()}")


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process prints until it ends; one that does not end fails the test."""
    try:
        return process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"did not end: {process.communicate()}")


def wait_for_lock(directory: RunDirectory) -> None:
    """Nobody holds a directory whose processes are gone."""
    with directory.lock():
        pass


def test_two_processes_equal_one_with_twice_the_batch(tmp_path: Path) -> None:
    options = {"neuron": "shared", "optimizer": "sgd", "lr": 0.1, "samples": 512}
    one = law_result(tmp_path / "one", batch_size=64, **options)
    two = law_result(tmp_path / "two", batch_size=32, devices=2, **options)
    assert two["settings"]["devices"] == 2
    for first, second in zip(one["epochs"], two["epochs"], strict=True):
        for name in ("train_loss", "test_loss", "test_rmse", "lr"):
            assert second[name] == pytest.approx(first[name], rel=1e-5), name
    # Without sharing gradients, each process would learn from half of the data: not this curve.
    alone = law_result(tmp_path / "alone", batch_size=32, limit=256, **options)
    assert alone["epochs"][-1]["train_loss"] != pytest.approx(
        one["epochs"][-1]["train_loss"], rel=1e-2
    )


SHARDED = {"neuron": "eigen", "samples": 256, "clip": 1.0, "validation": 0.25}


@pytest.mark.slow
def test_sharded_processes_train_and_save_as_one_does(tmp_path: Path) -> None:
    one = law_result(tmp_path / "one", batch_size=64, **SHARDED)
    run = law_run(tmp_path / "fsdp", strategy="fsdp", devices=2, batch_size=32, **SHARDED)
    sharded = train(run)
    assert sharded is not None
    assert sharded["settings"]["strategy"] == "fsdp"
    for first, second in zip(one["epochs"], sharded["epochs"], strict=True):
        for name in ("train_loss", "val_loss", "largest_activation"):
            assert second[name] == pytest.approx(first[name], rel=1e-5), name
        # Measured on a part of the data, of which this process has half.
        assert second["quadratic_share"] == pytest.approx(first["quadratic_share"], rel=0.5)
    expected = load_file(tmp_path / "one" / "weights.safetensors")
    weights = load_file(tmp_path / "fsdp" / "weights.safetensors")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)
    assert evaluate(tmp_path / "fsdp")["test_rmse"] == pytest.approx(sharded["test_rmse"], rel=1e-5)
    # A checkpoint is whole, so that anything can read it.
    state = torch.load(run.directory.last_checkpoint, weights_only=True)["state_dict"]
    named = {name.removeprefix("network.") for name in state}
    assert {name for name in named if not name.endswith("_scale")} == set(weights)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_several_processes_continue(tmp_path: Path, strategy: str) -> None:
    """A run is stopped after its first epoch as a kill would: only its last checkpoint is there."""
    options = SHARDED | {"devices": 2, "batch_size": 32, "strategy": strategy}
    whole = law_result(tmp_path / "whole", **options)
    directory = RunDirectory(tmp_path / "run")
    words = "law-lorentz --neuron eigen --epochs 3 --devices 2 --batch-size 32 --validation 0.25"
    words += f" --set samples=256 --set clip=1.0 --strategy {strategy}"
    process = start(*words.split(), "--run-dir", str(directory.path))
    wait_for_epochs(process, directory, 1)
    process.kill()
    process.communicate()
    assert not directory.is_finished
    result = train(plan_run(str(directory.path)), resume=True)
    assert result is not None
    assert curve(result) == curve(whole)


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "my run")
    process = start("law-lorentz", "--epochs", "100000", "--run-dir", str(directory.path))
    wait_for_epochs(process, directory, 1)
    process.send_signal(signal.SIGINT)
    out, err = finished(process)
    assert process.returncode == 130, err
    assert f"continue with `quadric train '{directory.path}' --resume`" in out
    assert str(directory.last_checkpoint) in out
    assert "Traceback" not in err
    assert not directory.is_finished


@pytest.mark.slow
def test_ctrl_c_ends_two_processes(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    command = f"law-lorentz --neuron shared --epochs 100000 --devices 2 --run-dir {directory.path}"
    process = start(*command.split())
    wait_for_epochs(process, directory, 1)
    process.send_signal(signal.SIGINT)
    out, err = finished(process)
    assert process.returncode == 130, err
    assert "--resume" in out
    assert err.count("fused kernels are") == 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_torchrun_on_two_machines(tmp_path: Path) -> None:
    """Two launchers that find each other over the network, as on two machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id 1"
    words = "law-lorentz --neuron eigen --epochs 3 --batch-size 32 --set samples=256"
    command = [str(Path(sys.executable).parent / "torchrun"), *torchrun.split()]
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", *QUADRIC, *words.split()]
    processes = [
        subprocess.Popen(
            [*command, "--run-dir", str(tmp_path / "two")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]
    outputs = [finished(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    # One of the two reports.
    assert sum("test RMSE" in out for out, _ in outputs) == 1
    two = RunDirectory(tmp_path / "two").result()
    assert (two["settings"]["devices"], two["settings"]["nodes"]) == (1, 2)
    one = law_result(tmp_path / "one", neuron="eigen", batch_size=64)
    assert two["test_rmse"] == pytest.approx(one["test_rmse"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_diverge_together(tmp_path: Path) -> None:
    options = {"neuron": "eigen", "optimizer": "sgd", "lr": 1e30, "devices": 2}
    result = law_result(tmp_path / "run", **options)
    assert result["status"] == "diverged"
    assert "hidden1" in result["diverged"]["layer"]
