"""Names of torch that are private: all are there, and none is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import quadric
from quadric.ops import torch_probes


def test_this_torch_has_every_name() -> None:
    """The canary: where it fails, only `reference` runs, and `torch_probes` needs another way."""
    assert torch_probes.MISSING == []
    marked = torch.compiler.assume_constant_result(lambda: True)
    assert vars(marked).items() <= vars(torch_probes.in_torch_func).items()


def test_no_other_file_uses_private_names() -> None:
    """But for two modules of torch that other libraries import as well."""
    package = Path(quadric.__file__).parent
    names: set[str] = set()
    for file in package.rglob("*.py"):
        if file.name != "torch_probes.py":
            text = file.read_text(encoding="utf-8")
            names |= set(re.findall(r"\btorch(?:\.\w+)*\._[a-zA-Z]\w*", text))
    assert names == {"torch.utils._pytree", "torch.utils._python_dispatch"}


WITHOUT = """
import torch
del torch.{name}
import quadric
from quadric.ops import reference, torch_probes
assert torch_probes.MISSING == ["torch.{name}"]
calls, real = [], reference.add_squares
reference.add_squares = lambda *args: calls.append(1) or real(*args)
layer = quadric.QuadraticLinear(3, 20)
x = torch.randn(4, 3)
torch.nn.init.normal_(layer.eigenvalues)
layer(x).sum().backward()
with torch.no_grad():
    layer(x)
print(len(calls), layer.eigenvalues.grad.shape[0])
"""


@pytest.mark.parametrize(
    "name",
    ["_C._functorch.peek_interpreter_stack", "_C._TorchDispatchModeKey.PROXY"],
)
def test_without_a_name_the_reference_runs(name: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "2 18\n", done.stderr[-2000:]
