"""Builds, loads and calls csrc/squares.cpp: the squares in one pass forward and one backward.

`use_kernels(True)` compiles the source with the machine's own C++ compiler, once. The library is
kept in a folder that is closed to other users (`cache.py`), under a name that depends on the
source, the compiler and the processor. It gets that name only when it is complete, and is loaded
only if its checksum is right, because a truncated file would end the process. It is called through
ctypes and needs neither torch's headers nor a build tool. Importing quadric never builds anything,
but a library that was built before is used by itself. `QUADRIC_KERNELS=0` in the environment or
`use_kernels(False)` turns it off.

The kernels serve float32 on the CPU, contiguous or channels_last. Everything else, a machine
without a compiler, and any failure use torch's own operators; `reason()` says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quadric.errors import InputError, InputTypeError
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from quadric.ops.cache import private_files, private_folder

_SOURCE = Path(__file__).parent / "csrc" / "squares.cpp"
_ABI = 9
# Not -ffast-math: linking with it would switch the whole process to flushing small numbers to zero.
_FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
)
_SMALL = 1 << 15
"""Elements below which one thread is faster than several."""

_UNFINISHED = "unfinished-"
"""What the name of a library begins with until it is built."""

_SUM = ".sha256"
"""What the name of the file with a library's checksum ends with."""

_KILLED_AFTER = 3600.0
"""Seconds after which an unfinished library belongs to a build that was killed."""


@dataclass
class _State:
    library: ctypes.CDLL | None = None
    enabled: bool = False
    reason: str | None = None


_state = _State()


def use_kernels(enabled: bool = True) -> bool:
    """Switches the fused kernels on or off, building them where that has not been done yet.

    Those that were built before are on by themselves, unless the environment variable
    `QUADRIC_KERNELS` is 0.

    Args:
        enabled: whether to use them.

    Returns:
        Whether they are active. If not, `quadric.ops.native.reason()` says why.

    Raises:
        InputTypeError: if `enabled` is neither True nor False.
    """
    if not isinstance(enabled, bool):
        raise InputTypeError(
            f"enabled must be True or False, got {enabled!r} of type {type(enabled).__name__}: "
            "give one of these"
        )
    if not enabled:
        _state.enabled = False
        _state.reason = "switched off: call quadric.use_kernels(True)"
        return False
    if _state.library is None:
        _take(_build)
    elif not _state.enabled:
        _state.enabled, _state.reason = True, None
    return _state.enabled


def _take(find: Callable[[], Path]) -> None:
    """Loads and checks a library, or notes why there is none."""
    try:
        library = _load(find())
        _check(library)
        _state.library, _state.enabled, _state.reason = library, True, None
    except Exception as error:  # a fast path must never be the reason that nothing runs
        _state.library, _state.enabled, _state.reason = None, False, f"{error}"


def active() -> bool:
    """Whether the fused kernels are in use."""
    return _state.enabled


def reason() -> str | None:
    """Why the kernels are not active, or None if they are."""
    return _state.reason


def offer() -> str | None:
    """What one call would bring on this machine; None if kernels are used or were switched off."""
    if _state.reason != _NOT_BUILT or not any(map(shutil.which, _compilers())):
        return None
    return (
        "float32 on the CPU would be faster with fused kernels: quadric.use_kernels() builds them, "
        "once for this machine"
    )


_NOT_BUILT = "not built yet: call quadric.use_kernels(True)"


def _compilers() -> list[str]:
    return [name for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name]


def _compiler() -> str:
    for name in _compilers():
        found = shutil.which(name)
        if found:
            return found
    raise RuntimeError("no C++ compiler was found: install g++ or clang++, or set CXX")


