"""Builds, loads and calls csrc/squares.cpp: the squares in one pass forward and one backward.

`use_kernels(True)` compiles the source with the machine's own C++ compiler, once. The library is
kept in a folder that is closed to other users (`cache.py`). Its name holds a checksum of what it
was built from and one of itself, so a damaged one is not loaded. It is called through ctypes and
needs neither torch's headers nor a build tool. Nothing is built unasked, but a library that was
built before is used by itself: it is looked for, loaded and checked where kernels could run for the
first time. `QUADRIC_KERNELS=0` in the environment or `use_kernels(False)` turns it off.

The kernels serve float32 on the CPU, contiguous or channels_last. Everything else, a machine
without a compiler, and any failure use torch's own operators; `reason()` says why.
"""

from __future__ import annotations

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quadric.errors import InputError, InputTypeError
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from quadric.ops.cache import existing_folders, open_to_others, private_folder
from quadric.ops.torch_probes import answered_while_tracing

_SOURCE = Path(__file__).parent / "csrc" / "squares.cpp"
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


@dataclass
class _State:
    looked: bool = False
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
    _state.looked = True
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


@answered_while_tracing
def _look() -> bool:
    """Takes a library that was built before, once in a process."""
    if not _state.looked:
        _state.looked = True
        if os.environ.get("QUADRIC_KERNELS") == "0":
            _state.reason = "switched off by QUADRIC_KERNELS=0: call quadric.use_kernels(True)"
        else:
            _take(_built)
    return True


def active() -> bool:
    """Whether the fused kernels are in use."""
    return _look() and _state.enabled


def reason() -> str | None:
    """Why the kernels are not active, or None if they are."""
    _look()
    return _state.reason


def offer() -> str | None:
    """What one call would bring on this machine; None if kernels are used or were switched off."""
    if reason() != _NOT_BUILT or not _compilers():
        return None
    return (
        "float32 on the CPU would be faster with fused kernels: quadric.use_kernels() builds them, "
        "once for this machine"
    )


_NOT_BUILT = "not built yet: call quadric.use_kernels(True)"


def _compilers() -> list[str]:
    """The C++ compilers of this machine."""
    names = [name for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name]
    return [path for path in map(shutil.which, names) if path]


@functools.cache
def _processor() -> str:
    """What the machine's own instruction set depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "".join(kept[:2])


_NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def _name(library: bytes | None = None) -> str:
    """The file name of a built library, or the pattern of all that this machine can use."""
    made_of = "\n".join([*_FLAGS, _NATIVE, _processor(), sys.platform]).encode()
    key = hashlib.sha256(_SOURCE.read_bytes() + made_of).hexdigest()[:20]
    return f"kernels-{key}-{hashlib.sha256(library).hexdigest()[:20] if library else '*'}.so"


def _built() -> Path:
    """A library that was built earlier by this user, whole and closed to others."""
    for folder in existing_folders():
        for library in sorted(folder.glob(_name())):
            if not open_to_others(library) and library.name == _name(library.read_bytes()):
                return library
    raise RuntimeError(_NOT_BUILT)


def _build() -> Path:
    """Compiles the source unless that has been done, and returns the library's path."""
    folder = private_folder()
    try:
        return _built()
    except RuntimeError:
        compiler = next(iter(_compilers()), None)
    if compiler is None:
        raise RuntimeError("no C++ compiler was found: install g++ or clang++, or set CXX")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place, "made.so")
        for extra in ([_NATIVE, "-fopenmp"], ["-fopenmp"], []):
            command = [compiler, *_FLAGS, *extra, str(_SOURCE), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                made.chmod(0o600)
                # Under its name it is whole at any time, and so is one that stood there.
                return made.replace(folder / _name(made.read_bytes()))
    lines = done.stderr.strip().splitlines() or ["no message"]
    said = next((line for line in lines if "error" in line), lines[0])
    raise RuntimeError(f"{compiler} failed to build the kernels: {said}")


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(f"the library {path} could not be loaded ({error}): delete it") from None
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
    """Compares small cases, exact in float32, with torch: a broken build is never used."""

    def numbers(*shape: int) -> Tensor:
        count = torch.arange(math.prod(shape), dtype=torch.float32, device="cpu")
        return (count % 5 - 2).reshape(shape)

    for blocks in (
        eigen_blocks(4, 2),
        eigen_blocks(20, 9),
        shared_blocks(3, 2),
        shared_blocks(8, 8),
    ):
        lam = numbers(blocks.num_eigenvalues)
        places = blocks.places()
        # Elementwise, as the first matrix product of a process would start all its threads.
        dense = torch.zeros(blocks.channels, blocks.channels, device="cpu")
        dense[places] = lam
        matrix = dense.unsqueeze(-1)
        for rows, pixels in ((1, 1), (17, 1), (1, 2), (2, 19)):
            layout = (rows, blocks.channels, pixels)
            z, grad = numbers(*layout), numbers(*layout) + 1
            squares = z * z
            out = z + (matrix * squares.unsqueeze(1)).sum(2)
            slopes = grad + 2 * z * (matrix * grad.unsqueeze(2)).sum(1)
            sums = (grad.unsqueeze(2) * squares.unsqueeze(1)).sum((0, 3))[places]
            computed = [torch.zeros_like(tensor) for tensor in (out, slopes, sums)]
            _call(library, "forward", [z, computed[0], lam], blocks, layout)
            kept = out if blocks.shape == "star" else z
            _call(library, "backward", [grad, kept, lam, *computed[1:]], blocks, layout)
            if not all(map(torch.equal, computed, (out, slopes, sums))):
                raise RuntimeError(f"the kernels failed their self-test for {blocks}, {layout}")


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
    if not eigenvalues.is_cpu or eigenvalues.numel() != blocks.num_eigenvalues:
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
