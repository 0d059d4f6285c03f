"""Commands whose disk fills, and results that a terminal or a disk would not take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import quadric as library
from quadric import models
from tests.command_line import assert_mistake, output, quadric
from tests.small_disk import small_disk

MAIN = "from quadric.cli import main; main()"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mlp.safetensors"
    torch.manual_seed(0)
    library.save(models.create("digits_cnn", neuron="eigen"), path)
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_export(weights: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"model{suffix}"
    with small_disk(20_000):
        told = quadric("export", weights, "--model", "digits_cnn", "-o", out)
    assert_mistake(told, f"cannot write {out} (File too large): make room")
    assert not list(tmp_path.iterdir())


def test_export_says_before_the_work_what_cannot_be_written(weights: Path) -> None:
    told = quadric("export", weights, "--model", "no such network", "-o", "/proc/model.onnx")
    assert_mistake(told, "--out /proc/model.onnx cannot be written: name another file")


def test_cost(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    with small_disk(500):
        told = quadric("cost", "resnet20", "--json", file)
    assert_mistake(told, f"cannot write {file} (")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written() -> None:
    command = [sys.executable, "-c", MAIN, "neurons"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Error: the disk refused (No space left on device)" in done.stderr


def test_demo(tmp_path: Path) -> None:
    with small_disk(2_000):
        told = quadric("demo", "--quick", "--out", tmp_path / "demo")
    assert told.exit_code == 2
    assert "cannot write" in told.stderr.splitlines()[-1]
    assert "Traceback" not in told.stderr
    assert not [file for file in (tmp_path / "demo").iterdir() if file.suffix == ".partial"]


COMPARE = ["compare", "law:lorentz", "--rows", 60, "--epochs", 2, "--folds", 2, "--seeds", 1]
COMPARE += ["--neurons", "shared", "--no-baselines"]


def test_compare(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with small_disk(3_000):
        told = quadric(*COMPARE, "--run-dir", directory)
    assert (told.exit_code, told.stdout) == (2, "")
    mistake = f"Error: cannot write {directory / 'compare.json'} (File too large)"
    assert told.stderr.splitlines()[-1].startswith(mistake)  # after the results as they came
    kept = {file.name for file in directory.iterdir()} - {".lock"}
    assert kept == {"settings.json", "fits.jsonl"}
    output(*COMPARE, "--run-dir", directory)  # the fits were kept
    assert json.loads((directory / "compare.json").read_text())


RESULTS = Path(__file__).parent.parent.parent / "results" / "images"


def test_a_terminal_without_our_signs() -> None:
    files = map(str, sorted(RESULTS.glob("knn18-linear-s??.json")))
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "results", *files],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\d\.\d\d \? 0\.\d\d", done.stdout)


# Ctrl-C when torch is about to be imported.
CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Press())
sys.argv = ["quadric", "neurons"]
from quadric.cli import main
main()
"""


def test_ctrl_c_while_modules_are_imported() -> None:
    command = [sys.executable, "-c", CTRL_C]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == ""
