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
from quadric.data.cifar import CIFAR10, CIFAR100, Source, Version
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


def binary_file(pixels: np.ndarray, labels: list[int], label_bytes: int) -> bytes:
    records = []
    for picture, label in zip(pixels, labels, strict=True):
        # The first of CIFAR-100's two bytes is the coarse label; 77 would be a wrong fine label.
        records.append(bytes([77] * (label_bytes - 1) + [label]) + picture.tobytes())
    return b"".join(records)


class Written:
    """A small data set in all its formats, and the source that describes it."""

    def __init__(self, original: Source) -> None:
        rng = np.random.default_rng(0)
        self.pixels: dict[str, np.ndarray] = {}
        self.labels: dict[str, list[int]] = {}
        self.python: dict[str, bytes] = {}
        self.binary: dict[str, bytes] = {}
        parts = []
        for part in original.parts:
            pixels = rng.integers(0, 256, (RECORDS, 3072), dtype=np.uint8)
            labels = rng.integers(0, len(original.class_names), RECORDS).tolist()
            self.pixels[part.name], self.labels[part.name] = pixels, labels
            self.python[part.name] = python_file(pixels, labels, original.label_key)
            self.binary[f"{part.name}.bin"] = binary_file(pixels, labels, original.label_bytes)
            parts.append(
                replace(part, md5=md5(self.python[part.name]), records=RECORDS),
            )
        self.python_archive = self._pack(original.python.folder, self.python)
        self.binary_archive = self._pack(original.binary.folder, self.binary)
        self.source = replace(
            original,
            train=tuple(parts[:-1]),
            test=parts[-1],
            python=replace(original.python, md5=md5(self.python_archive)),
            binary=replace(original.binary, md5=md5(self.binary_archive)),
        )

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
        train = [part.name for part in self.source.train]
        pixels = np.concatenate([self.pixels[name] for name in train]).reshape(-1, 3, 32, 32)
        assert torch.equal(data.train_images, torch.from_numpy(pixels))
        assert data.train_labels.tolist() == [x for name in train for x in self.labels[name]]
        test = self.pixels[self.source.test.name].reshape(-1, 3, 32, 32)
        assert torch.equal(data.test_images, torch.from_numpy(test))
        assert data.test_labels.tolist() == self.labels[self.source.test.name]


@pytest.fixture(params=SOURCES, ids=lambda s: s.name)
def written(request) -> Written:
    return Written(request.param)


@pytest.fixture
def ten() -> Written:
    return Written(CIFAR10)


