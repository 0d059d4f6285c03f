"""Of the whole process: threads of torch, freed memory, files that are whole or absent."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from quadric.errors import FileError

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Runs each operation on one thread; threads started inside have one thread, too.

    Small networks wait longer for a second thread than it saves, and on one thread sums have one
    order.

    Args:
        wanted: with False, nothing changes.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory for the rest of the process.

    glibc gives the free end of its heap back to the system and asks for it again a moment later.
    Each page that comes back is a page fault: none or forty thousand in a training step of
    ResNet-20, depending on where the last tensor lies. That can be a tenth of the step. Only
    commands call this, in their own process: the library never changes the allocator of a process
    that imports it.

    Returns:
        Whether freed memory is kept: False without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Large blocks would lie outside of the heap, and go back when they are freed.
    return all(mallopt(*each) == 1 for each in ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_MAX, 0)))


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A place to write a file under its own name; it moves to `path` if nothing goes wrong.

    Files beside it (the weights of a very large network) move along.

    Args:
        path: where the file belongs.

    Yields:
        Where to write it.

    Raises:
        FileError: if there is no such folder, or `path` is one.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileError(errno.ENOENT, "the folder of a file must exist, make it first", str(folder))
    if path.is_dir():
        raise FileError(f"path must be a file, got the folder {path}: add a file name")
    place = Path(tempfile.mkdtemp(prefix=".quadric-", dir=folder))
    try:
        yield place / path.name
        # The file itself last: who sees it sees all of it.
        for file in sorted(place.iterdir(), key=lambda f: f.name == path.name):
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(place, ignore_errors=True)
