"""The state of the process: threads of torch, freed memory, notebooks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import sys
from collections.abc import Iterator

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Runs each operation on one thread; threads started inside have one thread, too.

    Small networks wait longer for a second thread than it saves, and on one thread sums have one
    order.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules and hasattr(sys.stdout, "parent_header")


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory for the rest of the process.

    glibc gives the free end of its heap back to the system and asks for it again a moment later.
    Each page that comes back is a page fault: none or forty thousand in a training step of
    ResNet-20, depending on where the last tensor lies. That can be a tenth of the step. Only
    commands call this, in their own process: the library never changes the allocator of a process
    that imports it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Large blocks would lie outside of the heap, and go back when they are freed.
    return all(mallopt(*each) == 1 for each in ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_MAX, 0)))
