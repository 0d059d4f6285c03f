"""Every test starts from one seed, on one thread; tolerances are stated per dtype, once."""

from __future__ import annotations

import os

# torch keeps the backward passes of compiled graphs on disk and finds them without a look at the
# code they came from: a test of a gradient would hold the code of another day to be right.
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
# A test says which path it judges, whatever was built on this machine before.
os.environ["QUADRIC_KERNELS"] = "0"

import pytest
import torch
from hypothesis import settings
from torch import Tensor

import quadric

torch.set_num_threads(1)

# Files that tests hand to the commands; some are Python files.
collect_ignore = ["data_files"]

# Fixed examples: a red run is a red run on every machine, and nothing is written next to the code.
settings.register_profile("quadric", deadline=None, derandomize=True, database=None)
settings.load_profile("quadric")

# (rtol, atol) for values of order one, summed over a few dozen terms.
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (2e-4, 2e-5),
    torch.bfloat16: (4e-2, 4e-2),
    torch.float16: (5e-3, 5e-3),
}


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """`torch.testing.assert_close` in float64, at the tolerance stated for one dtype.

    Args:
        actual: What the library gave.
        expected: What it should have given, often from the float64 reference.
        dtype: Whose tolerance to use; by default that of `actual`.
    """
    rtol, atol = TOLERANCE[dtype or actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


def need_kernels() -> None:
    """Switches the kernels on. Where there is a compiler, not being able to is a failure."""
    if quadric.use_kernels(True):
        return
    reason = str(quadric.ops.native.reason())
    if reason.startswith("no C++ compiler"):
        pytest.skip(f"no kernels on this machine: {reason}")
    pytest.fail(f"the kernels must be active where there is a compiler: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", action="store_true", help="run on the fused kernels")


@pytest.fixture(autouse=True)
def fast_path(request: pytest.FixtureRequest) -> None:
    """With --kernels the tests of layers and neurons, written for the plain path, judge the fused
    kernels too.
    """
    if request.config.getoption("--kernels", default=False) and not quadric.use_kernels(True):
        pytest.fail(f"no kernels to test: {quadric.ops.native.reason()}")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
