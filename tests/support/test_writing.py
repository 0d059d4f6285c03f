"""Files that are whole or absent."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import quadric
import quadric.exporting
from quadric.errors import FileError
from quadric.support.writing import (
    check_writable,
    clear_partial,
    naming,
    whole_file,
    write_text,
)
from tests.small_disk import FULL, NO_DISK, NULL, node, small_disk


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
    full = node(tmp_path / "full", stat.S_IFCHR, FULL)
    with pytest.raises(FileError, match=rf"cannot write {full} \(No space left on device\)"):
        write_text(full, "text")
    assert full.is_char_device()


def save(path: Path) -> None:
    quadric.save(torch.nn.Linear(2, 2), path)


def export(path: Path) -> None:
    quadric.exporting.export_torch(torch.nn.Linear(2, 2), path, torch.zeros(1, 2))


WRITERS = {"text": lambda path: write_text(path, "text"), "save": save, "export": export}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_nothing_but_a_file_is_ever_replaced(write: Callable[[Path], None], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("disk", "pipe", "folder", "socket")]
    null = node(tmp_path / "null", stat.S_IFCHR, NULL)
    node(paths[0], stat.S_IFBLK, NO_DISK)
    os.mkfifo(paths[1])
    paths[2].mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(paths[3]))
        before = [(path.stat().st_ino, path.stat().st_mode) for path in (*paths, null)]
        for path in paths:
            with pytest.raises(FileError, match=str(path)):
                write(path)
        write(null)
        assert before == [(path.stat().st_ino, path.stat().st_mode) for path in (*paths, null)]
    assert len(os.listdir(tmp_path)) == 5


def test_who_reads_a_pipe_gets_the_content(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_text(path, "text")
    assert os.read(reading, 9) == b"text"
    os.close(reading)


def test_what_a_shell_redirects_to_stays_one_file(tmp_path: Path) -> None:
    with (tmp_path / "redirected").open("wb", buffering=0) as file:
        file.write(b"a")
        write_text(f"/dev/fd/{file.fileno()}", "b")
        file.write(b"c")
    assert (tmp_path / "redirected").read_text() == "abc"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch(mode)
    path.chmod(mode)
    if os.access(path, os.W_OK):
        write_text(path, "text")
    else:
        with pytest.raises(FileError, match="it is read-only"):
            write_text(path, "text")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_user_may_have_any_other_name(tmp_path: Path) -> None:
    (tmp_path / "a.partial").write_text("the user's")
    write_text(tmp_path / "a", "text")
    assert (tmp_path / "a.partial").read_text() == "the user's"


def test_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    texts = [str(number) * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(write_text, path, text) for text in texts * 5]:
            done.result()
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["a"]


def test_a_killed_process_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "old")
    code = (
        "import os; from quadric.support.writing import whole_file\n"
        f"with whole_file({str(path)!r}) as file:\n"
        "    file.write_text('half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    clear_partial(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_half_a_surrogate_pair_is_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a", json.dumps("\udc80", ensure_ascii=False))
    assert json.loads((tmp_path / "a").read_text()) == "\udc80"


def test_only_the_named_errors_are_named() -> None:
    with pytest.raises(FileNotFoundError), naming("x", [5]):
        raise FileNotFoundError(2, "gone")
    with pytest.raises(FileError, match=r"cannot write x \(broken\)"), naming("x", [5]):
        raise OSError(5, "broken")


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "new")
    check_writable("--out", node(tmp_path / "null", stat.S_IFCHR, NULL))
    with pytest.raises(FileError, match="there is no directory"):
        check_writable("--out", tmp_path / "no" / "new")
    for path in (tmp_path, Path("/proc/new")):
        with pytest.raises(FileError, match=f"--out {path} cannot be written: name another file"):
            check_writable("--out", path)
