"""Libraries that somebody else put where ours are kept: none of them is ever loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from quadric.ops import cache, native
from tests.conftest import need_kernels

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs rights of Unix")

PLANTED = """
#include <sys/stat.h>
__attribute__((constructor)) static void ran(void) { mkdir("%s", 0700); }
"""


def run(code: str, **environment: str) -> list[str]:
    """The lines that some code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SWITCH_ON = """
import warnings, quadric
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    active = quadric.use_kernels(True)
print(active, *(str(warning.message) for warning in told), sep="\\n")
"""


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
    """What a planted library leaves when it is loaded."""
    return tmp_path / "it ran"


def plant(folder: Path, trace: Path) -> Path:
    """Puts a library of somebody else's under a name of ours, with the right checksum."""
    folder.mkdir(parents=True, mode=0o700)
    source = folder.parent / "planted.c"
    source.write_text(PLANTED % trace)
    made = folder.parent / "planted.so"
    command = [native._compilers()[0], "-x", "c", "-shared", "-fPIC", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    made.chmod(0o600)
    return made.rename(folder / native._name(made.read_bytes()))


def copied(built: Path, folder: Path) -> Path:
    shutil.copytree(built.parent, folder)
    folder.chmod(0o700)
    return folder / built.name


def others_can_write(library: Path) -> None:
    library.parent.chmod(0o777)


def the_group_can_write(library: Path) -> None:
    if os.getuid() == 0:
        os.chown(library.parent, 0, 12345)
    elif os.getgid() == os.getuid():
        pytest.skip("the only group is the user's own")
    library.parent.chmod(0o770)


def others_can_write_above(library: Path) -> None:
    library.parent.parent.chmod(0o777)


def the_folder_is_anothers(library: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(library.parent, 12345, 12345)


def others_can_write_the_library(library: Path) -> None:
    library.chmod(0o666)


def the_library_is_a_link(library: Path) -> None:
    elsewhere = library.rename(library.parent.parent / "elsewhere.so")
    library.symlink_to(elsewhere)


def the_library_is_anothers(library: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(library, 12345, 12345)


@pytest.mark.parametrize(
    ("opened", "warned"),
    [
        (others_can_write, True),
        (the_group_can_write, True),
        (others_can_write_above, True),
        (the_folder_is_anothers, True),
        (others_can_write_the_library, False),
        (the_library_is_a_link, False),
        (the_library_is_anothers, False),
    ],
)
def test_a_planted_library_is_neither_used_nor_changed(
    built: Path, tmp_path: Path, trace: Path, opened: Callable[[Path], None], warned: bool
) -> None:
    library = plant(tmp_path / "shared" / "quadric", trace)
    opened(library)
    place = tmp_path / "shared"
    before = sorted((path, path.lstat().st_mtime_ns) for path in place.rglob("*"))
    mine = copied(built, tmp_path / "temporary" / f"quadric-{os.getuid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(library.parent))
        patch.setattr(tempfile, "tempdir", str(mine.parent.parent))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert native._build() == native._built() == mine
    assert len(told) == warned
    instead = f": kernels are kept in {mine.parent} instead; set QUADRIC_CACHE"
    assert all(instead in str(each.message) for each in told)
    assert before == sorted((path, path.lstat().st_mtime_ns) for path in place.rglob("*"))


def test_a_planted_library_does_not_run(built: Path, tmp_path: Path, trace: Path) -> None:
    """In a process of its own, in the user's cache; and in a folder of our own it would."""
    library = plant(tmp_path / "cache" / "quadric", trace)
    library.parent.chmod(0o777)
    mine = copied(built, tmp_path / "temporary" / f"quadric-{os.getuid()}")
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(mine.parent.parent)}
    active, told = run(SWITCH_ON, QUADRIC_CACHE="", **places)
    assert not trace.exists()
    assert active == "True"
    assert f"can be changed by other users: kernels are kept in {mine.parent} instead" in told
    library.parent.chmod(0o700)
    run(SWITCH_ON, QUADRIC_CACHE="", **places)
    assert trace.is_dir()


def test_without_a_safe_folder_the_plain_path_runs(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    active, told = run(SWITCH_ON, QUADRIC_CACHE=str(folder), TMPDIR=str(folder))
    assert active == "False"
    assert f"{folder} can be changed by other users" in told
    assert "fused kernels are off" in told
    assert not list(folder.iterdir())


def test_what_we_make_is_closed(built: Path) -> None:
    assert built.stat().st_mode & 0o777 == 0o600
    for folder in (built.parent, built.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.filterwarnings("error")
def test_a_folder_behind_a_link_is_judged_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("real", 0o700), ("open", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / f"to {name}").symlink_to(tmp_path / name)
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "to real"))
    assert cache.private_folder() == tmp_path / "real"
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "to open"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="open can be changed by other users"):
        assert cache.private_folder() == tmp_path / f"quadric-{os.getuid()}"


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
OFFER = "layers on the CPU would be faster with fused kernels"


def converted(cache: Path, **environment: str) -> list[str]:
    """In a process that never switches kernels on: whether they are, why not, and four reports."""
    environment = {"QUADRIC_KERNELS": "", "TMPDIR": str(cache.parent), **environment}
    return run(CONVERT, QUADRIC_CACHE=str(cache), **environment)


def test_what_was_built_is_used_without_being_asked(built: Path, tmp_path: Path) -> None:
    assert converted(built.parent) == ["True", "None", *["parameters"] * 4]
    active, reason, *last = converted(built.parent, QUADRIC_KERNELS="0")
    assert (active, last) == ("False", ["parameters"] * 4)
    assert "switched off by QUADRIC_KERNELS=0" in reason
    none = {"PATH": str(tmp_path), "CXX": "", "QUADRIC_CACHE": str(built.parent)}
    assert run(SWITCH_ON, **none) == ["True"]  # no compiler is needed


def test_where_none_is_built_the_report_offers_it(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    assert converted(folder) == ["False", native._NOT_BUILT, OFFER, *["parameters"] * 3]
    assert not folder.exists()  # nothing is made before it is asked for


@pytest.mark.parametrize("opened", [others_can_write, others_can_write_the_library, None])
def test_what_others_could_have_written_or_is_damaged_is_not_used_by_itself(
    built: Path, tmp_path: Path, opened: Callable[[Path], None] | None
) -> None:
    library = copied(built, tmp_path / "cache")
    if opened is None:
        library.write_bytes(library.read_bytes()[:-1])
    else:
        opened(library)
    assert converted(library.parent)[:2] == ["False", native._NOT_BUILT]
