"""Messages and files as bytes: a header, a checksum, and parts whose lengths are known.

They are read as what strangers may have sent: bounded before anything is parsed, checked before
anything is loaded. The checksum finds damage; it does not prove who wrote a message.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

from quadric.errors import InputError

VERSION = 1
LARGEST = 2**30
"""Bytes of the largest message or file that is read, unless its reader says otherwise."""

_MAGIC = b"QUADRICE"
_HEAD = struct.Struct("<8sHI32s")  # magic, version, bytes of the header, SHA-256 of the rest
_LARGEST_HEADER = 2**24


def pack(kind: str, model: str, facts: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    """Writes a message of one kind for the keys and the network that `model` names."""
    lengths = [len(part) for part in parts]
    described = {"kind": kind, "model": model, "facts": facts, "lengths": lengths}
    header = json.dumps(described, separators=(",", ":"), allow_nan=False).encode()
    rest = b"".join([header, *parts])
    checksum = hashlib.sha256(rest).digest()
    return _HEAD.pack(_MAGIC, VERSION, len(header), checksum) + rest


def unpack(
    data: bytes, kind: str, model: str | None = None, largest: int = LARGEST
) -> tuple[str, dict[str, Any], list[bytes]]:
    """Reads a message: the model's name, the facts and the parts."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise _refused(kind, type(data).__name__, "give bytes")
    data = bytes(data)
    if not _HEAD.size <= len(data) <= largest:
        text = f"{len(data):,} bytes, outside of {_HEAD.size} … {largest:,}"
        raise _refused(kind, text, "send fewer inputs at once, or look for what was cut off")
    magic, version, size, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise _refused(kind, "other bytes", "give what quadric.encrypted wrote")
    if version != VERSION:
        remedy = f"write it again with the version that reads it ({VERSION})"
        raise _refused(kind, f"version {version}", remedy)
    rest = memoryview(data)[_HEAD.size :]
    if size > min(_LARGEST_HEADER, len(rest)) or hashlib.sha256(rest).digest() != checksum:
        raise _refused(kind, "damaged bytes (the checksum differs)", "send it again")
    try:
        header = json.loads(bytes(rest[:size]))
        found, name = str(header["kind"]), str(header["model"])
        facts, lengths = dict(header["facts"]), [int(n) for n in header["lengths"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _refused(kind, "a header that is none", "send it again") from None
    if found != kind:
        raise _refused(kind, _one(found), f"give {_one(kind)}")
    if model is not None and name != model:
        raise _refused(kind, "one for other keys or another network", "use the pair of one compile")
    if min(lengths, default=0) < 0 or sum(lengths) != len(rest) - size:
        raise _refused(kind, "parts of other lengths than it says", "send it again")
    parts, start = [], size
    for length in lengths:
        parts.append(bytes(rest[start : start + length]))
        start += length
    return name, facts, parts


def _refused(kind: str, got: str, remedy: str) -> InputError:
    return InputError(f"{_one(kind)} of quadric.encrypted was expected, got {got}: {remedy}")


def _one(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"
