"""A disk that fills, without one; and devices of our own.

What writes is never tried on a device of the machine: a fault in it would replace that device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NULL, FULL, NO_DISK = os.makedev(1, 3), os.makedev(1, 7), os.makedev(240, 255)
"""Numbers of devices: what takes everything, what is always full, and one that nobody has."""


def node(path: Path, kind: int, number: int) -> Path:
    """Makes a device."""
    try:
        os.mknod(path, kind | 0o600, number)
    except (OSError, AttributeError):
        pytest.skip("needs the rights to make devices")
    return path


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Within it the system refuses to write a file beyond a size, as a full disk does."""
    resource = pytest.importorskip("resource", reason="needs limits of Unix")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
