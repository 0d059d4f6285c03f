"""A process that dies with the one that started it, however that one dies.

A sweep or a run on several devices that is killed (SIGKILL) cannot end its processes any more: they
would go on unseen, and hold the locks of their run directories. On Linux the kernel ends them;
elsewhere a thread looks whether the parent is still there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping

# Tells a started program who started it.
VARIABLE = "QUADRIC_PARENT"
# Seconds between two looks, where the kernel does not help.
INTERVAL = 0.5
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def name_parent(env: MutableMapping[str, str]) -> None:
    """Puts this process into the environment of one that it starts."""
    env[VARIABLE] = str(os.getpid())


def die_with_parent(parent: int | None = None) -> None:
    """Ends this process as soon as the one that started it is gone."""
    if parent is None:
        parent = int(os.environ.get(VARIABLE) or os.getppid())
    if not _kernel_ends_us():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        _die()


def _kernel_ends_us() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    except (OSError, AttributeError):  # a C library without prctl
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    _die()


def _die() -> None:
    os._exit(1)  # nothing is left to be told, and a checkpoint is always whole
