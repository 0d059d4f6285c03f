"""What `quadric bench` needs between the words of its options and the cases to time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from quadric import zoo
from quadric.errors import InputError
from quadric.models.named import build_network
from quadric.ops import native

EXPENSIVE = 64
"""Times the MACs of linear above which a neuron is timed only if it is named."""

REPEATS = {False: 5, True: 12}
"""Timed runs by default, of a single comparison and of the suite."""


def chosen(what: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Checks the names that an option lists.

    Args:
        what: the option, the subject of the message.
        names: what was asked for.
        known: what there is.

    Returns:
        The names, each once.

    Raises:
        InputError: if there is no name, or one that is not known.
    """
    for name in names:
        if name not in known:
            raise InputError(f"{what} must be among {', '.join(known)}, got {name!r}")
    if not names:
        raise InputError(f"{what} must name at least one of {', '.join(known)}, got none")
    return list(dict.fromkeys(names))


def usable_paths(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The paths that this machine can take.

    Args:
        paths: those that were asked for.

    Returns:
        The paths, with plain in place of kernels where they cannot be built, and notes on that.

    Raises:
        InputError: if a path is compiled and torch finds no compiler.
    """
    if any(path.startswith("compiled") for path in paths):
        _require_compiler()
    if not any(path.startswith(("kernels", "compiled")) for path in paths):
        return list(paths), []
    if native.use_kernels(True):
        return list(paths), ["fused kernels are on, for float32 on the CPU"]
    plain = dict.fromkeys(path.replace("kernels", "plain") for path in paths)
    return list(plain), [f"fused kernels are off: {native.reason()}"]


def _require_compiler() -> None:
    """Refuses to compile where torch finds no compiler, before anything is timed."""
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"paths may hold compiled only where torch finds a C++ compiler, got: {text[:200]}: "
            "install one, or leave compiled out"
        ) from error


def affordable(n: int) -> tuple[list[str], list[str]]:
    """All neurons but those that take hours.

    Args:
        n: the inputs of the widest neuron.

    Returns:
        The neurons, and a note on those that are left out.
    """
    names = list(zoo.neurons())
    expensive = [name for name in names if _layer_ratio(name, n) > EXPENSIVE]
    note = (
        f"left out, for more than {EXPENSIVE} times the MACs of linear: {', '.join(expensive)}; "
        "to time them nevertheless, name them with --neurons"
    )
    return [name for name in names if name not in expensive], [note] if expensive else []


def _layer_ratio(neuron: str, n: int) -> float:
    """The MACs of a layer whose neurons see n inputs, as a ratio to linear's."""
    outputs = 64
    return zoo.get_neuron(neuron).make_rule().num_macs(n, outputs) / (n * outputs)


def widest(model: str) -> int:
    """The number of inputs of a network's widest neuron.

    Args:
        model: a network of quadric.models, "transformer", or module:factory.
    """
    if model == "transformer":
        return 1024
    network = build_network(model, device="meta")
    weights = [getattr(module, "weight", None) for module in network.modules()]
    return max((w[0].numel() for w in weights if isinstance(w, Tensor) and w.dim() > 1), default=1)
