"""Libraries that somebody else put where ours are kept: none of them is ever loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quadric.ops import cache, native
from tests.conftest import need_kernels

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs rights of Unix")

PLANTED = """
#include <sys/stat.h>
__attribute__((constructor)) static void ran(void) { mkdir("%s", 0700); }
int quadric_abi(void) { return 0; }
"""

SWITCH_ON = """
import warnings, quadric
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    active = quadric.use_kernels(True)
print(active, *(str(warning.message) for warning in told), sep="\\n")
"""


def switch_on(**environment: str) -> list[str]:
    """In a process of its own: whether the kernels are active, and the warnings."""
    done = subprocess.run(
        [sys.executable, "-c", SWITCH_ON],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that we built, in a folder of its own."""
    need_kernels()
    folder = tmp_path_factory.mktemp("kernels") / "made" / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(folder))
        return native._build()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "it ran"


def plant(folder: Path, built: Path, trace: Path) -> Path:
    """Puts a library of somebody else's under the name of ours, with the right checksum."""
    folder.mkdir(parents=True)
    source = folder.parent / "planted.c"
    source.write_text(PLANTED % trace)
    library = folder / built.name
    compiler = native._compiler()
    command = [compiler, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    key = key_of(built)
    native._sum_of(library).write_text(native._checksum(library, key))
    assert native._is_whole(library, key)
    library.chmod(0o600)
    native._sum_of(library).chmod(0o600)
    folder.chmod(0o700)
    return library


def key_of(built: Path) -> str:
    """What `_build` calls the source; its file has the beginning of it in its name."""
    found: list[str] = []
    original = native._is_whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            native, "_is_whole", lambda file, key: found.append(key) or original(file, key)
        )
        patch.setenv("QUADRIC_CACHE", str(built.parent))
        assert native._build() == built
    return found[0]


def others_can_write(folder: Path, library: Path) -> None:
    folder.chmod(0o777)


def the_group_can_write(folder: Path, library: Path) -> None:
    if os.getuid() == 0:
        os.chown(folder, 0, 12345)
    elif os.getgid() == os.getuid():
        pytest.skip("the only group is the user's own")
    folder.chmod(0o770)


def others_can_write_above(folder: Path, library: Path) -> None:
    folder.parent.chmod(0o777)


def others_can_write_the_library(folder: Path, library: Path) -> None:
    library.chmod(0o666)


def others_can_write_the_checksum(folder: Path, library: Path) -> None:
    native._sum_of(library).chmod(0o666)


def the_library_is_a_link(folder: Path, library: Path) -> None:
    library.rename(folder.parent / "elsewhere.so")
    library.symlink_to(folder.parent / "elsewhere.so")


def the_folder_is_anothers(folder: Path, library: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, 12345)


def the_library_is_anothers(folder: Path, library: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(library, 12345, 12345)


OPENED = [
    others_can_write,
    the_group_can_write,
    others_can_write_above,
    others_can_write_the_library,
    others_can_write_the_checksum,
    the_library_is_a_link,
    the_folder_is_anothers,
    the_library_is_anothers,
]


@pytest.mark.parametrize("opened", OPENED)
def test_a_planted_library_is_neither_used_nor_changed(
    built: Path, tmp_path: Path, opened: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "shared" / "quadric"
    library = plant(folder, built, tmp_path / "it ran")
    opened(folder, library)
    before = sorted((path, path.lstat().st_mtime_ns) for path in folder.parent.rglob("*"))
    mine = tmp_path / "temporary" / f"quadric-{os.getuid()}"
    shutil.copytree(built.parent, mine)  # so that nothing needs to be built
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(folder))
        patch.setattr(tempfile, "tempdir", str(mine.parent))
        with pytest.warns(UserWarning, match="kernels are kept in") as told:
            assert native._build() == mine / built.name
    assert len(told) == 1
    assert f": kernels are kept in {mine} instead; set QUADRIC_CACHE" in str(told[0].message)
    after = sorted((path, path.lstat().st_mtime_ns) for path in folder.parent.rglob("*"))
    assert after == before


def test_a_planted_library_does_not_run(built: Path, tmp_path: Path, trace: Path) -> None:
    """The same in a process of its own, in the user's cache."""
    plant(tmp_path / "cache" / "quadric", built, trace).parent.chmod(0o777)
    mine = tmp_path / "temporary" / f"quadric-{os.getuid()}"
    shutil.copytree(built.parent, mine)
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(mine.parent)}
    active, *told = switch_on(QUADRIC_CACHE="", **places)
    assert not trace.exists()
    assert active == "True"
    assert len(told) == 1
    assert f"can be changed by other users: kernels are kept in {mine} instead" in told[0]


