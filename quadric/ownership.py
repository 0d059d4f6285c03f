"""Whether another user could have written a file whose code is about to be run."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_to_others(path: Path, *, root: bool = True, sticky: bool = False) -> str | None:
    """Why another user could change a file or folder; None if none could."""
    if not hasattr(os, "getuid"):  # a system which keeps a user's folders apart by itself
        return None
    user, found = os.getuid(), path.lstat()
    if found.st_uid != user and not (root and found.st_uid == 0):
        return f"{path} belongs to another user"
    # A group with the user's own number is the user's own.
    open_to = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != user else 0)
    if found.st_mode & open_to and not (sticky and found.st_mode & stat.S_ISVTX):
        return f"{path} can be changed by other users"
    return None
