"""Checkpoints: written whole, checked before they are used, and never unpickled.

A checkpoint is torch's own file with a SHA-256 sum of it in the comment at its end. The one before
it is kept until the next: one that was damaged later costs an epoch, not the run.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from quadric.errors import InputError
from quadric.support.writing import whole_file
from quadric.train.directory import RunDirectory

_MARK = b"quadric-sha256:"
_COMMENT = len(_MARK) + 64


class CheckpointError(InputError):
    """A checkpoint is damaged, or holds more than numbers and names."""


def write(state: dict[str, Any], path: Path, before: Path | None = None) -> None:
    """Writes a checkpoint."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    # The end of an archive says how long the comment after it is.
    content[-2:] = _COMMENT.to_bytes(2, "little")
    with whole_file(path, before) as partial, partial.open("wb") as file:
        file.write(content)
        file.write(_MARK + hashlib.sha256(content).hexdigest().encode())


def read(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Reads a checkpoint, after a look at its sum."""
    try:
        return _read(path, map_location)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None


def _read(path: Path, map_location: Any) -> dict[str, Any]:
    with path.open("rb") as file:
        damage = _damage(file)
        if damage is not None:
            raise CheckpointError(f"{path} is damaged ({damage})")
        file.seek(0)
        try:
            state = torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{path} holds more than numbers and names, which is never loaded"
            ) from None
        except OSError:
            raise
        except Exception:  # whatever torch's reader finds wrong with it
            raise CheckpointError(f"{path} is damaged (torch cannot read it)") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint (it holds no mapping)")
    return state


def _damage(file: BinaryIO) -> str | None:
    """What is wrong with a file; None if it is as it was written."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _COMMENT))
    comment = file.read()
    file.seek(0)
    if not comment.startswith(_MARK):
        return "its end is missing" if size else "it is empty"
    digest, left = hashlib.sha256(), size - _COMMENT
    while left > 0:
        block = file.read(min(left, 1 << 20))
        digest.update(block)
        left -= len(block)
    same = digest.hexdigest().encode() == comment[len(_MARK) :]
    return None if same else "its checksum is wrong"


@dataclass(frozen=True)
class WholeCheckpoint:
    """The newest checkpoint of a run that is whole."""

    path: Path  # of the file
    epochs: int  # that it holds
    damage: str | None = None  # what is wrong with the last one, if this is the one before it

    @property
    def where(self) -> str:
        """In which file the epochs are, and why."""
        return "done" if self.damage is None else f"in {self.path}, as {self.damage}"


def find(directory: RunDirectory) -> WholeCheckpoint | None:
    """The checkpoint from which a run goes on; None if it has none."""
    damage: list[str] = []
    for path in (directory.last_checkpoint, directory.previous_checkpoint):
        if path.is_file():
            try:
                epochs = int(read(path, "meta")["epoch"]) + 1
            except (CheckpointError, KeyError, TypeError, ValueError) as error:
                told = isinstance(error, CheckpointError)
                damage.append(str(error) if told else f"{path} is not a checkpoint of a run")
            else:
                return WholeCheckpoint(path, epochs, damage[0] if damage else None)
    if damage:
        raise CheckpointError(
            f"{'; '.join(damage)}, and no other checkpoint is left: start again with --overwrite"
        )
    return None


def take(directory: RunDirectory, checkpoint: WholeCheckpoint) -> None:
    """Makes a checkpoint the last one of its run."""
    if checkpoint.path != directory.last_checkpoint:
        checkpoint.path.replace(directory.last_checkpoint)
