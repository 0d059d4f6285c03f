"""Latencies of files, in one interleaved run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from quadric.exporting import export_onnx, export_torch, latencies


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
