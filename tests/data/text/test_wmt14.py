"""The preparation of WMT14, on small archives that a server of this machine gives."""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quadric import data
from quadric.data.text import wmt14
from quadric.data.text.lines import read_lines
from tests.data.text.small import pair


def content(name: str, number: int) -> bytes:
    side = 0 if name.endswith((".en", ".en.sgm")) else 1
    lines = [pair(number * 100 + i)[side] for i in range(100)]
    if name.endswith(".sgm"):
        body = "".join(f'<seg id="{i}"> {x} &amp; </seg>\n' for i, x in enumerate(lines))
        return f"<srcset>\n<doc>\n{body}</doc>\n</srcset>\n".encode()
    # A byte that is no UTF-8, and no end of the last line.
    return b"\n".join(line.encode() for line in lines) + b" \xff"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "server"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    archives = []
    for number, archive in enumerate(wmt14.ARCHIVES):
        path = folder / archive.url.rpartition("/")[2]
        with tarfile.open(path, "w:gz") as tar:
            for name in [name for names in archive.parts.values() for name in names]:
                member = tarfile.TarInfo(name)
                raw = content(name, number)
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
        url = f"http://127.0.0.1:{http.server_port}/{path.name}"
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        archives.append(replace(archive, url=url, sha256=sha256))
    monkeypatch.setattr(wmt14, "ARCHIVES", tuple(archives))
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    yield folder
    http.shutdown()
    http.server_close()


def test_archives_become_a_data_set(server: Path) -> None:
    found = data.load("wmt14", vocabulary=500)
    assert "train: 300 pairs" in found.notes
    assert "val: 100 pairs" in found.notes
    assert found.test_files is not None
    first = tuple(next(read_lines(path)) for path in found.test_files)
    assert first == tuple(f"{side} &" for side in pair(300))
    lines = (wmt14.fetch() / "train.en").read_text(encoding="utf-8").splitlines()
    assert lines[0] == pair(0)[0]
    assert lines[99:101] == [f"{pair(99)[0]} \ufffd", pair(100)[0]]
    for path in server.iterdir():  # from now on nothing is downloaded
        path.unlink()
    assert len(data.load("wmt14", vocabulary=500).train) == 300


def test_a_wrong_archive_is_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(wmt14.ARCHIVES[0], sha256="0" * 64)
    monkeypatch.setattr(wmt14, "ARCHIVES", (wrong, *wmt14.ARCHIVES[1:]))
    with pytest.raises(ValueError, match=r"not the published file \(expected sha256 0000"):
        data.load("wmt14")


def test_an_archive_without_its_files_is_refused(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"train": ("training/other.en", "training/other.de")}
    wrong = replace(wmt14.ARCHIVES[0], parts=parts)
    monkeypatch.setattr(wmt14, "ARCHIVES", (wrong,))
    with pytest.raises(ValueError, match=r"must hold training/other\.en, and does not"):
        data.load("wmt14")


def test_another_process_may_be_faster(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = wmt14._unpack

    def meanwhile(archive: wmt14.Archive, path: Path, folder: Path) -> None:
        unpack(archive, path, folder)
        kept = folder.parent / "wmt14"
        kept.mkdir(exist_ok=True)
        (kept / "train.en").write_text("of the other process")

    monkeypatch.setattr(wmt14, "_unpack", meanwhile)
    kept = wmt14.fetch()
    assert (kept / "train.en").read_text() == "of the other process"
    assert not list(kept.parent.glob("wmt14.*"))
