"""Writing files that are whole or absent, whatever ends the process or fills the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from quadric.errors import FileError

PARTIAL = ".partial"
"""What the name of a file ends with until it is complete."""

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a disk: full, over the quota or the largest file, read-only, broken."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], before: Path | None = None) -> Iterator[Path]:
    """A place beside a file to write it; it gets its name when it is complete and on the disk."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with naming(path):
            yield target
        return
    partial = target.with_name(target.name + PARTIAL)
    with naming(path):
        try:
            yield partial
            sync(partial)
            if before is not None and target.exists():
                _keep(target, before)
            os.replace(partial, target)
            sync(target.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file, whole or not at all."""
    with whole_file(path) as file:
        file.write_text(text, encoding="utf-8", newline="\n")


@contextlib.contextmanager
def naming(path: str | os.PathLike[str], errors: Collection[int] | None = None) -> Iterator[None]:
    """Within it, what the system refuses is an error that names a file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError) or not (errors is None or error.errno in errors):
            raise
        raise FileError(
            f"cannot write {os.fspath(path)} ({error.strerror or error}): make room, or choose "
            "another place"
        ) from None


def check_writable(option: str, path: Path) -> None:
    """Refuses a file that cannot be written, before the work whose result it would hold."""
    if not path.parent.is_dir():
        raise FileError(
            f"{option} {path}: there is no directory {path.parent}: make it, or name another file"
        )
    open_to_us = not path.is_dir() and (not path.exists() or os.access(path, os.W_OK))
    if open_to_us and (path.is_file() or not path.exists()):
        # It is written beside itself: the folder has to be open, too. A try tells more than a look.
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError:
            open_to_us = False
    if not open_to_us:
        raise FileError(f"{option} {path} cannot be written: name another file")


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk."""
    flags = getattr(os, "O_DIRECTORY", None) if os.path.isdir(path) else os.O_RDWR
    if flags is None:  # a system on which folders cannot be opened
        return
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot, and is not to blame
            raise
    finally:
        os.close(handle)


def _keep(target: Path, before: Path) -> None:
    """Gives a file a second name; it keeps its own where the file system has links."""
    before.unlink(missing_ok=True)
    try:
        os.link(target, before)
    except OSError:
        os.replace(target, before)


def check_place(path: Path) -> None:
    """Refuses a file that cannot be there."""
    folder = path.parent
    if not folder.is_dir():
        raise FileError(errno.ENOENT, "the folder of a file must exist, make it first", str(folder))
    if path.is_dir():
        raise FileError(f"path must be a file, got the folder {path}: add a file name")


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A place to write a file under its own name; it moves to `path` if nothing goes wrong.

    Files beside it (the weights of a very large network) move along.
    """
    check_place(path)
    folder = path.parent
    with naming(path):
        place = Path(tempfile.mkdtemp(prefix=".quadric-", dir=folder))
    try:
        with naming(path, DISK):
            yield place / path.name
            # The file itself last: who sees it sees all of it.
            for file in sorted(place.iterdir(), key=lambda f: f.name == path.name):
                sync(file)
                os.replace(file, folder / file.name)
            sync(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
