"""Reading a user's files: every failure is one line that names the file and the remedy."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

from quadric.errors import InputError


def directory(path: str | os.PathLike[str], remedy: str) -> Path:
    """Returns an existing directory, or says what to do about it."""
    found = Path(path).expanduser()
    if not found.is_dir():
        what = "it is a file" if found.exists() else "there is none"
        raise InputError(f"{found} must be a directory, but {what}: {remedy}")
    return found


def read_bytes(path: Path, remedy: str) -> bytes:
    """Reads a file, or says what to do about it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error, remedy) from None


def read_text(path: Path, remedy: str) -> str:
    """Reads a text file, or says what to do about it."""
    try:
        return read_bytes(path, remedy).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file: {remedy}") from None


def check_md5(path: str | Path, md5: str, remedy: str, data: bytes | None = None) -> None:
    """Refuses a file that does not have the published checksum.

    Args:
        path: of the file, or its name in an archive.
        md5: the published checksum.
        remedy: where to get the file.
        data: its content, if it has been read already.

    Raises:
        InputError: if it cannot be read or has another checksum.
    """
    found, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with open(path, "rb") if data is None else io.BytesIO(data) as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                found.update(block)
                size += len(block)
    except OSError as error:
        raise _unreadable(Path(path), error, remedy) from None
    if found.hexdigest() != md5:
        raise InputError(
            f"{path} is truncated or not the published file: md5 {found.hexdigest()} of "
            f"{size:,} bytes, expected {md5}: {remedy}"
        )


def _unreadable(path: Path, error: OSError, remedy: str) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"missing file {path}: {remedy}")
    return InputError(f"cannot read {path} ({error.strerror or error}): {remedy}")
