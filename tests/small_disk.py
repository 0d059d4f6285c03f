"""A disk that fills, without one: no file may grow beyond a size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


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
