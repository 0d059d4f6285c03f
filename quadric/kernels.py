"""Fused epilogues: the squares of the eigen and the shared neuron in one pass forward and one
backward.

`use_kernels(True)` compiles `kernels.cpp` with the machine's own C++ compiler, once; the library is
kept in a cache folder (`$QUADRIC_CACHE`, or the user's cache) under a name that depends on the
source, the compiler and the processor, written in full before it gets that name, and loaded only if
it still is what was written (a file cut short would end the process). It is called through ctypes
and needs neither torch's headers nor a build tool. Importing quadric never builds anything.

The kernels serve float32 on the CPU, contiguous or channels_last. Everything else, a machine
without a compiler, and any failure run the plain operators; `reason()` says why.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("kernels.cpp")
_HEADER = Path(__file__).with_name("vectors.h")
_ABI = 8
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

_VECTOR = 16
"""Channels of the widest neuron or group that the kernels with a BatchNorm take."""


@dataclass
class _State:
    library: ctypes.CDLL | None = None
    has_norm: bool = False
    enabled: bool = False
    reason: str | None = "not switched on: call quadric.use_kernels(True)"


_state = _State()


def use_kernels(enabled: bool = True) -> bool:
    """Switches the fused kernels on or off, building them where that has not been done yet.

    Args:
        enabled: whether to use them.

    Returns:
        Whether they are active. If not, `quadric.kernels.reason()` says why.
    """
    if not enabled:
        _state.enabled = False
        _state.reason = "switched off: call quadric.use_kernels(True)"
        return False
    if _state.library is None:
        try:
            _state.library = _load(_build())
            _check(_state.library)
            _state.has_norm = _state.library.quadric_vectors() > 0
        except Exception as error:  # a fast path must never be the reason that nothing runs
            _state.library, _state.enabled = None, False
            _state.reason = f"{error}"
            return False
    _state.enabled, _state.reason = True, None
    return True


def active() -> bool:
    """Whether the fused kernels are in use."""
    return _state.enabled


def reason() -> str | None:
    """Why the kernels are not active, or None if they are."""
    return _state.reason


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise RuntimeError("no C++ compiler was found: install g++ or clang++, or set CXX")


def _cache() -> Path:
    """A folder of this user's that can be written to."""
    named = os.environ.get("QUADRIC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(named) if named else Path(base) / "quadric"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        folder = Path(tempfile.gettempdir()) / f"quadric-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            raise RuntimeError(
                f"the cache folder {folder} belongs to another user: set QUADRIC_CACHE"
            ) from None
        return folder


def _processor() -> str:
    """What the machine's own instruction set depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "".join(kept[:2])


def _build() -> Path:
    """Compiles the source unless that has been done, and returns the library's path."""
    compiler = _compiler()
    version = _run([compiler, "--version"]).stdout
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    text = _SOURCE.read_bytes() + _HEADER.read_bytes()
    key = "\n".join([version, " ".join(_FLAGS), native, _processor(), sys.platform]).encode()
    name = f"kernels-{hashlib.sha256(text + key).hexdigest()[:20]}.so"
    target = _cache() / name
    if _is_whole(target):
        return target
    _remove_left(target.parent)
    handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        attempts = [[native, "-fopenmp"], ["-fopenmp"], []]
        for extra in attempts:
            command = [compiler, *_FLAGS, *extra, str(_SOURCE), "-o", unfinished]
            done = _run(command)
            if done.returncode == 0:
                written = Path(f"{unfinished}{_SUM}")
                written.write_text(_checksum(Path(unfinished)))
                for file in (unfinished, written):  # a cache may be shared
                    os.chmod(file, 0o644)
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


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _sum_of(library: Path) -> Path:
    return library.with_name(library.name + _SUM)


def _is_whole(library: Path) -> bool:
    """Whether a library is there, as it was built."""
    try:
        return _sum_of(library).read_text() == _checksum(library)
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
            path.unlink(missing_ok=True)  # made for another machine: build it anew next time
        raise RuntimeError(f"the library {path} could not be loaded ({error}): try again") from None
    if abi != _ABI:
        raise RuntimeError(f"the library {path} has version {abi}, not {_ABI}: delete it")
    # How many pointers each takes, and how many flags; five sizes stand between them.
    arguments = {
        "forward": (9, 2),
        "backward": (9, 1),
        "norm_forward": (13, 3),
        "norm_backward": (14, 3),
    }
    for name, (pointers, flags) in arguments.items():
        for kind in ("eigen", "shared"):
            function = getattr(library, f"quadric_{kind}_{name}")
            function.restype = None if name in ("forward", "backward") else ctypes.c_int
            function.argtypes = [
                *[ctypes.c_void_p] * pointers,
                *[ctypes.c_int64] * 5,
                *[ctypes.c_double] * name.startswith("norm"),
                *[ctypes.c_int] * flags,
            ]
    return library


def _check(library: ctypes.CDLL) -> None:
    """Small comparisons with arithmetic in the head, so that a broken build is never used."""
    # One neuron of rank 2 and a linear channel, two of rank 9, of which the first has 16 channels
    # from its own on, sixteen of them, and one of rank 16; one group of two outputs.
    eigen = Table((0, 3), (3, 1), (0, 2), 2), [10.0, 100.0]
    wide = Table((0, 10), (10, 10), (0, 9), 18), [1.0] * 18
    many = eigen_table((9,) * 16), [1.0] * 144
    widest = Table((0,), (17,), (0,), 16), [1.0] * 16
    nine, sixteen = [2.0] * 9, [2.0] * 16
    shared = Table((0,), (2,), (0,), 4), [0.0, 10.0, 100.0, 0.0]
    _Numbers = list[float]
    expected: list[tuple[str, Table, _Numbers, _Numbers, _Numbers, _Numbers]] = [
        ("eigen", *eigen, [1, 2, 3, 4], [941, 2, 3, 4], [1, 41, 601, 1, 4, 9]),
        ("eigen", *wide, [1.0, *nine] * 2, [37.0, *nine] * 2, ([1.0] + [5.0] * 9) * 2 + [4.0] * 18),
        (
            *("eigen", *many, [1.0, *nine] * 16, [37.0, *nine] * 16),
            ([1.0] + [5.0] * 9) * 16 + [4.0] * 144,
        ),
        ("eigen", *widest, [1.0, *sixteen], [65.0, *sixteen], [1.0] + [5.0] * 16 + [4.0] * 16),
        ("shared", *shared, [1, 2], [41, 102], [201, 41, 1, 4, 1, 4]),
    ]
    for kind, table, values, z, out, gradients in expected:
        # One row of channels, rows enough for the loops over several, and planes.
        for rows, pixels in ((1, 1), (17, 1), (1, 2)):
            shape = (rows, len(z), pixels)
            lam = torch.tensor(values, dtype=torch.float32, device="cpu")
            row = torch.tensor(z, dtype=torch.float32, device="cpu")
            linear = row.reshape(1, -1, 1).repeat(rows, 1, pixels)
            found, finished = torch.zeros_like(linear), torch.zeros_like(linear)
            forward = getattr(library, f"quadric_{kind}_forward")
            _call(forward, [linear, None, found, lam, None, None], table, shape, 0)
            shift = torch.tensor([-3.0] * len(z), dtype=torch.float32, device="cpu")
            scale = torch.tensor([2.0] * len(z), dtype=torch.float32, device="cpu")
            _call(forward, [linear, None, finished, lam, scale, shift], table, shape, 1)
            ones, result = torch.ones_like(linear), torch.zeros_like(linear)
            sums = torch.zeros(len(values), dtype=torch.float32, device="cpu")
            of_bias = torch.zeros(len(z), dtype=torch.float32, device="cpu")
            kept = found if kind == "eigen" else linear
            tensors = [ones, kept, lam, result, sums, of_bias if pixels == 1 else None]
            _call(getattr(library, f"quadric_{kind}_backward"), tensors, table, shape)
            sums /= rows * pixels
            got = [t[i, :, -1].tolist() for t in (found, finished) for i in range(rows)]
            got += [result[i, :, -1].tolist() + sums.tolist() for i in range(rows)]
            after = [max(2.0 * v - 3.0, 0.0) for v in out]
            wanted = [*[out] * rows, *[after] * rows, *[gradients] * rows]
            if pixels == 1 and library.quadric_vectors() and table.widest <= _VECTOR:
                got += _with_norm(library, kind, table, linear, lam)
                wanted += [after, [2.0 * g for g in gradients], [*[rows] * len(z)]]
                wanted += [[rows * v for v in out], [v / 2 for v in out], [v * v / 4 for v in out]]
            if pixels == 1:
                without = linear - 1.0
                ones = torch.ones(len(z), dtype=torch.float32, device="cpu")
                _call(forward, [without, ones, without, lam, None, None], table, shape, 0)
                got += [*without[..., 0].tolist(), of_bias.tolist()]
                wanted += [*[out] * rows, [rows * g for g in gradients[: len(z)]]]
            if got != wanted:
                raise RuntimeError(f"the kernels computed a wrong result in their self-test: {got}")


def _with_norm(
    library: ctypes.CDLL, kind: str, table: Table, linear: Tensor, lam: Tensor
) -> list[list[float]]:
    """For the self-test, 2 x - 3 as a BatchNorm behind equal rows: the output, the gradients of all
    inputs, and mean and variance of two rows, one of them zero.
    """
    rows, channels, _ = shape = (len(linear), linear.shape[1], 1)
    numbers = torch.tensor([2.0, -3.0], dtype=torch.float32, device="cpu")
    weight, bias = numbers[:, None].repeat(1, channels)
    mean, var = torch.zeros_like(weight, dtype=torch.float64), torch.ones_like(bias).double()
    out, result = torch.zeros_like(linear), torch.zeros_like(linear)
    sums = torch.zeros(len(lam), dtype=torch.float32, device="cpu")
    own = torch.zeros(2, channels, dtype=torch.float32, device="cpu")
    forward = getattr(library, f"quadric_{kind}_norm_forward")
    backward = getattr(library, f"quadric_{kind}_norm_backward")
    norm = (lam, weight, bias)
    given = [mean.float(), var.float(), None, None]
    _call(forward, [linear, None, out, *norm, *given], table, shape, 0.0, 1, 0)
    summed = torch.zeros_like(linear)
    _call(forward, [linear, -out, summed, *norm, *given], table, shape, 0.0, 1, 0)
    out += summed  # zero, unless something was lost
    tensors = [torch.ones_like(linear), linear, *norm, mean, var, result, sums, own[1], own[0]]
    _call(backward, tensors, table, shape, 0.0, 1, 0)
    two = torch.stack([linear[0], torch.zeros_like(linear[0])])
    tensors = [two, None, torch.zeros_like(two), *norm, None, None, mean, var]
    _call(forward, tensors, table, (2, channels, 1), 1.0, 1, 1)
    gradients = result[-1, :, 0].tolist() + (sums / rows).tolist()
    return [out[-1, :, 0].tolist(), gradients, *own.tolist(), mean.tolist(), var.tolist()]


@dataclass(frozen=True)
class Table:
    """Blocks of channels: first channel, number of channels, first eigenvalue of each."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    offset: tuple[int, ...]
    eigenvalues: int

    # The columns as C arrays, which live as long as the table, and the table as the kernels take
    # it: their addresses and two counts. Made at once: no thread sees one without the other.
    _arrays: tuple[ctypes.Array[ctypes.c_int32], ...] = field(init=False, compare=False)
    arguments: tuple[int, ...] = field(init=False, compare=False)
    widest: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kind = ctypes.c_int32 * len(self.start)
        arrays = tuple(kind(*column) for column in (self.start, self.size, self.offset))
        addresses = (ctypes.addressof(array) for array in arrays)
        object.__setattr__(self, "widest", max(self.size))
        object.__setattr__(self, "_arrays", arrays)
        object.__setattr__(self, "arguments", (*addresses, len(self.start), self.eigenvalues))

    def __reduce__(self) -> tuple[object, ...]:
        # A copy has arrays of its own.
        return Table, (self.start, self.size, self.offset, self.eigenvalues)


@functools.lru_cache(maxsize=1024)
def eigen_table(ranks: tuple[int, ...]) -> Table:
    """Neurons of these ranks, one behind the other."""
    start, offset, channel, eigen = [], [], 0, 0
    for rank in ranks:
        start.append(channel)
        offset.append(eigen)
        channel, eigen = channel + rank + 1, eigen + rank
    return Table(tuple(start), tuple(r + 1 for r in ranks), tuple(offset), eigen)


@functools.lru_cache(maxsize=1024)
def shared_table(sizes: tuple[int, ...]) -> Table:
    """Groups of these sizes, one behind the other."""
    start, offset, channel, eigen = [], [], 0, 0
    for size in sizes:
        start.append(channel)
        offset.append(eigen)
        channel, eigen = channel + size, eigen + size * size
    return Table(tuple(start), sizes, tuple(offset), eigen)


Layout = tuple[int, int, int]


def layout(tensor: Tensor, dim: int) -> Layout | None:
    """The tensor as (outer, channels, inner) if the kernels can take it, else None.

    Args:
        tensor: the output of a linear map.
        dim: its channel dimension, counted from the end.
    """
    if not _state.enabled or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        return None
    channels = tensor.shape[dim]
    if tensor.numel() == 0 or channels == 0:
        return None
    if tensor.is_contiguous():
        inner = math.prod(tensor.shape[dim + 1 :]) if dim < -1 else 1
        return (tensor.numel() // (channels * inner), channels, inner)
    if dim < -1 and channels_last(tensor, dim):
        return (tensor.numel() // channels, channels, 1)
    return None


_FORMATS = {(4, -3): torch.channels_last, (5, -4): torch.channels_last_3d}


def channels_last(tensor: Tensor, dim: int) -> bool:
    """Whether the numbers lie densely in memory, those of one position next to each other.

    Args:
        tensor: the output of a linear map.
        dim: its channel dimension, counted from the end.
    """
    # Much faster where it is known, as it makes no view.
    known = _FORMATS.get((tensor.dim(), dim))
    if known is not None:
        return tensor.is_contiguous(memory_format=known)
    return tensor.movedim(dim, -1).is_contiguous()


def _call(
    function: object,
    tensors: Sequence[Tensor | None],
    table: Table,
    shape: Layout,
    *flags: float,
) -> object:
    threads = 1 if math.prod(shape) < _SMALL else torch.get_num_threads()
    pointers = [t if t is None else t.data_ptr() for t in tensors]
    done: object = function(*pointers, *table.arguments, *shape, *flags, threads)  # type: ignore[operator]
    return done


def _float_vector(values: Tensor, count: int) -> Tensor:
    if values.device.type != "cpu":
        raise ValueError(
            f"the kernels need numbers on the CPU, got {values.device}: move the layer there"
        )
    if values.numel() != count:  # the kernels would read on behind them
        raise ValueError(
            f"the kernels need {count} numbers for these channels, got {values.numel()}: give a "
            "vector of that length"
        )
    if values.dtype == torch.float32 and values.is_contiguous():
        return values
    return values.detach().float().contiguous()


def _empty(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    # The default device may be another one, whose pointer the kernels could not follow.
    return torch.empty(count, dtype=dtype, device="cpu")


def _check_rows(shape: Layout) -> None:
    if shape[2] != 1:
        raise ValueError(
            f"a bias is added only to rows of channels, got {shape[2]} numbers of each channel in "
            "a row: add it before"
        )


def same_layout(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` in memory as `like` is, copied only where it is not."""
    if (
        tensor.dtype == like.dtype and tensor.stride() == like.stride() and not tensor.is_neg()
    ):  # in memory the negative of a tensor is the tensor itself
        return tensor
    return torch.empty_like(like).copy_(tensor)


def forward(
    kind: str,
    linear: Tensor,
    result: Tensor,
    eigenvalues: Tensor,
    table: Table,
    shape: Layout,
    shift: Tensor | None = None,
    relu: bool = False,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Writes the neuron's output into `result`, which may be `linear` itself.

    Args:
        kind: "eigen" or "shared".
        linear: the linear map's output.
        result: a tensor of the same layout.
        eigenvalues: one flat vector.
        table: the blocks of channels.
        shape: the layout of `linear`.
        shift: added to each channel behind the squares.
        relu: whether a ReLU follows.
        scale: multiplies each channel before the shift.
        bias: is added to `linear` itself first, in the same pass; only where channels are the last
            dimension in memory.
    """
    assert _state.library is not None
    lam = _float_vector(eigenvalues, table.eigenvalues)
    shift = None if shift is None else _float_vector(shift, shape[1])
    scale = None if scale is None else _float_vector(scale, shape[1])
    if bias is not None:
        _check_rows(shape)
        bias = _float_vector(bias, shape[1])
    function = getattr(_state.library, f"quadric_{kind}_forward")
    _call(function, [linear, bias, result, lam, scale, shift], table, shape, int(relu))


def backward(
    kind: str,
    grad: Tensor,
    kept: Tensor,
    eigenvalues: Tensor,
    table: Table,
    shape: Layout,
    bias: bool = False,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the linear map's output, of the eigenvalues, and of a bias that was added with
    the squares.

    Args:
        kind: "eigen" or "shared".
        grad: the gradient of the output.
        kept: eigen: the output; shared: the linear map's output.
        eigenvalues: one flat vector.
        table: the blocks of channels.
        shape: the layout of `kept`.
        bias: whether that of the bias is asked for; only where channels are the last dimension in
            memory.
        overwrite: whether the result may be written into `grad`, where that can be done.
    """
    assert _state.library is not None
    if bias:
        _check_rows(shape)
    lam = _float_vector(eigenvalues, table.eigenvalues)
    given, grad = grad, same_layout(grad, kept)
    # Only the loops over vectors of channels are written for that.
    in_place = (overwrite or grad is not given) and shape[2] == 1 and has_norm(table.widest)
    result = grad if in_place else torch.empty_like(kept)
    sums = _empty(table.eigenvalues)
    of_bias = _empty(shape[1]) if bias else None
    function = getattr(_state.library, f"quadric_{kind}_backward")
    _call(function, [grad, kept, lam, result, sums, of_bias], table, shape)
    return result, sums.to(eigenvalues.dtype), of_bias


# ------------------------------------------------------------------------------------------------
# With a BatchNorm and a ReLU behind the squares
# ------------------------------------------------------------------------------------------------


def has_norm(widest: int) -> bool:
    """Whether there are kernels with a BatchNorm for rows of channels: neurons that fit a vector,
    and a processor that has it.

    Args:
        widest: the number of channels of the widest neuron or group.
    """
    return _state.enabled and _state.has_norm and widest <= _VECTOR


@dataclass(frozen=True)
class Norm:
    """A BatchNorm and what follows it.

    Attributes:
        weight: multiplies each channel, or None.
        bias: is added to it, or None.
        eps: is added to the variance.
        relu: whether a ReLU follows.
        of_batch: whether mean and variance are those of the batch, and not given.
    """

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    relu: bool
    of_batch: bool

    @property
    def flags(self) -> tuple[float, int, int]:
        """As the kernels take them."""
        return self.eps, int(self.relu), int(self.of_batch)

    def vectors(self, channels: int) -> list[Tensor | None]:
        """Likewise weight and bias."""
        both = (self.weight, self.bias)
        return [None if v is None else _float_vector(v, channels) for v in both]


def _call_norm(
    kind: str,
    name: str,
    tensors: Sequence[Tensor | None],
    table: Table,
    shape: Layout,
    norm: Norm,
) -> None:
    function = getattr(_state.library, f"quadric_{kind}_{name}")
    if not _call(function, tensors, table, shape, *norm.flags):
        raise RuntimeError(f"there is no kernel {name} for these channels: ask has_norm first")


def _statistics(values: Tensor, channels: int) -> Tensor:
    if values.shape != (channels,):
        raise ValueError(
            f"mean and variance must have one number for each of {channels} channels, got the "
            f"shape {tuple(values.shape)}: give vectors"
        )
    if values.dtype == torch.float64 and values.is_contiguous():
        return values
    return values.detach().double().contiguous()


def norm_forward(
    kind: str,
    linear: Tensor,
    result: Tensor,
    eigenvalues: Tensor,
    table: Table,
    shape: Layout,
    norm: Norm,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    *,
    added: Tensor | None = None,
    keep: bool = True,
) -> tuple[Tensor, Tensor] | None:
    """Writes the neuron's output behind BatchNorm and ReLU into `result`, which may be `linear`.

    Args:
        kind: "eigen" or "shared".
        linear: the linear map's output.
        result: a tensor of the same layout.
        eigenvalues: one flat vector.
        table: the blocks of channels.
        shape: the layout of `linear`.
        norm: what follows the squares.
        mean: of each channel, unless those of the batch are asked for.
        var: likewise its (biased) variance.
        added: is added in front of the ReLU; it may not share memory with `result`.
        keep: whether mean and variance are asked for.

    Returns:
        Mean and variance, in float64.
    """
    channels = shape[1]
    lam = _float_vector(eigenvalues, table.eigenvalues)
    given: list[Tensor | None] = [None, None]
    if not norm.of_batch:
        if mean is None or var is None:
            raise ValueError("mean and variance must be given unless they are those of the batch")
        given = [_float_vector(mean, channels), _float_vector(var, channels)]
    if added is not None and added.shape != linear.shape:
        raise ValueError(
            f"what is added must have the output's shape {tuple(linear.shape)}, got "
            f"{tuple(added.shape)}: expand it first"
        )
    kept = (_empty(channels, torch.float64), _empty(channels, torch.float64)) if keep else None
    added = None if added is None else same_layout(added, linear)
    tensors = [linear, added, result, lam, *norm.vectors(channels), *given, *(kept or (None, None))]
    _call_norm(kind, "norm_forward", tensors, table, shape, norm)
    return kept


def norm_backward(
    kind: str,
    grad: Tensor,
    linear: Tensor,
    eigenvalues: Tensor,
    table: Table,
    shape: Layout,
    norm: Norm,
    mean: Tensor,
    var: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the linear map's output, the eigenvalues, and BatchNorm's weight and bias.

    Args:
        kind: "eigen" or "shared".
        grad: the gradient of the ReLU's output.
        linear: the linear map's output.
        eigenvalues: one flat vector.
        table: the blocks of channels.
        shape: the layout of `linear`.
        norm: what follows the squares.
        mean: what `norm_forward` returned.
        var: likewise.
    """
    lam = _float_vector(eigenvalues, table.eigenvalues)
    grad = same_layout(grad, linear)
    channels = shape[1]
    own = (_empty(table.eigenvalues), _empty(channels), _empty(channels))
    result = torch.empty_like(linear)
    statistics = (_statistics(mean, channels), _statistics(var, channels))
    tensors = [grad, linear, lam, *norm.vectors(channels), *statistics, result, *own]
    _call_norm(kind, "norm_backward", tensors, table, shape, norm)
    return result, own[0].to(eigenvalues.dtype), *own[1:]
