"""Building, caching and loading the kernels, and what happens where there are none."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import quadric
from quadric.ops import native
from quadric.ops.blocks import eigen_blocks
from tests.conftest import need_kernels
from tests.ops.test_cache import run


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    need_kernels()
    yield
    quadric.use_kernels(False)


NAMES = ["quadric_forward", "quadric_backward"]


@pytest.mark.parametrize("name", NAMES)
def test_a_library_that_computes_something_else_is_never_used(name: str) -> None:
    real = native._state.library
    fake = types.SimpleNamespace(
        **{each: getattr(real, each) for each in [*NAMES, "quadric_layer"]}
    )
    native._check(fake)  # type: ignore[arg-type]
    setattr(fake, name, lambda *args: None)
    with pytest.raises(RuntimeError, match="failed their self-test"):
        native._check(fake)  # type: ignore[arg-type]


def test_eigenvalues_that_do_not_fit_are_refused() -> None:
    """The kernels would read other memory."""
    out = torch.zeros(2, 8)
    for lam in (torch.zeros(5), torch.zeros(6, device="meta")):
        with pytest.raises(ValueError, match="need 6 eigenvalues on the CPU, got"):
            native.forward(out, out, lam, eigen_blocks(8, 3), -1)


def test_without_a_compiler_the_plain_path_runs(tmp_path: Path) -> None:
    code = (
        "import quadric, torch\n"
        "print(quadric.use_kernels(True), quadric.ops.native.reason())\n"
        "print(quadric.QuadraticLinear(3, 20)(torch.ones(2, 3)).shape)"
    )
    nowhere = {"QUADRIC_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    told, shape = run(code, PATH=str(tmp_path), CXX="", **nowhere)
    assert told.startswith("False no C++ compiler was found")
    assert shape == "torch.Size([2, 20])"


def test_another_default_device_does_not_matter() -> None:
    """A pointer to no memory at all would end the process."""
    code = (
        "import quadric, torch\n"
        "layer = quadric.QuadraticLinear(3, 20)\n"
        "x = torch.ones(2, 3)\n"
        "with torch.device('meta'):\n"
        "    print(quadric.use_kernels(True))\n"
        "    layer(x).sum().backward()\n"
        "print(layer.eigenvalues.grad.shape)"
    )
    assert run(code) == ["True", "torch.Size([18])"]


def test_what_is_built_once_is_whole_or_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path))
    built = native._build()
    assert [*tmp_path.iterdir()] == [built]
    made = built.stat().st_mtime_ns
    assert native._build().stat().st_mtime_ns == made  # from the cache
    # The system loads what is there of a library that was cut, and ends the process at the rest.
    whole = built.read_bytes()
    built.write_bytes(whole[: len(whole) // 2])
    code = "import quadric; print(quadric.use_kernels(True), quadric.ops.native.reason())"
    assert run(code, QUADRIC_CACHE=str(tmp_path)) == ["True None"]
    assert built.read_bytes() == whole
    changed = tmp_path / "squares.cpp"
    changed.write_text('extern "C" int other() { return 0; }')
    monkeypatch.setattr(native, "_SOURCE", changed)
    assert native._build() != built  # of another source


def test_a_library_that_cannot_be_loaded_is_the_reason(tmp_path: Path) -> None:
    other = tmp_path / "native.so"
    other.write_bytes(b"not a library")
    with pytest.raises(RuntimeError, match="could not be loaded"):
        native._load(other)


def test_a_compiler_that_fails_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "c++"
    broken.write_text(
        "#!/bin/sh\necho 'In a function' >&2\necho 'error: no such flag' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native._state, "library", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        assert quadric.use_kernels(True) is False
        assert (native.reason() or "").endswith("the kernels: error: no such flag")
        assert not list((tmp_path / "cache").iterdir())
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize("enabled", ["yes", 1, None])
def test_a_switch_is_on_or_off(enabled: object) -> None:
    with pytest.raises(TypeError, match="enabled must be True or False, got"):
        quadric.use_kernels(enabled)  # type: ignore[arg-type]
    assert native.active()


def test_switching_off() -> None:
    assert native.active()
    assert quadric.use_kernels(False) is False
    assert not native.active()
    assert "switched off" in (native.reason() or "")


GUARDED = """
import ctypes, mmap
import torch
import quadric
from quadric.ops import native
from quadric.ops.blocks import eigen_blocks, shared_blocks

# Numbers that end where a page ends, after which nothing may be read or written.
libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE

def guarded(*shape, dtype=torch.float32):
    size = torch.Size(shape).numel() * dtype.itemsize
    whole = -(-size // page) * page
    memory = mmap.mmap(-1, whole + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(address + whole), page, 0) == 0
    count = torch.Size(shape).numel()
    out = torch.frombuffer(memory, dtype=dtype, offset=whole - size, count=count)
    return out.reshape(shape).copy_(torch.randn(shape))

assert quadric.use_kernels(True), quadric.ops.native.reason()
for channels in (1, 10, 16, 23, 166):
    for rank in (1, 5, 8, 9, 15, 17):
        for make in (eigen_blocks, shared_blocks):
            blocks = make(channels, rank)
            lam = guarded(blocks.num_eigenvalues) if blocks.num_eigenvalues else torch.zeros(0)
            for shape, dim in (((1, channels), -1), ((17, channels), -1), ((2, channels, 19), -2)):
                for dtype in native.TYPES:
                    out, grad = guarded(*shape, dtype=dtype), guarded(*shape, dtype=dtype)
                    native.forward(out, out, lam, blocks, dim)
                    native.backward_with_bias(grad, out, lam, blocks, dim)
print("nothing after it")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="guards pages by Linux' own call")
def test_nothing_is_read_after_the_last_number() -> None:
    command = [sys.executable, "-c", GUARDED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "nothing after it\n", done.stderr[-2000:] or done.returncode
