"""Reading a user's files: every failure is one line that names the file and the remedy."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from quadric.errors import InputError


def directory(path: str | os.PathLike[str], remedy: str) -> Path:
    """Returns an existing directory."""
    found = Path(path).expanduser()
    if not found.is_dir():
        what = "it is a file" if found.exists() else "there is none"
        raise InputError(f"{found} must be a directory, but {what}: {remedy}")
    return found


def read_bytes(path: Path, remedy: str) -> bytes:
    """Reads a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"missing file {path}: {remedy}") from None
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): {remedy}") from None


def read_text(path: Path, remedy: str) -> str:
    """Reads a text file."""
    try:
        return read_bytes(path, remedy).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file: {remedy}") from None


def check_md5(name: str, data: bytes, md5: str, remedy: str) -> None:
    """Refuses bytes that do not have the published checksum."""
    got = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if got != md5:
        raise InputError(
            f"{name} is truncated or not the published file: md5 {got} of {len(data):,} bytes, "
            f"expected {md5}: {remedy}"
        )
