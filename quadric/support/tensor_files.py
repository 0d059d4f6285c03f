"""Safetensors files with a checksum of the whole file in their header.

A flipped bit anywhere in such a file is an error, not another network. A file of others, without
our entries in its metadata, has no checksum and is read as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quadric.errors import InputError
from quadric.support.writing import whole_file

CHECKSUM = "quadric_sha256"
"""The entry of the metadata with the checksum, taken of the file with zeros in its place."""

_OURS = "quadric"
"""What the entries of our own metadata begin with; a file that has one must have a checksum."""

_ENTRY = re.compile(rb'"%s":"([0-9a-f]{64})"' % CHECKSUM.encode())


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes tensors, each with its own dense storage, and texts as a safetensors file."""
    with whole_file(path) as place:
        try:
            save_file(dict(tensors), place, {**metadata, CHECKSUM: "0" * 64})
        except (SafetensorError, RuntimeError, UnicodeError) as error:
            raise InputError(f"the tensors cannot be written to {path}: {error}") from error
        with place.open("r+b") as file:
            at, digest = _checksum(file)
            file.seek(at)
            file.write(digest)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file and its metadata, after a look at its checksum."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # Python's own error where there is nothing
        raise InputError(f"{path} must be a safetensors file, got a folder, a pipe or a device")
    try:
        with Path(path).open("rb") as file, safe_open(path, framework="pt", device="cpu") as found:
            metadata = found.metadata() or {}
            if any(key.startswith(_OURS) for key in metadata):
                _, digest = _checksum(file)
                if digest != metadata.pop(CHECKSUM, "").encode():
                    raise InputError(
                        f"{path} is damaged, its content is not what its checksum says: fetch or "
                        "write it again"
                    )
            return {name: found.get_tensor(name) for name in found.keys()}, metadata
    except (SafetensorError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} must be a safetensors file, got a truncated, damaged or foreign one "
            f"({error}): fetch or write it again"
        ) from None


def _checksum(file: BinaryIO) -> tuple[int, bytes]:
    """Where the checksum stands in a file, and what it should be."""
    start = file.read(8)
    header = file.read(int.from_bytes(start, "little"))
    entry = _ENTRY.search(header)
    if entry is None:
        return 0, b"missing"
    at, end = entry.span(1)
    digest = hashlib.sha256(start + header[:at] + b"0" * 64 + header[end:])
    while block := file.read(1 << 20):
        digest.update(block)
    return len(start) + at, digest.hexdigest().encode()
