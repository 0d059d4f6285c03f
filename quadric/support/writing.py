"""Writing files that are whole or absent, whatever ends the process or fills the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from quadric.errors import FileError

MARK, PARTIAL = ".quadric-", ".partial"
"""What the name of the folder begins and ends with in which a file is until it is complete."""

_OPENED = re.compile(r"/(?:dev|proc/self)/(?:fd/(?P<number>\d+)|std(?:out|(?P<error>err)))")
"""Names of what a process has open: content is added to it, even where it is a file."""

_KINDS = {stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket", stat.S_IFBLK: "disk"}

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Errors of a disk: full, over the quota or the largest file, read-only, broken."""


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], before: Path | None = None, private: bool = False
) -> Iterator[Path]:
    """A place to write a file under its own name; it moves to `path` when it is complete.

    Every file that we write goes through here. It is absent, or whole and on the disk, whatever
    ends the process. Files written beside the place (the weights of a very large network) move
    along. A file that is replaced keeps its mode; a private one is for its owner alone. A pipe or a
    terminal gets the content; a folder, a socket or a disk is refused.
    """
    check_place(path)
    if _is_stream(path):
        yield from _into_stream(path)
    else:
        yield from _beside(path, before, private)


def _beside(path: str | os.PathLike[str], before: Path | None, private: bool) -> Iterator[Path]:
    target = Path(os.path.realpath(path))
    with naming(path):
        folder = Path(tempfile.mkdtemp(prefix=MARK, suffix=PARTIAL, dir=target.parent))
    try:
        with naming(path, DISK):
            yield folder / target.name
        with naming(path):
            # The file itself last: who sees it sees all of it.
            files = sorted(folder.iterdir(), key=lambda file: file.name == target.name)
            goals = [target.with_name(file.name) for file in files]
            for goal in goals:
                check_place(goal)
            for file, goal in zip(files, goals, strict=True):
                mode = stat.S_IMODE(goal.stat().st_mode) if goal.exists() else _mode(folder)
                file.chmod(0o600 if private else mode)
                sync(file)
                if before is not None and goal == target and target.exists():
                    _keep(target, before)
                os.replace(file, goal)
            sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mode(folder: Path) -> int:
    """What the user's umask makes of a new file."""
    probe = folder / PARTIAL
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode


def _into_stream(path: str | os.PathLike[str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, os.path.basename(path))
        with naming(path, DISK):
            yield place
        with naming(path):
            opened = _OPENED.fullmatch(os.path.abspath(path))
            if opened is not None:
                handle = os.dup(int(opened["number"] or (2 if opened["error"] else 1)))
            else:  # without waiting: a pipe that nobody reads is an error
                handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
                os.set_blocking(handle, True)
            with os.fdopen(handle, "wb") as stream:
                stream.write(place.read_bytes())


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether content is handed to what a name stands for, as it is no file to be replaced."""
    opened = _OPENED.fullmatch(os.path.abspath(path)) is not None
    return opened or (os.path.exists(path) and not os.path.isfile(path))


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuses a file that cannot be there: its folder is missing, or the name is taken."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileError(errno.ENOENT, "the folder of a file must exist, make it first", folder)
    with naming(path):
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
        except FileNotFoundError:
            return
    if kind not in (stat.S_IFREG, stat.S_IFCHR, stat.S_IFIFO):
        what = _KINDS.get(kind, "something else")
        raise FileError(f"path must be a file, got the {what} {os.fspath(path)}: add a file name")
    if not os.access(path, os.W_OK):
        raise FileError(f"cannot write {os.fspath(path)}: it is read-only, choose another place")


def is_partial(path: Path) -> bool:
    """Whether this is what a killed process left of a file."""
    return path.name.startswith(MARK) and path.name.endswith(PARTIAL)


def clear_partial(folder: Path) -> None:
    """Removes what killed processes left in a folder that no other process writes to."""
    for place in filter(is_partial, folder.glob(f"{MARK}*")):
        shutil.rmtree(place, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file, whole or not at all.

    What UTF-8 does not have (half of a surrogate pair) is escaped as JSON escapes it.
    """
    with whole_file(path) as file:
        file.write_bytes(text.encode("utf-8", errors="backslashreplace"))


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
    open_to_us = True
    try:
        check_place(path)
    except FileError:
        open_to_us = False
    if open_to_us and not _is_stream(path):
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
