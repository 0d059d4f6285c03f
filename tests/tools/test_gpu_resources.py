"""The kernels for GPUs compile without one, and what they need stays below the bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.ops.squares import needs_triton
from tests.tools.loading import ROOT, load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_tool("gpu_resources", monkeypatch)


def test_what_is_published_stays_below_the_bounds(tool: ModuleType) -> None:
    data = json.loads(tool.OUT.read_text(encoding="utf-8"))
    assert data["bounds"] == tool.BOUNDS
    assert {(r["architecture"], r["neuron"], r["rank"], r["direction"]) for r in data["rows"]} == {
        (f"sm{number}", neuron, rank, direction)
        for number in tool.ARCHITECTURES
        for neuron in ("eigen", "shared")
        for rank in tool.RANKS
        for direction in tool.BOUNDS
    }
    assert tool.faults(data["rows"]) == []
    row = data["rows"][-1]
    for change in ({"spilled": 8}, {"registers": 129}, {"shared": 20000}):
        assert tool.faults([row | change]) == [row | change]


COMPILE = """
import torch
import gpu_resources as tool

for variant in tool.variants((9,), (torch.float32,)):
    if variant.layout == "planes, odd" and variant.blocks.shape == "full":
        for architecture in tool.ARCHITECTURES:
            row = tool.resources(variant, architecture)
            assert not tool.faults([row]), row
            assert row["registers"] > 20, row
            if variant.direction == "forward":  # whose result may be its argument
                code = tool.compiled(variant, architecture).asm["ptx"]
                last, first = code.rindex("ld.global"), code.index("st.global")
                assert last < code.rindex("bar.sync") < first, code
            print(row["architecture"], row["direction"])
"""


@needs_triton
def test_the_kernels_compile_for_gpus_that_are_not_there() -> None:
    """Those that need most; in a process of its own, as Triton interprets them in this one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join([str(ROOT / "tools"), str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = [f"sm{n} {way}" for way in ("forward", "backward") for n in (80, 90, 100)]
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]
