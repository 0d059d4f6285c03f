"""Files that are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quadric.errors import FileError
from quadric.support.writing import check_writable, naming, whole_file, write_text
from tests.small_disk import small_disk


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with whole_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"

    def broken() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_one_before_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = tmp_path / "a", tmp_path / "before"

    def write(text: str) -> None:
        with whole_file(path, before) as partial:
            partial.write_text(text)

    write("1")
    assert not before.exists()
    write("2")
    assert (path.read_text(), before.read_text()) == ("2", "1")

    def no_links(*names: object) -> None:
        raise OSError("a file system without links")

    monkeypatch.setattr(os, "link", no_links)
    write("3")
    assert (path.read_text(), before.read_text()) == ("3", "2")


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    message = rf"cannot write {path} \(File too large\): make room"
    with small_disk(1000), pytest.raises(FileError, match=message):
        write_text(path, "x" * 2000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"
    write_text("/dev/null", "text")
    assert not Path("/dev/null").is_file()
    if Path("/dev/full").exists():
        with pytest.raises(FileError, match=r"cannot write /dev/full \(No space left on device\)"):
            write_text("/dev/full", "text")


def test_only_the_named_errors_are_named() -> None:
    with pytest.raises(FileNotFoundError), naming("x", [5]):
        raise FileNotFoundError(2, "gone")
    with pytest.raises(FileError, match=r"cannot write x \(broken\)"), naming("x", [5]):
        raise OSError(5, "broken")


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "new")
    check_writable("--out", Path("/dev/null"))
    with pytest.raises(FileError, match="there is no directory"):
        check_writable("--out", tmp_path / "no" / "new")
    for path in (tmp_path, Path("/proc/new")):
        with pytest.raises(FileError, match=f"--out {path} cannot be written: name another file"):
            check_writable("--out", path)
