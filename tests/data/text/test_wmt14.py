"""The preparation of WMT14, on small archives that a server of this machine gives."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from quadric import data
from quadric.data.text import wmt14
from quadric.data.text.lines import read_lines
from tests.data.conftest import Server
from tests.data.text.small import pair


def content(name: str, number: int) -> bytes:
    side = 0 if name.endswith((".en", ".en.sgm")) else 1
    lines = [pair(number * 100 + i)[side] for i in range(100)]
    if name.endswith(".sgm"):
        body = "".join(f'<seg id="{i}"> {x} &amp; </seg>\n' for i, x in enumerate(lines))
        return f"<srcset>\n<doc>\n{body}</doc>\n</srcset>\n".encode()
    # A byte that is no UTF-8, and no end of the last line.
    return b"\n".join(line.encode() for line in lines) + b" \xff"


@pytest.fixture(autouse=True)
def archives(server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts small archives on the server; returns the folder that they are in."""
    archives = []
    for number, archive in enumerate(wmt14.ARCHIVES):
        path = server.root / archive.url.rpartition("/")[2]
        with tarfile.open(path, "w:gz") as tar:
            for name in [name for names in archive.parts.values() for name in names]:
                member = tarfile.TarInfo(name)
                raw = content(name, number)
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        archives.append(replace(archive, url=f"{server.url}/{path.name}", sha256=sha256))
    monkeypatch.setattr(wmt14, "ARCHIVES", tuple(archives))
    return server.root


def test_archives_become_a_data_set(archives: Path) -> None:
    found = data.load("wmt14", vocabulary=500)
    assert "train: 300 pairs" in found.notes
    assert "val: 100 pairs" in found.notes
    assert found.test_files is not None
    first = tuple(next(read_lines(path)) for path in found.test_files)
    assert first == tuple(f"{side} &" for side in pair(300))
    lines = (wmt14.fetch() / "train.en").read_text(encoding="utf-8").splitlines()
    assert lines[0] == pair(0)[0]
    assert lines[99:101] == [f"{pair(99)[0]} \ufffd", pair(100)[0]]
    for path in archives.iterdir():  # from now on nothing is downloaded
        path.unlink()
    assert len(data.load("wmt14", vocabulary=500).train) == 300


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, r"not the published file \(expected sha256 0000"),
        (
            {"parts": {"train": ("training/other.en", "training/other.de")}},
            r"must hold training/other\.en, and does not",
        ),
    ],
)
def test_a_wrong_archive_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], said: str
) -> None:
    wrong = replace(wmt14.ARCHIVES[0], **change)  # type: ignore[arg-type]
    monkeypatch.setattr(wmt14, "ARCHIVES", (wrong,))
    with pytest.raises(ValueError, match=said):
        data.load("wmt14")
    kept = data.files.cache_directory("WMT14") / "wmt14"
    assert not kept.is_dir() or not list(kept.iterdir())
