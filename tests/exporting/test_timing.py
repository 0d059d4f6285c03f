"""Interleaved runs, and latencies of files by them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from quadric.exporting import export_onnx, export_torch, latencies
from quadric.exporting.timing import interleaved


def test_cases_take_turns() -> None:
    seen: list[str] = []
    cases = {name: functools.partial(seen.append, name) for name in "abc"}
    seconds = interleaved(cases, repeats=2)
    assert seen == list("abc") + list("cba") + list("abc")
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(("at_least", "runs"), [(0.0, 3), (6.0, 3), (9.0, 5), (1000.0, 30)])
def test_short_cases_run_more_often(
    at_least: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by which each of two cases takes a second, with one round to warm up."""
    now, ticks = [0.0], list[int]()
    monkeypatch.setattr("quadric.exporting.timing.time.perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += 1.0

    cases = {"a": work, "b": work}
    seconds = interleaved(cases, 3, tick=lambda: ticks.append(1), at_least=at_least)
    assert seconds == {"a": [1.0] * runs, "b": [1.0] * runs}
    assert len(ticks) == 2 * (3 + 1)
    assert len(interleaved(cases, 3, at_least=1000.0, most=4)["a"]) == 4


def test_latencies_of_two_formats(tmp_path: Path) -> None:
    small, large = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 2000))
    export_onnx(small, tmp_path / "small.onnx", torch.zeros(1, 4))
    export_onnx(large, tmp_path / "large.onnx", torch.zeros(1, 4))
    export_torch(small, tmp_path / "small.pt2", torch.zeros(1, 4))
    threads = torch.get_num_threads()
    names = ("small.onnx", "large.onnx", "small.pt2")
    files = {name: tmp_path / name for name in names}
    found = latencies(files, [torch.zeros(64, 4)], seconds=0.2)
    assert list(found) == list(names)
    # 64 * 4,000,000 multiply-accumulates against 64 * 16.
    assert 0 < 5 * found["small.onnx"] < found["large.onnx"] < 10
    assert 0 < found["small.pt2"] < found["large.onnx"]
    assert torch.get_num_threads() == threads
