"""Settings of the process."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys

import pytest
import torch

from quadric.support.process import one_thread


def test_one_thread_inside_and_the_old_number_after() -> None:
    before = torch.get_num_threads()
    with one_thread(False):
        assert torch.get_num_threads() == before
    with contextlib.suppress(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep memory")
def test_freed_memory_stays_with_the_process() -> None:
    """In a process of its own: the allocator is changed for good."""
    code = """
import resource, sys, torch
from quadric.support.process import keep_freed_memory

assert sys.argv[1] == "no" or keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # more than glibc ever takes from its heap by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(3):  # until the heap is large enough for a block at any alignment
    faults()
print(faults())
"""
    found = {
        keep: int(
            subprocess.run(
                [sys.executable, "-c", code, keep], capture_output=True, text=True, check=True
            ).stdout
        )
        for keep in ("no", "yes")
    }
    assert found["no"] > 5 * 16 * 4  # at least one for each megabyte
    assert found["yes"] < found["no"] / 10
