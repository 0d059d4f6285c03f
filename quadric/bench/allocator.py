"""Freed memory that stays with the process while something is timed.

glibc gives the end of its heap back to the system when enough of it is free, and asks for it again
a moment later. Every page that comes back is a fault: in a training step of ResNet-20 none or forty
thousand, a tenth of the step, depending on where the last tensor happened to lie. That says nothing
of layers, linear or quadratic, so the command `quadric bench` has the memory kept. The library
itself never changes the allocator of the process that it is used in.
"""

from __future__ import annotations

import ctypes
import functools
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Has glibc keep what is freed, for the rest of the process; says whether it does."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Neither the end of the heap nor large blocks, which would lie outside of it, go back.
    return all(mallopt(*each) == 1 for each in ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_MAX, 0)))