def test_a_planted_library_would_run(built: Path, tmp_path: Path, trace: Path) -> None:
    """What the other tests rest on: in a folder of our own that library is loaded."""
    plant(tmp_path / "mine", built, trace)
    switch_on(QUADRIC_CACHE=str(tmp_path / "mine"))
    assert trace.is_dir()


def test_without_a_safe_folder_the_plain_path_runs(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    active, *told = switch_on(QUADRIC_CACHE=str(folder), TMPDIR=str(folder))
    assert active == "False"
    assert len(told) == 1
    assert f"{folder} can be changed by other users" in told[0]
    assert "fused kernels are off" in told[0]
    assert not list(folder.iterdir())


def test_folders_that_we_make_are_closed(built: Path) -> None:
    for folder in (built.parent, built.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_behind_a_link_is_judged_where_it_is(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(tmp_path / "link"))
        assert cache.private_folder("*") == real
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "open")
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.warns(UserWarning, match="open can be changed by other users"):
            assert cache.private_folder("*") != tmp_path / "open"


def test_a_library_of_another_source_is_built_again(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "squares.cpp"
    changed.write_text('extern "C" int quadric_abi() { return 0; }')
    monkeypatch.setattr(native, "_SOURCE", changed)
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    made = native._build()
    for old, new in ((built, made), (native._sum_of(built), native._sum_of(made))):
        shutil.copy(old, new)  # the old one under the new one's name
    assert native._build() == made
    assert made.read_bytes() != built.read_bytes()


def test_without_a_compiler_a_library_that_was_built_is_used(built: Path, tmp_path: Path) -> None:
    none = {"PATH": str(tmp_path), "CXX": ""}
    assert switch_on(QUADRIC_CACHE=str(built.parent), **none) == ["True"]
    damaged = tmp_path / "damaged"
    shutil.copytree(built.parent, damaged)
    damaged.chmod(0o700)
    (damaged / built.name).write_bytes(built.read_bytes()[:-1])
    assert switch_on(QUADRIC_CACHE=str(damaged), **none) == ["False"]


# --- a library that was built before is used by itself --------------------------------------------

CONVERT = """
import os, torch, quadric
from torch import nn
from quadric.ops import native
print(native.active(), native.reason(), sep="\\n")
for neuron, dtype in ("eigen", torch.float32), ("fan", torch.float32), ("eigen", torch.float64):
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
    print(str(quadric.convert_(model.to(dtype), neuron=neuron)).splitlines()[-1].split(":")[0])
os.environ.update(PATH="", CXX="")
report = quadric.convert_(nn.Sequential(nn.Linear(4, 9), nn.ReLU()))
print(str(report).splitlines()[-1].split(":")[0])
"""
OFFER = "float32 on the CPU would be faster with fused kernels"


def converted(folder: Path, **more: str) -> list[str]:
    """In a process of its own: active, the reason, and how the last lines of reports begin.

    The reports are of eigen, of a neuron and of a dtype that kernels do not serve, and of eigen
    where there is no compiler.
    """
    environment = {**os.environ, "QUADRIC_CACHE": str(folder), "QUADRIC_KERNELS": ""} | more
    command = [sys.executable, "-W", "error", "-c", CONVERT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def copy_of(built: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, mode=0o700)
    for file in (built, native._sum_of(built)):
        shutil.copy(file, folder)
    return folder


def test_what_was_built_is_used_without_being_asked(built: Path, tmp_path: Path) -> None:
    folder = copy_of(built, tmp_path / "cache")
    assert converted(folder) == ["True", "None", *["parameters"] * 4]
    active, reason, *last = converted(folder, QUADRIC_KERNELS="0")
    assert (active, last) == ("False", ["parameters"] * 4)
    assert "switched off by QUADRIC_KERNELS=0" in reason


def test_where_none_is_built_the_report_offers_it(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    found = converted(folder, TMPDIR=str(tmp_path))
    assert found == ["False", native._NOT_BUILT, OFFER, *["parameters"] * 3]
    assert not folder.exists()  # nothing is made before it is asked for


def test_what_others_could_have_written_or_is_damaged_is_not_used_by_itself(
    built: Path, tmp_path: Path, trace: Path
) -> None:
    planted = plant(tmp_path / "open", built, trace)
    planted.parent.chmod(0o777)
    assert converted(planted.parent, TMPDIR=str(tmp_path))[0] == "False"
    planted.parent.chmod(0o700)
    planted.chmod(0o666)
    assert converted(planted.parent, TMPDIR=str(tmp_path))[0] == "False"
    assert not trace.exists()
    damaged = copy_of(built, tmp_path / "damaged") / built.name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert converted(damaged.parent, TMPDIR=str(tmp_path))[:2] == ["False", native._NOT_BUILT]
