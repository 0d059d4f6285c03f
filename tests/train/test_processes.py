"""Real processes: two that train together, one that is killed, one that gets Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quadric.train.directory import RunDirectory
from quadric.train.run import find_run, train
from tests.train.small import curve, law_result, law_run, metrics

QUADRIC = [str(Path(sys.executable).parent / "quadric"), "train"]


def start(*arguments: str) -> subprocess.Popen[str]:
    # A group of its own, as a shell would make: a signal for it is not one for the tests.
    return subprocess.Popen(
        [*QUADRIC, *arguments],
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


def test_a_killed_run_continues_to_the_same_curve(tmp_path: Path) -> None:
    options = {"epochs": 30, "samples": 1024, "neuron": "eigen"}
    whole = law_result(tmp_path / "whole", **options)
    run = law_run(tmp_path / "killed", **options)
    arguments = "law-lorentz --neuron eigen --epochs 30 --batch-size 64 --set samples=1024"
    process = start(*arguments.split(), "--run-dir", str(run.directory.path))
    wait_for_epochs(process, run.directory, 3)
    process.kill()
    process.communicate()
    assert not run.directory.is_finished
    assert 2 <= run.epochs_done < 30
    result = train(find_run(str(run.directory.path)), resume=True)
    assert result is not None
    assert curve(result) == curve(whole)


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    process = start("law-lorentz", "--epochs", "100000", "--run-dir", str(directory.path))
    wait_for_epochs(process, directory, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert f"continue with `quadric train {directory.path} --resume`" in out
    assert str(directory.last_checkpoint) in out
    assert "Traceback" not in err
    assert not directory.is_finished


@pytest.mark.slow
def test_ctrl_c_ends_two_processes(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    process = start(
        "law-lorentz", "--epochs", "100000", "--devices", "2", "--run-dir", str(directory.path)
    )
    wait_for_epochs(process, directory, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "--resume" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_two_processes_diverge_together(tmp_path: Path) -> None:
    options = {"neuron": "eigen", "optimizer": "sgd", "lr": 1e30, "devices": 2}
    result = law_result(tmp_path / "run", **options)
    assert result["status"] == "diverged"
    assert "hidden1" in result["diverged"]["layer"]
