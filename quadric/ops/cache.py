"""Where built libraries are kept: only in a folder that nobody else can write to.

Whoever can put a library there runs code in this process. So a folder, a file and all folders above
them must belong to this user (those above may belong to root) and be closed to others. What is not
so is neither used nor changed.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path


def private_folder(files: str) -> Path:
    """A folder for libraries; made if there is none."""
    problems: list[str] = []
    for folder in _candidates():
        # Where links point to: a link may be changed after this look, a path without links not.
        real = Path(os.path.realpath(folder))
        problem = _make(real) or next(filter(None, map(unsafe, sorted(real.glob(files)))), None)
        if problem is None:
            if problems:
                _warn(f"{problems[0]}: kernels are kept in {real} instead")
            return real
        problems.append(problem)
    told = "; ".join(problems)
    _warn(f"{told}: fused kernels are off")
    raise RuntimeError(f"{told}: set QUADRIC_CACHE to a folder of your own")


def private_files(files: str) -> Iterator[Path]:
    """Libraries that are there, in the folders of `private_folder`; nothing is made or said."""
    for folder in _candidates():
        real = Path(os.path.realpath(folder))
        if real.is_dir() and not (_above(real.parents) or unsafe(real)):
            found = sorted(real.glob(files))
            yield from found if not any(map(unsafe, found)) else ()


def _warn(message: str) -> None:
    warnings.warn(
        f"{message}; set QUADRIC_CACHE to a folder of your own, closed to others", stacklevel=5
    )


def _candidates() -> Iterator[Path]:
    named = os.environ.get("QUADRIC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    yield Path(named) if named else Path(base) / "quadric"
    yield Path(tempfile.gettempdir()) / f"quadric-{_user()}"


def _user() -> int | None:
    return os.getuid() if hasattr(os, "getuid") else None


def _make(folder: Path) -> str | None:
    """Makes a folder that only this user can enter; says what is wrong with one that exists."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    problem = _above(path for path in folder.parents if path not in missing)
    if problem is not None:
        return problem
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)  # another process of this user may be as far
        problem = _above(folder.parents) or unsafe(folder)
        if problem is None:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror})"
    return problem


def _above(folders: Iterable[Path]) -> str | None:
    return next(filter(None, (open_to_others(path, sticky=True) for path in folders)), None)


def unsafe(path: Path) -> str | None:
    """What is wrong with a file or folder that exists; None if only this user can change it."""
    found = path.lstat()
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return f"{path} is neither a file nor a folder"
    return open_to_others(path, root=False)


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
