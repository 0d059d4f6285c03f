"""Which BatchNorm alone reads the output of which layer.

One run with example inputs says so: every operation that reads the storage of a layer's output is
noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from quadric.conversion.targets import Target, run_examples
from quadric.layers import QuadraticLayer
from quadric.support.modules import hooked, storage_of, tensors_in

LAYERS = (QuadraticLayer, nn.Linear, _ConvNd)
"""Whose outputs are followed; their subclasses, too."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Pair:
    """A layer and the BatchNorm that alone reads its output."""

    layer: Target  # the layer
    norm: Target  # the BatchNorm
    dims: int  # the number of dimensions of the output


def is_touched(module: nn.Module) -> bool:
    """Whether a module has hooks, or its forward was replaced."""
    return "forward" in vars(module) or any(len(getattr(module, name)) for name in _HOOKS)


def find_pairs(
    model: nn.Module, targets: Mapping[int, Target], example_inputs: Any
) -> dict[int, Pair]:
    """Finds the pairs of a network."""
    pairs = _watched(model, targets, example_inputs)
    modules = dict(model.named_modules())
    return {key: pair for key, pair in pairs.items() if not _is_watched(pair, modules)}


def _is_watched(pair: Pair, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a container of only one of the two has hooks, which would see other values."""
    names = (pair.layer.name, pair.norm.name)
    around = [{name[:i] for i, sign in enumerate(name) if sign == "."} for name in names]
    return any(is_touched(modules[name]) for name in around[0] ^ around[1])


@dataclass
class _Output:
    """What a layer returned, and which modules have read it (None: an operation outside)."""

    layer: nn.Module
    value: Tensor
    readers: list[nn.Module | None] = field(default_factory=list)


class _Readers(TorchDispatchMode):
    """Notes every operation that reads the storage of a layer's output."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outputs: dict[int, _Output] = {}
        self.reader: list[nn.Module] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tensors_in((args, kwargs)):
            self.note(value, self.reader[-1] if self.reader else None)
        return func(*args, **(kwargs or {}))

    def note(self, tensor: Tensor, reader: nn.Module | None) -> None:
        """Notes that a module reads a tensor."""
        output = self.outputs.get(storage_of(tensor))
        if output is not None and reader is not output.layer:
            output.readers.append(reader)


def _watched(
    model: nn.Module, targets: Mapping[int, Target], example_inputs: Any
) -> dict[int, Pair]:
    """By one run: each BatchNorm whose input is the whole output of a layer, read by it alone."""
    noted = _Readers()
    calls: Counter[int] = Counter()
    before: dict[int, _Output] = {}

    def entered(module: nn.Module, inputs: Any) -> None:
        calls[id(module)] += 1
        first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        if isinstance(module, _BatchNorm) and first is not None and len(inputs) == 1:
            output = noted.outputs.get(storage_of(first))
            if output is not None and output.value is first:
                before[id(module)] = output
        noted.reader.append(module)

    def left(module: nn.Module, inputs: Any, output: Any) -> None:
        noted.reader.pop()
        if isinstance(module, LAYERS) and isinstance(output, Tensor):
            # Kept alive, so that no other tensor gets its storage.
            noted.outputs[storage_of(output)] = _Output(module, output)

    handles: list[Any] = []
    for target in targets.values():
        if isinstance(target.module, (*LAYERS, _BatchNorm)):
            handles.append(target.module.register_forward_pre_hook(entered))
            handles.append(target.module.register_forward_hook(left))
    with hooked(handles):
        result = run_examples(model, example_inputs, noted)
    for value in tensors_in(result):
        noted.note(value, None)
    pairs: dict[int, Pair] = {}
    for key, output in before.items():
        alone = all(reader is targets[key].module for reader in output.readers)
        if alone and calls[key] == calls[id(output.layer)] == 1:
            pairs[key] = Pair(targets[id(output.layer)], targets[key], output.value.dim())
    return pairs
