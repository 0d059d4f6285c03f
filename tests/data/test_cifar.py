"""CIFAR files are written here in their real formats, a few pictures each, with their real md5."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from quadric.data import cifar
from quadric.data.cifar import CIFAR10, CIFAR100, Source
from quadric.data.images import CropFlip
from tests.data.conftest import Server

SOURCES = [CIFAR10, CIFAR100]
RECORDS = 3


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def python_file(pixels: np.ndarray, labels: list[int], key: bytes) -> bytes:
    """A batch as Python 2 and its numpy pickled it: protocol 2, keys of bytes, numpy.core."""
    data = pickle.dumps({b"data": pixels, key: labels, b"batch_label": b"x"}, protocol=2)
    assert b"numpy._core.multiarray" in data or b"numpy.core.multiarray" in data
    return data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


class Written:
    """A small data set, and the source that describes it."""

    def __init__(self, original: Source) -> None:
        rng = np.random.default_rng(0)
        self.pixels: dict[str, np.ndarray] = {}
        self.labels: dict[str, list[int]] = {}
        self.files: dict[str, bytes] = {}
        for name in original.files:
            pixels = rng.integers(0, 256, (RECORDS, 3072), dtype=np.uint8)
            labels = rng.integers(0, len(original.class_names), RECORDS).tolist()
            self.pixels[name], self.labels[name] = pixels, labels
            self.files[name] = python_file(pixels, labels, original.label_key)
        self.archive = self._pack(original.folder, self.files)
        sums = {name: md5(content) for name, content in self.files.items()}
        self.source = replace(original, files=sums, md5=md5(self.archive))

    @staticmethod
    def _pack(folder: str, files: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, data in {**files, "readme.html": b"<html>"}.items():
                info = tarfile.TarInfo(f"{folder}/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    def write(self, folder: Path, files: dict[str, bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)

    def check(self, data) -> None:
        *train, last = self.source.files
        pixels = np.concatenate([self.pixels[name] for name in train]).reshape(-1, 3, 32, 32)
        assert torch.equal(data.train_images, torch.from_numpy(pixels))
        assert data.train_labels.tolist() == [x for name in train for x in self.labels[name]]
        test = self.pixels[last].reshape(-1, 3, 32, 32)
        assert torch.equal(data.test_images, torch.from_numpy(test))
        assert data.test_labels.tolist() == self.labels[last]


@pytest.fixture(params=SOURCES, ids=lambda s: s.name)
def written(request) -> Written:
    return Written(request.param)


@pytest.fixture
def ten() -> Written:
    return Written(CIFAR10)


@pytest.mark.parametrize("inside", [True, False])
def test_unpacked_files(written: Written, tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / written.source.folder
    written.write(folder, written.files)
    written.check(cifar.load(written.source, folder if inside else tmp_path))


def test_packed_archive(written: Written, tmp_path: Path) -> None:
    (tmp_path / written.source.archive).write_bytes(written.archive)
    written.check(cifar.load(written.source, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [written.source.archive]


def test_normalization_and_augmentation(ten: Written, tmp_path: Path) -> None:
    ten.write(tmp_path, ten.files)
    data = cifar.load(ten.source, tmp_path)
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.std == (0.2470, 0.2435, 0.2616)
    assert data.augmentation == CropFlip(padding=4, flip=True)
    assert cifar.load(ten.source, tmp_path, augment=False).augmentation is None


@pytest.mark.parametrize("size", [16, 8, 1])
def test_resize_averages(ten: Written, tmp_path: Path, size: int) -> None:
    ten.write(tmp_path, ten.files)
    data = cifar.load(ten.source, tmp_path, resize=size)
    assert data.input_shape == (3, size, size)
    name, k = "test_batch", 32 // size
    pixels = ten.pixels[name].reshape(RECORDS, 3, size, k, size, k).astype(float)
    expected = torch.from_numpy(pixels.mean((3, 5)))
    torch.testing.assert_close(data.test_images.double(), expected, rtol=0, atol=0.5)
    assert data.augmentation == CropFlip(padding=size // 8, flip=True)


@pytest.mark.parametrize("size", [0, 12, -16, 64, 16.0, "16"])
def test_bad_resize(ten: Written, tmp_path: Path, size) -> None:
    with pytest.raises(ValueError, match="resize must be a divisor of 32"):
        cifar.load(ten.source, tmp_path, resize=size)


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_before_its_checksum(ten: Written, tmp_path: Path) -> None:
    evil = pickle.dumps(Bomb(tmp_path / "exploded"))
    ten.write(tmp_path, ten.files | {"data_batch_1": evil})
    with pytest.raises(ValueError, match="data_batch_1 is truncated or not the published file"):
        cifar.load(ten.source, tmp_path)
    assert not (tmp_path / "exploded").exists()


PY, PACKED = "cifar-10-batches-py", "cifar-10-python.tar.gz"
DAMAGES = [  # the file, what is left of it (None: nothing), and what is said
    (f"{PY}/data_batch_4", None, r"missing file .*data_batch_4: get it from https://www"),
    (f"{PY}/data_batch_2", -10, r"data_batch_2 is truncated .*md5 \w+ of .* bytes, expected"),
    (PACKED, -1, r"python.tar.gz is truncated .*expected \w+: get it from"),
]


@pytest.mark.parametrize(("file", "end", "said"), DAMAGES)
def test_damage_is_named(
    ten: Written, tmp_path: Path, file: str, end: int | None, said: str
) -> None:
    if file == PACKED:
        ten.write(tmp_path, {PACKED: ten.archive})
    else:
        ten.write(tmp_path / PY, ten.files)
    cifar.load(ten.source, tmp_path)
    whole = (tmp_path / file).read_bytes()
    if end is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(whole[:end])
    with pytest.raises(ValueError, match=said):
        cifar.load(ten.source, tmp_path)


def at(server: Server, source: Source) -> Source:
    return replace(source, url=f"{server.url}/{source.archive}")


def test_download_once_with_a_progress_bar(
    ten: Written, server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (server.root / ten.source.archive).write_bytes(ten.archive)
    source = at(server, ten.source)
    ten.check(cifar.load(source))
    assert "100%" in capfd.readouterr().err
    assert (tmp_path / "cache" / ten.source.archive).is_file()
    ten.check(cifar.load(source))
    assert server.requests == [f"/{ten.source.archive}"]


def test_damaged_cache_is_fetched_again(ten: Written, server: Server, tmp_path: Path) -> None:
    (server.root / ten.source.archive).write_bytes(ten.archive)
    source = at(server, ten.source)
    cifar.load(source, progress=False)
    cached = tmp_path / "cache" / ten.source.archive
    cached.write_bytes(cached.read_bytes()[:-5])
    ten.check(cifar.load(source, progress=False))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"another file", r"the download of http.* is not the published file \(expected md5 \w+\)"),
        (None, r"cannot download http.*404.*fetch it by hand \(md5"),
    ],
)
def test_download_that_fails(
    ten: Written, server: Server, content: bytes | None, said: str
) -> None:
    if content is not None:
        (server.root / ten.source.archive).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        cifar.load(at(server, ten.source), progress=False)
