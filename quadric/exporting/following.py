"""Which module alone reads the output of which layer: a BatchNorm behind a convolution, a ReLU.

torch.fx says so for every input that takes the traced path. Where it cannot trace a network, one
run with example inputs does: every operation that reads the storage of a layer's output is noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from quadric.conversion.targets import look_around, run_examples, tensors_of, walk
from quadric.errors import InputError
from quadric.nn import QuadraticLayer

Types = tuple[type[nn.Module], ...]

# Not looked into, whatever is asked for: a model that can be traced once can be traced again.
_LEAVES: Types = (
    QuadraticLayer,
    _BatchNorm,
    nn.Linear,
    nn.modules.conv._ConvNd,
    nn.Identity,
    nn.ReLU,
)


class Leaf(nn.Module):
    """A module of our own that is not looked into either."""


@dataclass
class Place:
    """A module and where it stands."""

    name: str
    parent: nn.Module
    key: str
    module: nn.Module

    def put(self, module: nn.Module) -> None:
        """Puts another module there."""
        self.parent._modules[self.key] = module


@dataclass(frozen=True)
class Pair:
    """A layer and the module that alone reads its output.

    Attributes:
        layer: the one.
        reader: the other.
        dims: the number of dimensions of the output, if known.
        between: what changes the output on the way.
    """

    layer: Place
    reader: Place
    dims: int | None = None
    between: tuple[nn.Module, ...] = ()


@dataclass(frozen=True)
class _Wanted:
    """What is looked for; the fields are those of `find_pairs`."""

    places: Mapping[int, Place]
    layers: Types
    readers: Types
    through: Types
    training: bool

    def passes(self, module: nn.Module) -> bool:
        """Whether a module may stand between the two."""
        return type(module) in self.through and not is_touched(module)


def places_of(model: nn.Module) -> dict[int, Place]:
    """The first place of every module, by the module's id."""
    places: dict[int, Place] = {}
    for name, parent, key, module in walk(model):
        places.setdefault(id(module), Place(name, parent, key, module))
    return places


def several_places(model: nn.Module) -> set[int]:
    """The ids of modules that stand in several places, or that something else holds, too."""
    count = Counter(id(child) for _, _, _, child in walk(model))
    return {key for key, times in count.items() if times != 1} | set(look_around(model).held)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_touched(module: nn.Module) -> bool:
    """Whether something listens to a module, or its forward was replaced."""
    return "forward" in vars(module) or any(len(getattr(module, name)) for name in _HOOKS)


def is_ours(module: nn.Module) -> bool:
    """Whether its class is one of this library, and not a subclass that may compute more."""
    return type(module).__module__.split(".")[0] == "quadric"


def check_eval(model: nn.Module, purpose: str) -> None:
    """Raises unless all of a model is in eval mode.

    Args:
        model: the network.
        purpose: what it must be in eval mode for.
    """
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise InputError(
            f"the model must be in eval mode to {purpose}, got "
            f"{repr(training) if training else 'the model'} in training mode: call model.eval() "
            "first"
        )


def find_pairs(
    model: nn.Module,
    places: Mapping[int, Place],
    example_inputs: Any,
    layers: Types,
    readers: Types,
    through: Types = (),
    training: bool = False,
) -> dict[int, Pair]:
    """The pairs by the id of the reader.

    Args:
        model: the network.
        places: of `places_of`.
        example_inputs: its arguments, or None to rely on torch.fx alone.
        layers: whose outputs are read.
        readers: who may read them.
        through: what may stand between the two and changes at most the output's own storage; no
            subclasses.
        training: whether the example inputs run in train mode.
    """
    wanted = _Wanted(places, layers, readers, through, training)
    found = _found(model, example_inputs, wanted)
    modules = dict(model.named_modules())
    return {key: pair for key, pair in found.items() if not _is_watched(pair, modules)}


