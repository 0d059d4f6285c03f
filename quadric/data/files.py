"""Reading a user's files: every failure is one line that names the file and the remedy."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from pathlib import Path

from quadric.errors import InputError, in_one_line
from quadric.support.extras import load_extra


def directory(path: str | os.PathLike[str], remedy: str) -> Path:
    """Returns an existing directory, or says what to do about it."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "there is none"
        raise InputError(f"{folder} must be a directory, but {what}: {remedy}")
    return folder


def read_bytes(path: Path, remedy: str) -> bytes:
    """Reads a file, or says what to do about it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error, remedy) from None


def read_text(path: Path, remedy: str) -> str:
    """Reads a text file, or says what to do about it."""
    try:
        return read_bytes(path, remedy).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file: {remedy}") from None


def check_md5(path: str | Path, md5: str, remedy: str, data: bytes | None = None) -> None:
    """Refuses a file that does not have the published checksum."""
    checksum, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with open(path, "rb") if data is None else io.BytesIO(data) as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                checksum.update(block)
                size += len(block)
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    if checksum.hexdigest() != md5:
        raise InputError(
            f"{path} is truncated or not the published file: md5 {checksum.hexdigest()} of "
            f"{size:,} bytes, expected {md5}: {remedy}"
        )


def cache_directory(who: str) -> Path:
    """Where downloads and what is made of them are kept: QUADRIC_CACHE, or the user's cache."""
    named = os.environ.get("QUADRIC_CACHE")
    return Path(named or load_extra("pooch", who).os_cache("quadric"))


def cache_file(who: str, name: str) -> Path:
    """The place of a file in the cache, whose folder is made."""
    place = cache_directory(who) / name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to the cache {place.parent} ({error.strerror}): name another directory "
            "with the environment variable QUADRIC_CACHE"
        ) from None
    return place


def download(url: str, known_hash: str, title: str, progress: bool = True) -> Path:
    """Fetches a file into the cache, or finds it there; its checksum is checked."""
    pooch = load_extra("pooch", f"the download of {title}")
    file, checksum = url.rpartition("/")[2], known_hash.replace(":", " ")
    try:
        fetched = pooch.retrieve(
            url,
            known_hash=known_hash,
            fname=file,
            path=cache_directory(title),
            # Pooch draws its bar with tqdm, which it does not bring itself.
            progressbar=progress and importlib.util.find_spec("tqdm") is not None,
        )
    except ValueError:
        raise InputError(
            f"the download of {url} is not the published file (expected {checksum}): try again, or "
            f"put {file} into a directory and name that as data directory"
        ) from None
    except OSError as error:
        # requests' errors are OSErrors.
        raise InputError(
            f"cannot download {url} ({in_one_line(error)}): fetch it by hand ({checksum}), put it "
            "into a directory, and name that as data directory"
        ) from None
    return Path(fetched)


def unreadable(path: str | Path, error: OSError, remedy: str) -> InputError:
    """What to say of a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"missing file {path}: {remedy}")
    return InputError(f"cannot read {path} ({error.strerror or error}): {remedy}")
