"""Builds, loads and calls csrc/: the squares in one pass forward and one backward.

`use_kernels(True)` compiles the source with the machine's own C++ compiler, once. The library is
kept in a folder that is closed to other users (`cache.py`). Its name holds a checksum of what it
was built from and one of itself, so a damaged one is not loaded. It is called through ctypes and
needs neither torch's headers nor a build tool. Nothing is built unasked, but a library that was
built before is used by itself: it is looked for, loaded and checked where kernels could run for the
first time. `QUADRIC_KERNELS=0` in the environment or `use_kernels(False)` turns it off.

The kernels serve float32, bfloat16 and float16 on the CPU, contiguous or channels_last. Everything
else, a machine without a compiler, and any failure use torch's own operators; `reason()` says why.
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


TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The kernels' numbers for the types of tensors that they take."""


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


def serves(dtype: torch.dtype) -> bool:
    """Whether the kernels are in use and know this type of numbers."""
    return dtype in TYPES and active()


def reason() -> str | None:
    """Why the kernels are not active, or None if they are."""
    _look()
    return _state.reason


def switched_off() -> bool:
    """Whether kernels of every kind were switched off, by a call or by the environment."""
    return (reason() or "").startswith("switched off")


def offer() -> str | None:
    """What one call would bring on this machine; None if kernels are used or were switched off."""
    if reason() != _NOT_BUILT or not _compilers():
        return None
    return (
        "layers on the CPU would be faster with fused kernels: quadric.use_kernels() builds them, "
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
    parts = [file.read_bytes() for file in sorted([_SOURCE, *_SOURCE.parent.glob("*.h")])]
    key = hashlib.sha256(b"".join(parts) + made_of).hexdigest()[:20]
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
    for name, pointers in (("forward", 4), ("backward", 7)):
        function = getattr(library, f"quadric_{name}")
        function.restype = None
        # The type of the numbers, tensors and the layer, outer, inner, threads.
        function.argtypes = [
            ctypes.c_int64,
            *[ctypes.c_void_p] * pointers,
            *[ctypes.c_int64] * 3,
        ]
    library.quadric_layer.restype = ctypes.c_void_p
    return library


def _check(library: ctypes.CDLL) -> None:
    """Compares small cases, exact in float32, with torch: a broken build is never used."""

    def numbers(*shape: int) -> Tensor:
        count = torch.arange(math.prod(shape), dtype=torch.float32, device="cpu")
        return (count % 5 - 2).reshape(shape)

    made = [eigen_blocks(4, 2), eigen_blocks(20, 9), eigen_blocks(40, 18)]
    made += [shared_blocks(3 * size - 1, size) for size in (2, 3, 8, 9, 16, 17)]
    for blocks in made:
        lam, layer = numbers(blocks.num_eigenvalues), _made(library, blocks)
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
            kept = out if blocks.shape == "star" else z
            for dtype, code in TYPES.items():
                given = [tensor.to(dtype) for tensor in (z, grad, kept)]
                if not torch.equal(given[2].float(), kept):  # too large for the format
                    continue
                computed = [torch.zeros_like(tensor) for tensor in (given[0], given[0], lam)]
                bias = torch.zeros(blocks.channels, device="cpu")
                at = (layer, rows, pixels, 1)
                pointers = [tensor.data_ptr() for tensor in (given[0], computed[0], lam)]
                library.quadric_forward(code, *pointers, *at)
                tensors = (given[1], given[2], lam, *computed[1:], bias)
                pointers = [tensor.data_ptr() for tensor in tensors]
                library.quadric_backward(code, *pointers, *at)
                wanted = (out.to(dtype), slopes.to(dtype), sums, slopes.sum((0, 2)))
                if not all(map(torch.equal, (*computed, bias), wanted)):
                    raise RuntimeError(f"the kernels failed their self-test for {blocks}, {layout}")


def _made(library: ctypes.CDLL, blocks: Blocks) -> int:
    """What the kernels take for a layer: the address of something they made."""
    runs = blocks.runs
    facts = [blocks.shape == "star", blocks.channels, blocks.groups]
    facts += [blocks.num_eigenvalues // blocks.groups, len(runs)]
    for run in runs:
        facts += [run.start, run.count, run.size, run.first, run.per_block]
    made: int = library.quadric_layer((ctypes.c_int64 * len(facts))(*facts))
    return made


@functools.cache
def _layer(blocks: Blocks) -> int:
    """The kernels' own description of the blocks, which they keep until the process ends."""
    assert _state.library is not None
    return _made(_state.library, blocks)


def _layout(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """A contiguous or channels_last tensor as (outer, inner), and how many threads share it."""
    channels, count = tensor.shape[dim], tensor.numel()
    inner = math.prod(tensor.shape[dim + 1 :]) if dim < -1 and tensor.is_contiguous() else 1
    return count // (channels * inner), inner, 1 if count < _SMALL else torch.get_num_threads()


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
    _state.library.quadric_forward(
        TYPES[z.dtype],
        z.data_ptr(),
        out.data_ptr(),
        lam.data_ptr(),
        _layer(blocks),
        *_layout(z, dim),
    )


def backward(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of z and of the eigenvalues; arguments as in `torch_views.backward`."""
    slopes, sums, _ = backward_with_bias(grad, kept, eigenvalues, blocks, dim, False)
    return slopes, sums


def backward_with_bias(
    grad: Tensor, kept: Tensor, eigenvalues: Tensor, blocks: Blocks, dim: int, biased: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `backward`, and the first gradient summed over all positions, if `biased`."""
    assert _state.library is not None
    lam = _as_float(eigenvalues, blocks)
    same = grad.dtype == kept.dtype and grad.stride() == kept.stride()
    if not same or grad.is_neg():  # a negative view has the memory of the tensor itself
        grad = torch.empty_like(kept).copy_(grad)
    result = torch.empty_like(kept)
    sums = torch.empty_like(lam)
    bias = torch.empty(blocks.channels, dtype=torch.float32, device="cpu") if biased else None
    _state.library.quadric_backward(
        TYPES[kept.dtype],
        grad.data_ptr(),
        kept.data_ptr(),
        lam.data_ptr(),
        result.data_ptr(),
        sums.data_ptr(),
        None if bias is None else bias.data_ptr(),
        _layer(blocks),
        *_layout(kept, dim),
    )
    return result, sums if lam is eigenvalues else sums.to(eigenvalues.dtype), bias