def _is_watched(pair: Pair, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a container that holds one of the two, and not the other, is listened to: what it is
    given or returns would change."""
    names = (pair.layer.name, pair.reader.name)
    around = [{name[:i] for i, sign in enumerate(name) if sign == "."} for name in names]
    return any(is_touched(modules[name]) for name in around[0] ^ around[1])


def _found(model: nn.Module, example_inputs: Any, wanted: _Wanted) -> dict[int, Pair]:
    run = None if example_inputs is None else _watched(model, example_inputs, wanted)
    try:
        pairs = _traced(model, wanted)
    except Exception as error:  # whatever a tracer meets in a user's forward
        if run is None:
            text = (str(error).splitlines() or ["no message"])[0]
            raise InputError(
                "example_inputs are needed to see which layer a module follows, torch.fx cannot "
                f"trace this model ({type(error).__name__}: {text}): give the arguments of "
                "model.forward"
            ) from error
        return run
    if run is None:
        return pairs
    # The trace decides, the run adds the number of dimensions; where the run saw less it wins.
    return {key: run[key] for key in pairs if key in run and run[key].layer is pairs[key].layer}


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = isinstance(m, (Leaf, *_LEAVES))
        return leaf or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module, wanted: _Wanted) -> dict[int, Pair]:
    """By torch.fx, for every input that takes the traced path."""
    places = wanted.places
    graph = _Tracer().trace(model)
    calls = [node for node in graph.nodes if node.op == "call_module"]
    of_node = {node: model.get_submodule(str(node.target)) for node in calls}
    times = Counter(id(module) for module in of_node.values())
    for module in of_node.values():
        # What a module that is not looked into calls: nobody knows how often.
        times.update(id(inner) for inner in module.modules() if inner is not module)
    pairs: dict[int, Pair] = {}
    for node, reader in of_node.items():
        if not isinstance(reader, wanted.readers):
            continue
        before = _read_alone(node)
        between: list[nn.Module] = []
        while (passed := of_node.get(before)) is not None and wanted.passes(passed):
            before = _read_alone(before)
            between += [] if isinstance(passed, nn.Identity) else [passed]
        layer = of_node.get(before)
        if not isinstance(layer, wanted.layers):
            continue
        known = id(layer) in places and id(reader) in places
        if known and times[id(layer)] == times[id(reader)] == 1:
            pairs[id(reader)] = Pair(places[id(layer)], places[id(reader)], between=tuple(between))
    return pairs


def _read_alone(node: Any) -> Any:
    """What a call alone reads, as its only argument."""
    if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
        return None
    return node.args[0] if list(node.args[0].users) == [node] else None


@dataclass
class _Output:
    """What a layer returned, and who has read it."""

    layer: nn.Module
    value: Tensor
    readers: list[nn.Module | None] = field(default_factory=list)


class _Readers(TorchDispatchMode):
    """Notes every operation that reads the storage of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[int, _Output] = {}
        self.reader: list[nn.Module] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_iter((args, kwargs)):
            if isinstance(value, Tensor):
                self.note(value, self.reader[-1] if self.reader else None)
        return func(*args, **(kwargs or {}))

    def note(self, tensor: Tensor, reader: nn.Module | None) -> None:
        output = self.outputs.get(_storage(tensor))
        if output is not None and reader is not output.layer:
            output.readers.append(reader)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _watched(model: nn.Module, example_inputs: Any, wanted: _Wanted) -> dict[int, Pair]:
    """By one run: the readers whose input is the whole output of a layer that nobody else reads."""
    places, noted = wanted.places, _Readers()
    calls: Counter[int] = Counter()
    before: dict[int, _Output] = {}

    def entered(module: nn.Module, inputs: Any) -> None:
        calls[id(module)] += 1
        first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        if isinstance(module, wanted.readers) and first is not None and len(inputs) == 1:
            output = noted.outputs.get(_storage(first))
            if output is not None and output.value is first:
                before[id(module)] = output
        noted.reader.append(module)

    def left(module: nn.Module, inputs: Any, output: Any) -> None:
        noted.reader.pop()
        if isinstance(module, wanted.readers) and isinstance(output, Tensor):
            # Of a reader that works in place: who reads that storage from here on reads its output.
            noted.outputs.pop(_storage(output), None)
        if isinstance(module, wanted.layers) and isinstance(output, Tensor):
            # Kept alive, so that no other tensor gets its storage.
            noted.outputs[_storage(output)] = _Output(module, output)

    kinds = (*wanted.layers, *wanted.readers, *wanted.through)
    handles: list[Any] = []
    passed: list[nn.Module] = []
    for place in places.values():
        if isinstance(place.module, kinds):
            passed += [place.module] if wanted.passes(place.module) else []
            handles.append(place.module.register_forward_pre_hook(entered))
            handles.append(place.module.register_forward_hook(left))
    try:
        result = run_examples(model, example_inputs, noted, wanted.training)
    finally:
        for handle in handles:
            handle.remove()
    for value in tensors_of(result):
        noted.note(value, None)
    pairs: dict[int, Pair] = {}
    for key, output in before.items():
        reader = places[key].module
        alone = all(any(one is known for known in (reader, *passed)) for one in output.readers)
        if alone and calls[key] == calls[id(output.layer)] == 1:
            between = dict.fromkeys(one for one in output.readers if one is not reader)
            pairs[key] = Pair(
                places[id(output.layer)],
                places[key],
                output.value.dim(),
                tuple(one for one in between if one is not None),
            )
    return pairs
