"""Peak memory of a computation, from the allocator's own record.

A GPU's allocator counts by itself. On the CPU, torch's profiler notes every allocation and release;
the largest running sum is the peak. Both count from the start of the computation (parameters and
inputs exist before and do not count).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler prints lines of its own to the process's stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def peak_bytes(function: Callable[[], object], device: str = "cpu") -> int:
    """The most memory that `function` held at once, beyond what was there when it started."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
