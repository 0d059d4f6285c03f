"""The GPU's kernels where there is no GPU: `interpreted_kernels.py` has the tests themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from quadric.ops import gpu
from quadric.ops.backends import TORCH_VIEWS, backend_for
from quadric.ops.blocks import eigen_blocks
from tests.ops.squares import needs_triton


@needs_triton
def test_the_kernels_in_the_interpreter() -> None:
    files = ["tests/ops/interpreted_kernels.py", "tests/ops/test_backends.py"]
    words = ["-q", "-p", "no:cacheprovider", "-k", "gpu or interpreted"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *words],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(gpu, "INTERPRETED", True)
    monkeypatch.setattr(gpu.native, "switched_off", lambda: False)
    gpu.reason.cache_clear()
    try:
        assert backend_for(torch.randn(4, 20), eigen_blocks(20, 9), -1) is TORCH_VIEWS
        told = gpu.reason(torch.device("cpu"))
    finally:
        gpu.reason.cache_clear()
    assert told == "triton is not installed: pip install 'quadric[triton]'"
