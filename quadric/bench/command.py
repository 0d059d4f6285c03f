"""What `quadric bench` needs between the words of its options and the cases to time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quadric.errors import InputError, explained
from quadric.ops import native

EXPENSIVE = ("general", "pure")
"""Neurons with a matrix for each output: `--neurons all` leaves them out, as they take hours."""

REPEATS = {False: 3, True: 12}
"""Timed runs by default, of a single comparison and of the suite."""


def chosen(what: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Checks the names that an option lists."""
    for name in names:
        if name not in known:
            raise InputError(f"{what} must be among {', '.join(known)}, got {name!r}")
    if not names:
        raise InputError(f"{what} must name at least one of {', '.join(known)}, got none")
    return list(dict.fromkeys(names))


def usable_paths(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The paths that this machine can take."""
    if "compiled" in paths:
        from torch._inductor import cpp_builder

        rule = "paths may hold compiled only where torch finds a C++ compiler"
        with explained(rule, "install one, or leave compiled out"):
            cpp_builder.get_cpp_compiler()
    if list(paths) == ["plain"]:
        return list(paths), []
    if native.use_kernels(True):
        return list(paths), ["fused kernels are on, for float32 on the CPU"]
    plain = dict.fromkeys(path.replace("kernels", "plain") for path in paths)
    return list(plain), [f"fused kernels are off: {native.reason()}"]
