"""Where built libraries are kept: only in a folder that nobody else can write to.

Whoever can put a library there runs code in this process. So a folder must belong to this user, and
all folders above it to this user or to root, and all must be closed to others. A folder that is not
so is neither used nor changed.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path


def private_folder() -> Path:
    """A folder for libraries, made if there is none."""
    problems: list[str] = []
    for folder in _candidates():
        problem = _problem(folder) or _make(folder) or _problem(folder)
        if problem is None:
            if problems:
                _warn(f"{problems[0]}: kernels are kept in {folder} instead")
            return folder
        problems.append(problem)
    told = "; ".join(problems)
    _warn(f"{told}: fused kernels are off")
    raise RuntimeError(f"{told}: set QUADRIC_CACHE to a folder of your own")


def existing_folders() -> list[Path]:
    """The folders of `private_folder` that are there and safe; nothing is made or said."""
    return [folder for folder in _candidates() if folder.is_dir() and _problem(folder) is None]


def _warn(message: str) -> None:
    warnings.warn(
        f"{message}; set QUADRIC_CACHE to a folder of your own, closed to others", stacklevel=5
    )


def _candidates() -> Iterator[Path]:
    named = os.environ.get("QUADRIC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    user = os.getuid() if hasattr(os, "getuid") else None
    spare = Path(tempfile.gettempdir()) / f"quadric-{user}"
    for folder in (Path(named) if named else Path(base) / "quadric", spare):
        # Where links point to: a link may be changed after this look, a path without links not.
        yield Path(os.path.realpath(folder))


def _problem(folder: Path) -> str | None:
    """What is wrong with a folder, or with one above it, as far as they exist."""
    own = open_to_others(folder) if folder.exists() else None
    above = [path for path in folder.parents if path.exists()]
    return own or next(filter(None, (open_to_others(path, above=True) for path in above)), None)


def _make(folder: Path) -> str | None:
    """Makes a folder that only this user can enter, and tries whether it takes files."""
    try:
        for path in reversed((folder, *folder.parents)):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)  # another process of this user may be as far
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror})"


def open_to_others(path: Path, *, above: bool = False) -> str | None:
    """Why another user could change a file or folder; one above ours may belong to root."""
    if not hasattr(os, "getuid"):  # a system which keeps a user's folders apart by itself
        return None
    user, status = os.getuid(), path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    if status.st_uid != user and not (above and status.st_uid == 0):
        return f"{path} belongs to another user"
    # A group with the user's own number is the user's own.
    writable = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid != user else 0)
    sticky = above and status.st_mode & stat.S_ISVTX
    if status.st_mode & writable and not sticky:
        return f"{path} can be changed by other users"
    return None
