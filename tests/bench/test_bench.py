"""The comparison itself: who is compared with whom, in turn. Times are never asserted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import quadric
from quadric import bench
from quadric.bench import comparison
from quadric.bench.memory import peak_bytes
from quadric.cli.app import app

TINY: dict[str, Any] = {"shapes": ((4, 5, 2),), "paths": ("plain",), "formats": ("nchw",)}


def test_peak_memory_is_the_largest_sum() -> None:
    def work() -> None:
        first = torch.empty(1000, dtype=torch.float32)
        second = torch.empty(500, dtype=torch.float32)
        del first
        third = torch.empty(100, dtype=torch.float32)
        del second, third

    assert 6000 <= peak_bytes(work) < 7000


def test_ratios_are_against_linear_of_the_same_kind() -> None:
    cases = bench.layer_cases(("eigen", "fan"), ((4, 5, 2),), ("plain",))
    assert [c.neuron for c in cases] == ["linear"] * 2 + ["eigen"] * 2 + ["fan"] * 2
    report = bench.compare(cases, repeats=1)
    best = min(r["training_seconds"] for r in report.rows if r["neuron"] == "linear")
    for row in report.rows:
        assert row["training"] == pytest.approx(row["training_seconds"] / best)
    assert [row["memory"] for row in report.rows if row["neuron"] == "linear"] == [1.0, 1.0]
    fan = next(row for row in report.rows if row["neuron"] == "fan")
    assert fan["memory"] > 1.2  # three maps keep more than one


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: Callable[..., Any]) -> list[list[str]]:
    """Times of our own in place of real ones; the names that are timed together."""
    turns: list[list[str]] = []

    def interleaved(
        works: Any, repeats: int, prepare: Any, tick: Callable[[], object], at_least: float
    ) -> dict[str, list[float]]:
        turns.append([" ".join(name.split(" | ")[1:3]) for name in works])
        for _ in range(len(works) * (repeats + 1)):
            tick()
        return {name: seconds(len(turns), i) for i, name in enumerate(works)}

    monkeypatch.setattr(comparison, "interleaved", interleaved)
    return turns


def test_those_of_one_path_take_turns_with_the_linear_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("plain", "kernels")
    cases = bench.network_cases("resnet8", ("eigen", "shared"), paths, ("nchw",), batch=2)
    cases += bench.layer_cases(("fan",), **TINY)
    # The linear one takes one second longer each time, all others twice as long as it.
    turns = clocked(monkeypatch, lambda turn, i: [turn * (1 + (i > 0))])
    ticks: list[int] = []
    report = bench.compare(cases, 1, memory=False, tick=lambda: ticks.append(1), rounds=2)
    assert len(ticks) == comparison.timed_runs(cases, repeats=1, rounds=2)
    for at, path in ((0, "plain"), (2, "kernels")):  # training, then inference
        assert turns[at] == turns[at + 1] == ["linear plain", f"eigen {path}", f"shared {path}"]
    assert turns[-1] == ["linear plain", "fan plain"]
    for row in report.rows:
        assert row["inference"] == (1 if row["neuron"] == "linear" else 2)
        assert row["inference_linear_seconds"] == row["inference_seconds"] / row["inference"]
        assert len(row["training_rounds"]) == 2
    assert "spread over rounds" in str(report)


def test_a_machine_that_slows_down_changes_no_ratio_within_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half as fast from the second turn on, and the linear layer is lucky once."""
    clocked(monkeypatch, lambda turn, i: [[0.5, 2.0, 2.0], [1.2, 2.4, 2.4]][i])
    row = bench.compare(bench.layer_cases(("eigen",), **TINY), 3, memory=False).rows[1]
    assert row["training_turns"] == pytest.approx(1.2)
    assert row["training"] == row["training_rounds"][0] == pytest.approx(2.4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_is_compared_with_compiled_one_by_one() -> None:
    paths = ("kernels", "compiled")
    cases = bench.network_cases("resnet8", ("eigen", "fan"), paths, ("nchw",), batch=2)
    together = [[(c.neuron, c.path) for c in group] for group in comparison.timed_together(cases)]
    assert together == [
        [("linear", "plain"), ("eigen", "kernels")],
        [("linear", "compiled"), ("eigen", "compiled")],
        [("linear", "plain"), ("fan", "plain")],
        [("linear", "compiled"), ("fan", "compiled")],
    ]


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 0.36), (0.25, 40.0), (4.0, 144.0)])
def test_how_long_it_takes(
    seconds: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cases by a clock of their own, of which a training step takes twice an inference."""
    now = [0.0]
    monkeypatch.setattr(comparison.time, "perf_counter", lambda: now[0])
    cases = bench.layer_cases(("eigen",), **TINY)

    def takes(time: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + time)

    for case in cases:
        monkeypatch.setattr(case, "training_step", takes(seconds))
        monkeypatch.setattr(case, "forward", takes(seconds / 2))
    # Two rounds of 3 + 1 training steps and 9 + 1 inferences, both cases; short ones more often.
    assert comparison.expected_seconds(cases, 3, 2) == pytest.approx(expected)


def test_gradients_are_neither_added_up_nor_moved_to_another_layout() -> None:
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


def test_a_peak_does_not_depend_on_what_was_left_before() -> None:
    (case,) = bench.layer_cases((), **TINY)
    case.training_step()
    case.clear()
    cleared = peak_bytes(case.training_step)
    gradients = sum(t.numel() * 4 for t in (*case.inputs, *case.module.parameters()))
    assert peak_bytes(case.training_step) <= cleared - gradients
    (row,) = bench.compare([case], repeats=1).rows
    assert row["peak_memory_bytes"] == cleared


# --- the command ---------------------------------------------------------------------------------


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words, "--repeats", "1"])


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = run("--shapes", "4x5x2", "--neurons", "eigen", "--no-memory", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "conv 4x5x5, batch 2" in result.output
    assert "fused kernels are o" in result.stderr
    assert re.search(r"^this takes about (a second|\d+ seconds)$", result.stderr, re.MULTILINE)
    data = json.loads(file.read_text())
    assert {"rows", "machine", "versions", "command", "repeats"} <= set(data)
    assert {row["training_runs"] for row in data["rows"]} == {10}  # short ones: ten times as often


def test_all_neurons_but_those_that_take_hours(tmp_path: Path) -> None:
    words = ["--neurons", "all", "--paths", "plain", "--no-memory", "--formats", "nchw,nchw"]
    result = run(*words, "--json", str(tmp_path / "b.json"), "--shapes", "8x3x1,8x3x1")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    left_out = {"general", "pure"}
    assert [row["neuron"] for row in rows] == [n for n in quadric.neurons() if n not in left_out]
    assert "left out, as they take hours unless named: general, pure" in result.stderr


FACTORIES = """
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
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benched_networks.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    "words",
    ["Two --input 5:int64 --input 4 --batch 3", "Picky --input 3 --batch 7"],
)
def test_a_network_of_your_own(words: str) -> None:
    model, *rest = words.split()
    named = ["--model", f"benched_networks:{model}", *rest]
    result = run(*named, "--neurons", "eigen", "--paths", "plain", "--json", "-")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["neuron"] for row in rows] == ["linear", "eigen"]
    assert all(row["training_seconds"] > 0 for row in rows)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--neurons cubic", "neurons must be among"),
        ("--device tpu", "device must be among cpu"),
        ("--paths fast", "paths must be among plain, kernels, compiled, got 'fast'"),
        ("--shapes 20x32", "shapes must be positive whole numbers"),
        ("--model no.such:net", "add --input with its shape"),
        ("--model mlp --input 9", "mlp must run on inputs of shape 9, got RuntimeError"),
        ("--model resnet20 --input 3x16", "resnet20 must run on inputs of shape 3x16"),
        ("--model transformer --input 3", "the transformer has its own inputs"),
        ("--model benched_networks:Two --input 5:int64", "inputs of shape 5, got TypeError"),
        ("--model benched_networks:frozen --input 3", "must give tensors that have a gradient"),
        ("--model mlp --shapes 4x5x2", "got --shapes with it"),
        ("--batch 7", "single layers have --shapes, got --batch with it"),
        ("--input 7", "single layers have --shapes, got --input with it"),
        ("--json no/such/file.json", "there is no directory no/such"),
    ],
)
def test_bad_words_are_one_line(words: str, message: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_compiled_needs_a_compiler(tmp_path: Path) -> None:
    words = ["bench", "--shapes", "2x3x1", "--paths", "compiled", "--repeats", "1"]
    nothing = {"PATH": str(tmp_path), "CXX": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "from quadric.cli import main; main()", *words],
        env={**os.environ, **nothing},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Error: paths may hold compiled only where torch finds a C++ compiler" in done.stderr
    assert done.stderr.count("\n") == 1
