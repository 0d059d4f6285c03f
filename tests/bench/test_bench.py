"""The comparison itself: who is compared with whom, in turn. Times are never asserted."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import quadric
from quadric import bench
from quadric.bench.memory import peak_bytes
from quadric.bench.plot import plot
from quadric.bench.run import expected_seconds, timed_runs
from quadric.cli.app import app


def test_peak_memory_is_the_largest_sum():
    def work() -> None:
        first = torch.empty(1000, dtype=torch.float32)
        second = torch.empty(500, dtype=torch.float32)
        del first
        third = torch.empty(100, dtype=torch.float32)
        del second, third

    assert 6000 <= peak_bytes(work) < 7000


def test_ratios_are_against_linear_of_the_same_kind():
    cases = bench.layer_cases(("eigen", "fan"), ((4, 5, 2),), ("plain",))
    assert [c.neuron for c in cases] == ["linear"] * 2 + ["eigen"] * 2 + ["fan"] * 2
    report = bench.run(cases, repeats=1)
    for row in report.rows:
        best = min(r["training_seconds"] for r in report.rows if r["neuron"] == "linear")
        assert row["training"] == pytest.approx(row["training_seconds"] / best)
    linear = [row for row in report.rows if row["neuron"] == "linear"]
    assert [row["memory"] for row in linear] == [1.0, 1.0]
    fan = next(row for row in report.rows if row["neuron"] == "fan")
    assert fan["memory"] > 1.2  # three maps keep more than one


def test_those_of_one_path_take_turns_with_the_linear_ones_they_are_compared_with(monkeypatch):
    paths = ("plain", "kernels")
    cases = bench.network_cases("resnet8", ("eigen", "shared"), paths, ("nchw",), batch=2)
    cases += bench.layer_cases(("fan",), ((4, 5, 2),), ("plain",), ("nchw",))
    turns = []

    def interleaved(functions, repeats, prepare, tick, at_least):
        names = [name.split(" | ")[1:3] for name in functions]
        turns.append([f"{neuron} {path}" for neuron, path in names])
        for _ in range(len(functions) * (repeats + 1)):
            tick()
        # The linear one takes one second longer each time, all others twice as long as it.
        return {name: [len(turns) * (1 + (i > 0))] for i, name in enumerate(functions)}

    module = importlib.import_module("quadric.bench.run")
    monkeypatch.setattr(module, "interleaved", interleaved)
    ticks = []
    report = bench.run(cases, 1, memory=False, tick=lambda: ticks.append(1), rounds=2)
    assert len(ticks) == timed_runs(cases, repeats=1, rounds=2)
    for at, path in ((0, "plain"), (2, "kernels")):  # training, then inference
        together = ["linear plain", f"eigen {path}", f"shared {path}"]
        assert turns[at] == turns[at + 1] == together
    assert turns[-1] == ["linear plain", "fan plain"]
    for row in report.rows:
        assert row["inference"] == (1 if row["neuron"] == "linear" else 2)
        assert row["inference_linear_seconds"] == row["inference_seconds"] / row["inference"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_is_compared_with_compiled():
    paths = ("kernels", "compiled")
    cases = bench.network_cases("resnet8", ("eigen", "fan"), paths, ("nchw",), batch=2)
    assert [(c.neuron, c.path) for c in cases] == [
        ("linear", "plain"),
        ("linear", "compiled"),
        ("eigen", "kernels"),
        ("eigen", "compiled"),
        ("fan", "plain"),
        ("fan", "compiled"),
    ]
    assert [c.kind[0] for c in cases] == [False, True] * 3


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 0.36), (0.25, 40.0), (4.0, 144.0)])
def test_how_long_it_takes(seconds, expected, monkeypatch):
    """Two cases by a clock of their own, of which a training step takes twice an inference."""
    now = [0.0]
    module = importlib.import_module("quadric.bench.run")
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    cases = bench.layer_cases(("eigen",), ((4, 5, 2),), ("plain",), ("nchw",))

    def takes(time):
        def work():
            now[0] += time

        return work

    for case in cases:
        monkeypatch.setattr(case, "training_step", takes(seconds))
        monkeypatch.setattr(case, "forward", takes(seconds / 2))
    # Two rounds of 3 + 1 training steps and 9 + 1 inferences, both cases; short ones more often.
    assert expected_seconds(cases, 3, 2) == pytest.approx(expected)


def test_gradients_are_neither_added_up_nor_moved_to_another_layout():
    for case in bench.layer_cases(("eigen",), ((4, 5, 2),), ("plain",)):
        case.training_step()
        (input,) = case.inputs
        assert input.is_leaf
        first = input.grad
        assert first is not None
        assert first.stride() == input.stride()
        case.training_step()
        torch.testing.assert_close(input.grad, first)
        assert input.grad is not first


def test_a_peak_does_not_depend_on_what_was_left_before():
    (case,) = bench.layer_cases((), ((4, 5, 2),), ("plain",), ("nchw",))
    case.training_step()
    case.clear()
    cleared = peak_bytes(case.training_step)
    gradients = sum(t.numel() * 4 for t in (*case.inputs, *case.module.parameters()))
    assert peak_bytes(case.training_step) <= cleared - gradients
    (row,) = bench.run([case], repeats=1).rows
    assert row["peak_memory_bytes"] == cleared


def test_eigen_keeps_no_more_memory_than_linear_in_front_of_batchnorm():
    cases = bench.network_cases("resnet8", ("eigen", "shared"), ("plain",), ("nchw",), batch=4)
    ratios = {row["neuron"]: row["memory"] for row in bench.run(cases, repeats=1).rows}
    assert ratios["eigen"] <= 1.02
    assert ratios["shared"] <= 1.5


def test_command(tmp_path):
    file = tmp_path / "bench.json"
    words = ["bench", "--shapes", "4x5x2", "--repeats", "1", "--neurons", "eigen", "--no-memory"]
    result = CliRunner().invoke(app, [*words, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "conv 4x5x5, batch 2" in result.output
    assert "fused kernels are o" in result.stderr
    assert re.search(r"^this takes about (a second|\d+ seconds)$", result.stderr, re.MULTILINE)
    data = json.loads(file.read_text())
    assert {"rows", "machine", "versions", "command", "repeats"} <= set(data)
    assert {row["training_runs"] for row in data["rows"]} == {10}  # short ones: ten times as often


def test_ranks_are_drawn_as_lines(tmp_path):
    picture = tmp_path / "ranks.png"
    cases = bench.rank_cases((1, 3), ("eigen",), "plain", (4, 4, 1))
    assert [case.rank for case in cases] == [None, 1, 3]

    plot(bench.run(cases, repeats=1, memory=False), picture)
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--neurons", "cubic"], "neurons must be among"),
        (["--paths", "fast"], "paths must be among"),
        (["--suite", "--paths", "compiled"], "paths must hold plain or kernels"),
        (["--shapes", "20x32"], "shapes must be positive whole numbers"),
        (["--ranks", "0"], "ranks must be positive whole numbers"),
        (["--model", "no.such:net"], "add --input with its shape"),
        (["--model", "mlp", "--input", "9"], "mlp must run on inputs of shape 9, got RuntimeError"),
        (["--model", "resnet20", "--input", "3x16"], "resnet20 must run on inputs of shape 3x16"),
        (["--model", "transformer", "--input", "3"], "the transformer has its own inputs"),
        (["--model", "mlp", "--shapes", "4x5x2"], "got --shapes with it"),
        (["--ranks", "1", "--model", "mlp"], "got --model with it"),
        (["--ranks", "1", "--neurons", "qres"], "--ranks needs neurons that have a rank"),
        (["--batch", "7"], "single layers have --shapes, got --batch with it"),
        (["--onnx", "--model", "mlp"], "--onnx says itself what is timed, got --model"),
        (["--tables", "--plot", "a.png"], "--tables says itself what is timed, got --plot"),
        (["--suite", "--dtypes", "bf16"], "--suite says itself what is timed, got --dtypes"),
        (["--onnx", "--neurons", "fan"], "--onnx says itself what is timed, got --neurons"),
        (["--json", "no/such/file.json"], "there is no directory no/such"),
        (["--ranks", "1", "--plot", "a.foo"], "--plot must end in one of"),
        (["--plot", "a.png"], "single layers have --shapes, got --plot with it"),
        (["--ranks", "1", "--plot", "no/such/a.png"], "there is no directory no/such"),
        (["--suite", "--model", "mlp"], "--suite says itself what is timed"),
        (["--paths", "kernels-joined"], "paths must be among plain, kernels, compiled"),
    ],
)
def test_bad_words_are_one_line(words, message):
    result = CliRunner().invoke(app, ["bench", *words, "--repeats", "1"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


FACTORIES = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.linear = nn.Embedding(9, 4), nn.Linear(4, 12)
        self.out = nn.Linear(12, 2)
    def forward(self, words, numbers):
        hidden = self.linear(self.words(words).mean(1) + numbers)
        return {"scores": self.out(hidden.relu()), "words": words}

def frozen():
    return nn.Linear(3, 2).requires_grad_(False)

class Picky(nn.Module):  # takes one batch size, and gives classes in eval mode
    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(3, 12), nn.Linear(12, 2)
    def forward(self, x):
        x = self.out(self.linear(x.reshape(7, 3)).relu())
        return x if self.training else x.argmax(1)
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "benched_networks.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("factories")
def test_a_network_of_two_inputs_and_a_mapping_as_output(tmp_path):
    words = ["bench", "--model", "benched_networks:Two", "--input", "5:int64", "--input", "4"]
    words += ["--batch", "3", "--repeats", "1", "--neurons", "eigen", "--paths", "plain"]
    result = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "bench.json")])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["neuron"] for row in rows] == ["linear", "eigen"]
    assert all(row["training_seconds"] > 0 for row in rows)
    last = words.index("4")
    result = CliRunner().invoke(app, words[: last - 1] + words[last + 1 :])
    assert result.exit_code == 2
    assert "must run on inputs of shape 5, got TypeError" in result.stderr


@pytest.mark.usefixtures("factories")
def test_a_network_of_one_batch_size_that_gives_classes():
    words = ["bench", "--model", "benched_networks:Picky", "--input", "3", "--batch", "7"]
    words += ["--repeats", "1", "--neurons", "eigen", "--paths", "plain"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("factories")
def test_a_frozen_network_is_refused():
    words = ["bench", "--model", "benched_networks:frozen", "--input", "3", "--repeats", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "must give tensors that have a gradient, got none" in result.stderr


def test_all_neurons_but_those_that_take_hours(tmp_path):
    words = ["bench", "--neurons", "all", "--paths", "plain", "--repeats", "1", "--no-memory"]
    words += ["--formats", "nchw,nchw", "--json", str(tmp_path / "bench.json")]
    result = CliRunner().invoke(app, [*words, "--shapes", "8x3x1,8x3x1"])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    left_out = {"general", "pure"}
    assert [row["neuron"] for row in rows] == [n for n in quadric.neurons() if n not in left_out]
    assert "left out, as they take hours unless named: general, pure" in result.stderr


def test_compiled_needs_a_compiler(tmp_path):
    words = ["bench", "--shapes", "2x3x1", "--paths", "compiled", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, "-c", "from quadric.cli import main; main()", *words],
        env={**os.environ, "PATH": str(tmp_path), "CXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Error: paths may hold compiled only where torch finds a C++ compiler" in done.stderr
    assert done.stderr.count("\n") == 1