def _processor() -> str:
    """What the machine's own instruction set depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "".join(kept[:2])


_NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def _key() -> str:
    """Of all that a library is built from, but the compiler."""
    text = _SOURCE.read_bytes()
    made_of = "\n".join([" ".join(_FLAGS), _NATIVE, _processor(), sys.platform]).encode()
    return hashlib.sha256(text + made_of).hexdigest()


def _built() -> Path:
    """A library that was built earlier, by any compiler of this user."""
    key = _key()
    for library in private_files(f"kernels-{key[:20]}-*"):
        if library.suffix == ".so" and _is_whole(library, key):
            return library
    raise RuntimeError(_NOT_BUILT)


def _build() -> Path:
    """Compiles the source unless that has been done, and returns the library's path."""
    key = _key()
    folder = private_folder(f"kernels-{key[:20]}-*")
    try:
        compiler = _compiler()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            return _built()
        raise
    version = _run([compiler, "--version"]).stdout.encode()
    target = folder / f"kernels-{key[:20]}-{hashlib.sha256(version).hexdigest()[:8]}.so"
    if _is_whole(target, key):
        return target
    _remove_left(folder)
    handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, suffix=".so", dir=folder)
    os.close(handle)
    try:
        attempts = [[_NATIVE, "-fopenmp"], ["-fopenmp"], []]
        for extra in attempts:
            command = [compiler, *_FLAGS, *extra, str(_SOURCE), "-o", unfinished]
            done = _run(command)
            if done.returncode == 0:
                written = Path(f"{unfinished}{_SUM}")
                written.write_text(_checksum(Path(unfinished), key))
                for file in (unfinished, written):
                    os.chmod(file, 0o600)
                # The sum last: until then the library does not count as whole.
                os.replace(unfinished, target)
                os.replace(written, _sum_of(target))
                return target
        lines = done.stderr.strip().splitlines() or ["no message"]
        said = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeError(f"{compiler} failed to build the kernels: {said}")
    finally:
        for left in (unfinished, f"{unfinished}{_SUM}"):
            if os.path.exists(left):
                os.unlink(left)


def _checksum(library: Path, key: str) -> str:
    """Of a library and what it was built from: one of another source does not pass for it."""
    return hashlib.sha256(key.encode() + library.read_bytes()).hexdigest()


def _sum_of(library: Path) -> Path:
    return library.with_name(library.name + _SUM)


def _is_whole(library: Path, key: str) -> bool:
    """Whether a library is there, as it was built from this source."""
    try:
        return _sum_of(library).read_text() == _checksum(library, key)
    except (OSError, ValueError):
        return False


def _remove_left(folder: Path) -> None:
    """Removes what builds left that were killed; one that goes on now is younger."""
    for file in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _KILLED_AFTER:
                file.unlink()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        abi = library.quadric_abi()
    except (OSError, AttributeError) as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # made for another machine: the next call builds it again
        raise RuntimeError(f"the library {path} could not be loaded ({error}): try again") from None
    if abi != _ABI:
        raise RuntimeError(f"the library {path} has version {abi}, not {_ABI}: delete it")
    for shape in ("star", "full"):
        for name, pointers in (("forward", 3), ("backward", 5)):
            function = getattr(library, f"quadric_{shape}_{name}")
            function.restype = None
            # Tensors, the table's three columns, five sizes, threads.
            function.argtypes = [
                *[ctypes.c_void_p] * (pointers + 3),
                *[ctypes.c_int64] * 5,
                ctypes.c_int,
            ]
    return library


def _check(library: ctypes.CDLL) -> None:
    """Compares small cases with results worked out by hand: a broken build is never used."""
    nine = [2.0] * 9
    cases: list[tuple[Blocks, list[float], list[float], list[float], list[float]]] = [
        # blocks, eigenvalues, z, output, gradients of z and eigenvalues for a gradient of ones
        (
            eigen_blocks(4, 2),
            [10.0, 100.0],
            [1.0, 2.0, 3.0, 4.0],
            [941.0, 2.0, 3.0, 4.0],
            [1.0, 41.0, 601.0, 1.0, 4.0, 9.0],
        ),
        (
            eigen_blocks(20, 9),
            [1.0] * 18,
            [1.0, *nine] * 2,
            [37.0, *nine] * 2,
            ([1.0] + [5.0] * 9) * 2 + [4.0] * 18,
        ),
        (
            shared_blocks(2, 2),
            [0.0, 10.0, 100.0, 0.0],
            [1.0, 2.0],
            [41.0, 102.0],
            [201.0, 41.0, 1.0, 4.0, 1.0, 4.0],
        ),
        (shared_blocks(8, 8), [1.0] * 64, [2.0] * 8, [34.0] * 8, [33.0] * 8 + [4.0] * 64),
    ]
    for blocks, values, z, out, gradients in cases:
        for rows, pixels in ((1, 1), (17, 1), (1, 2), (2, 19)):
            layout = (rows, len(z), pixels)
            lam = torch.tensor(values, dtype=torch.float32, device="cpu")
            row = torch.tensor(z, dtype=torch.float32, device="cpu")
            linear = row.reshape(1, -1, 1).repeat(rows, 1, pixels)
            found, result = torch.zeros_like(linear), torch.zeros_like(linear)
            sums = torch.zeros_like(lam)
            _call(library, "forward", [linear, found, lam], blocks, layout)
            kept = found if blocks.shape == "star" else linear
            ones = torch.ones_like(linear)
            _call(library, "backward", [ones, kept, lam, result, sums], blocks, layout)
            got = [found[-1, :, -1].tolist(), result[-1, :, -1].tolist()]
            got.append((sums / (rows * pixels)).tolist())
            if got != [out, gradients[: len(z)], gradients[len(z) :]]:
                raise RuntimeError(f"the kernels computed a wrong result in their self-test: {got}")