@pytest.mark.parametrize("kind", ["python", "binary"])
@pytest.mark.parametrize("inside", [True, False])
def test_unpacked_files(written: Written, tmp_path: Path, kind: str, inside: bool) -> None:
    archive: Version = getattr(written.source, kind)
    folder = tmp_path / archive.folder
    written.write(folder, getattr(written, kind))
    written.check(cifar.load(written.source, folder if inside else tmp_path))


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_packed_archive(written: Written, tmp_path: Path, kind: str) -> None:
    archive: Version = getattr(written.source, kind)
    (tmp_path / archive.file).write_bytes(getattr(written, f"{kind}_archive"))
    written.check(cifar.load(written.source, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [archive.file]


def test_batches_pickled_by_todays_numpy(ten: Written, tmp_path: Path) -> None:
    name = ten.source.test.name
    for protocol in (2, 4):
        content = {b"data": ten.pixels[name], b"labels": ten.labels[name]}
        data = pickle.dumps(content, protocol=protocol)
        source = replace(ten.source, test=replace(ten.source.test, md5=md5(data)))
        ten.write(tmp_path, ten.python | {name: data})
        ten.check(cifar.load(source, tmp_path))


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_published_facts(source: Source) -> None:
    assert sum(part.records for part in source.train) == 50_000
    assert source.test.records == 10_000
    assert len(set(source.class_names)) == len(source.class_names) == int(source.title[6:])
    assert list(source.class_names) == sorted(source.class_names)
    hashes = [part.md5 for part in source.parts] + [source.python.md5, source.binary.md5]
    assert all(len(h) == 32 and set(h) <= set("0123456789abcdef") for h in hashes)
    assert len(set(hashes)) == len(hashes)


def test_normalization_and_augmentation(ten: Written, tmp_path: Path) -> None:
    ten.write(tmp_path, ten.binary)
    data = cifar.load(ten.source, tmp_path)
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.std == (0.2470, 0.2435, 0.2616)
    assert data.augmentation == CropFlip(padding=4, flip=True)
    assert cifar.load(ten.source, tmp_path, augment=False).augmentation is None


@pytest.mark.parametrize("size", [16, 8, 1])
def test_resize_averages(ten: Written, tmp_path: Path, size: int) -> None:
    ten.write(tmp_path, ten.binary)
    data = cifar.load(ten.source, tmp_path, resize=size)
    assert data.input_shape == (3, size, size)
    name, k = ten.source.test.name, 32 // size
    pixels = ten.pixels[name].reshape(RECORDS, 3, size, k, size, k).astype(float)
    expected = torch.from_numpy(pixels.mean((3, 5)))
    torch.testing.assert_close(data.test_images.double(), expected, rtol=0, atol=0.5)
    assert data.augmentation == CropFlip(padding=size // 8, flip=True)


@pytest.mark.parametrize("size", [0, 12, -16, 64, 16.0, "16"])
def test_bad_resize(ten: Written, tmp_path: Path, size) -> None:
    with pytest.raises(ValueError, match="resize must be a divisor of 32"):
        cifar.load(ten.source, tmp_path, resize=size)


def test_class_folders_are_not_mistaken_for_cifar100(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match="no CIFAR-100 in"):
        cifar.load(CIFAR100, tmp_path)


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_before_its_checksum(ten: Written, tmp_path: Path) -> None:
    evil = pickle.dumps(Bomb(tmp_path / "exploded"))
    ten.write(tmp_path, ten.python | {"data_batch_1": evil})
    with pytest.raises(ValueError, match="data_batch_1 is truncated or not the published file"):
        cifar.load(ten.source, tmp_path)
    assert not (tmp_path / "exploded").exists()


WRONG_LABEL = b"\x0a" + bytes(3072)
PY, BIN = "cifar-10-batches-py", "cifar-10-batches-bin"
DAMAGES = [  # the file, what is left of it (None: nothing, 0: zeros), and what is said
    (f"{PY}/data_batch_4", None, r"missing file .*data_batch_4: get it from https://www"),
    (f"{PY}/data_batch_2", -10, r"data_batch_2 is truncated .*md5 \w+ of .* bytes, expected"),
    (f"{BIN}/test_batch.bin", -1, r"test_batch.bin is .*: 9,218 bytes, expected 9,219: get"),
    (f"{BIN}/test_batch.bin", 0, r"test_batch.bin is not .*label 10, expected 0 \.\.\. 9"),
    ("cifar-10-python.tar.gz", -1, r"python.tar.gz is truncated .*expected \w+: get it from"),
    ("cifar-10-binary.tar.gz", -1, r"binary.tar.gz is truncated .*expected \w+: get it from"),
]


@pytest.mark.parametrize(("file", "end", "said"), DAMAGES)
def test_damage_is_named(
    ten: Written, tmp_path: Path, file: str, end: int | None, said: str
) -> None:
    everything = {f"cifar-10-batches-py/{name}": data for name, data in ten.python.items()}
    everything |= {f"cifar-10-batches-bin/{name}": data for name, data in ten.binary.items()}
    everything["cifar-10-python.tar.gz"] = ten.python_archive
    everything["cifar-10-binary.tar.gz"] = ten.binary_archive
    kind = file.partition("/")[0]
    for name, data in everything.items():
        if name.startswith(kind):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
    cifar.load(ten.source, tmp_path)
    whole = (tmp_path / file).read_bytes()
    if end is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(whole[:end] if end else WRONG_LABEL * RECORDS)
    with pytest.raises(ValueError, match=said):
        cifar.load(ten.source, tmp_path)


def at(server: Server, source: Source) -> Source:
    return replace(source, python=replace(source.python, url=f"{server.url}/{source.python.file}"))


def test_download_once_with_a_progress_bar(
    ten: Written, server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (server.root / ten.source.python.file).write_bytes(ten.python_archive)
    source = at(server, ten.source)
    ten.check(cifar.load(source))
    assert "100%" in capfd.readouterr().err
    assert (tmp_path / "cache" / ten.source.python.file).is_file()
    ten.check(cifar.load(source))
    assert server.requests == [f"/{ten.source.python.file}"]


def test_damaged_cache_is_fetched_again(ten: Written, server: Server, tmp_path: Path) -> None:
    (server.root / ten.source.python.file).write_bytes(ten.python_archive)
    source = at(server, ten.source)
    cifar.load(source, progress=False)
    cached = tmp_path / "cache" / ten.source.python.file
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
        (server.root / ten.source.python.file).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        cifar.load(at(server, ten.source), progress=False)


def test_no_server(ten: Written, server: Server) -> None:
    source = at(server, ten.source)
    server.shutdown()
    server.server_close()
    with pytest.raises(ValueError, match="cannot download http") as caught:
        cifar.load(source, progress=False)
    assert "\n" not in str(caught.value)
