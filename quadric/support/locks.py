"""One process at a time in a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from quadric.errors import InputError

# A process that was killed with its parent needs a moment to be gone, and its lock with it: the
# workers that decode pictures look for their parent every five seconds.
SECONDS = 8.0


class BusyError(InputError):
    """Another process works in this folder."""


@contextlib.contextmanager
def locked(folder: Path, busy: str, seconds: float | None = None) -> Iterator[int | None]:
    """Holds a folder for this process; yields the lock's file descriptor.

    A child that inherits the descriptor holds the lock too. Where the system has no such locks
    nothing is held.
    """
    try:
        import fcntl
    except ImportError:
        yield None
        return
    with (folder / ".lock").open("a", encoding="utf-8") as file:
        end = time.monotonic() + (SECONDS if seconds is None else seconds)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    raise BusyError(busy) from None
                time.sleep(0.05)
        yield file.fileno()