@functools.lru_cache(maxsize=1024)
def _table(blocks: Blocks) -> tuple[list[ctypes.Array[ctypes.c_int32]], tuple[int, ...]]:
    """The blocks as the kernels take them: the arrays themselves, and their addresses and sizes."""
    table = blocks.table
    kind = ctypes.c_int32 * len(table)
    arrays = [kind(*column) for column in zip(*table, strict=True)]
    addresses = (ctypes.addressof(array) for array in arrays)
    return arrays, (*addresses, len(table), blocks.num_eigenvalues)


def _layout(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """A contiguous or channels_last tensor as (outer, channels, inner)."""
    channels = tensor.shape[dim]
    inner = math.prod(tensor.shape[dim + 1 :]) if dim < -1 and tensor.is_contiguous() else 1
    return tensor.numel() // (channels * inner), channels, inner


def _call(
    library: ctypes.CDLL,
    name: str,
    tensors: list[Tensor],
    blocks: Blocks,
    layout: tuple[int, int, int],
) -> None:
    threads = 1 if math.prod(layout) < _SMALL else torch.get_num_threads()
    function = getattr(library, f"quadric_{blocks.shape}_{name}")
    pointers = [tensor.data_ptr() for tensor in tensors]
    function(*pointers, *_table(blocks)[1], *layout, threads)


def _as_float(eigenvalues: Tensor, blocks: Blocks) -> Tensor:
    if eigenvalues.device.type != "cpu" or eigenvalues.numel() != blocks.num_eigenvalues:
        # The kernels would read other memory.
        raise InputError(
            f"the kernels need {blocks.num_eigenvalues} eigenvalues on the CPU, got "
            f"{eigenvalues.numel()} on {eigenvalues.device}: move the layer to one device"
        )
    if eigenvalues.dtype == torch.float32 and eigenvalues.is_contiguous():
        return eigenvalues
    return eigenvalues.detach().float().contiguous()


def forward(z: Tensor, out: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int) -> None:
    """Writes z + S z^2 into `out`, a tensor of z's layout or `z` itself."""
    assert _state.library is not None
    lam = _as_float(eigenvalues, blocks)
    _call(_state.library, "forward", [z, out, lam], blocks, _layout(z, dim))


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the eigenvalues; arguments as in `torch_views.backward`."""
    assert _state.library is not None
    lam = _as_float(eigenvalues, blocks)
    same = grad.dtype == kept.dtype and grad.stride() == kept.stride()
    if not same or grad.is_neg():  # a negative view has the memory of the tensor itself
        grad = torch.empty_like(kept).copy_(grad)
    result = torch.empty_like(kept)
    sums = torch.empty(blocks.num_eigenvalues, dtype=torch.float32, device="cpu")
    tensors = [grad, kept, lam, result, sums]
    _call(_state.library, "backward", tensors, blocks, _layout(kept, dim))
    return result, sums.to(eigenvalues.dtype)


if os.environ.get("QUADRIC_KERNELS") == "0":
    _state.reason = "switched off by QUADRIC_KERNELS=0: call quadric.use_kernels(True)"
else:
    _take(_built)
