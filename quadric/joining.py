"""Quadratic layers that compute the BatchNorm and the ReLU behind them, in training, too.

The squares of a layer cost a pass over its output, forward and backward. BatchNorm makes several
such passes anyway, so `join_` lets the layer compute both, and a ReLU behind them, in the same
passes. Everything stays in its place: parameters, statistics, names, state dict, train and eval
mode. It is a way to compute and no other network, and `separate_` undoes it.

It needs the fused kernels (`quadric.use_kernels`), float32 on a CPU with AVX2 or AVX-512, and
channels that lie next to each other (channels_last pictures, tables); neurons and groups of at most
16 channels. Everywhere else the layer adds its squares and torch does the rest, as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from quadric._behind import JOINED, Behind
from quadric._following import (
    Pair,
    Place,
    find_pairs,
    is_ours,
    is_touched,
    places_of,
    several_places,
)
from quadric._targets import undisturbed
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.nn.layer import ConvTransposeGeometry
from quadric.zoo import NeuronLayer
from quadric.zoo.shared import Shared

_PLAIN = {joined: plain for plain, joined in JOINED.items()}


@dataclass(frozen=True)
class JoiningReport:
    """What `join_` did.

    Attributes:
        joined: the layers, and the modules that they compute from now on.
        kept: each BatchNorm that computes itself, and why.
    """

    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        taken = sum(len(names) for names in self.joined.values())
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.kept.items())
        return f"joined: {len(self.joined)}, with {taken} modules behind them" + (
            f"\nleft alone: {len(self.kept)}{kept}" if kept else ""
        )


def join_(model: nn.Module, example_inputs: Any = None) -> JoiningReport:
    """Lets eigen and shared layers compute the BatchNorm that alone reads their output, and the
    ReLU behind it.

    The network computes what it computed, in train and in eval mode, up to rounding: faster where
    the kernels serve, and with `shared` layers in less memory. Parameters, statistics, names and
    checkpoints stay what they are. What is joined is a `torch.nn` BatchNorm and a `torch.nn.ReLU`,
    each called once, nothing else reading what stands between them.

    Modules that are joined belong together: call `separate_` before one of them is replaced, copied
    alone or converted (SyncBatchNorm), and before the network is given to DataParallel. They run in
    one grad mode: not the layer alone under `torch.no_grad()`. Hooks that are put on them
    afterwards, and a forward that keeps the layer's output on the side, see what the layer returns,
    which is behind the ReLU.

    Args:
        model: changed in place.
        example_inputs: a tensor, a tuple or a mapping: the arguments of a forward pass, in train
            mode, too. They are needed for networks that torch.fx cannot trace; what a run with
            them shows is held against what torch.fx says.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.ReLU())
        >>> report = quadric.convert_(model)
        >>> join_(model).joined
        {'0': ('1', '2')}
        >>> separate_(model)
        ['0']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    report = JoiningReport()
    places = places_of(model)
    norms = [place for place in places.values() if type(place.module) in JOINED]
    norms = [place for place in norms if isinstance(place.module, _BatchNorm)]
    if not norms or not any(isinstance(p.module, QuadraticLayer) for p in places.values()):
        return report
    kinds = tuple(kind for kind in JOINED if issubclass(kind, _BatchNorm))
    found = _pairs(model, places, example_inputs, (QuadraticLayer,), kinds)
    activations: dict[int, Pair] = {}
    if any(type(place.module) is nn.ReLU for place in places.values()):
        behind = _pairs(model, places, example_inputs, kinds, (nn.ReLU,))
        activations = {id(pair.layer.module): pair for pair in behind.values()}
    several = several_places(model)
    for norm in norms:
        pair = found.get(id(norm.module))
        obstacle = "it does not alone read the output of one quadratic layer"
        if pair is not None:
            obstacle = _obstacle(pair, several)
        if obstacle or pair is None:
            report.kept[norm.name] = obstacle
            continue
        relu = activations.get(id(norm.module))
        if relu is not None and not _is_free_relu(relu.reader.module, several):
            relu = None
        _join(pair, relu, report)
    return report


def _join(pair: Pair, relu: Pair | None, report: JoiningReport) -> None:
    places = [pair.reader, *([] if relu is None else [relu.reader])]
    activation = None if relu is None else cast(nn.ReLU, relu.reader.module)
    layer = cast(QuadraticLayer, pair.layer.module)
    _claim(layer, Behind(cast(_BatchNorm, pair.reader.module), activation))
    report.joined[pair.layer.name] = tuple(place.name for place in places)


def _is_free_relu(module: nn.Module, several: set[int]) -> bool:
    return id(module) not in several and type(module) is nn.ReLU and not is_touched(module)


def _obstacle(pair: Pair, several: set[int]) -> str:
    """Why a BatchNorm cannot be joined to the layer in front, or an empty string."""
    layer, norm = pair.layer.module, cast(_BatchNorm, pair.reader.module)
    for place in (pair.layer, pair.reader):
        if id(place.module) in several:
            return f"{place.name!r} stands in several places"
        if is_touched(place.module):
            return f"{place.name!r} has hooks or a forward of its own"
    if not fits(layer):
        return f"{pair.layer.name!r} is no plain eigen or shared layer"
    assert isinstance(layer, QuadraticLayer)
    if recomputes(layer):
        return f"{pair.layer.name!r} recomputes its output"
    if layer.behind is not None:
        return f"{pair.layer.name!r} is joined already"
    if norm.num_features != layer.num_outputs:
        return f"it does not normalize the outputs of {pair.layer.name!r}"
    return ""


def fits(layer: nn.Module) -> bool:
    """Whether it is an eigen or a shared layer as it was made: no subclass, no hooks, its weight
    its own, and not a transposed convolution, which may be called with an output size.
    """
    if isinstance(layer, ConvTransposeGeometry):
        return False
    if not (isinstance(layer, EigenLayer) or getattr(layer, "neuron", None) == "shared"):
        return False
    if is_touched(layer) or not is_ours(layer) or parametrize.is_parametrized(layer):
        return False
    # Else it is computed (weight or spectral norm), or not there yet.
    weight = layer._parameters.get("weight")
    return weight is not None and not is_lazy(weight)


def recomputes(layer: QuadraticLayer) -> bool:
    """Whether an eigen or a shared layer computes its linear map again in backward."""
    if isinstance(layer, EigenLayer):
        return layer.recompute
    rule = layer.rule if isinstance(layer, NeuronLayer) else None
    return isinstance(rule, Shared) and rule.recompute


def _pairs(
    model: nn.Module,
    places: dict[int, Place],
    example_inputs: Any,
    layers: tuple[type[nn.Module], ...],
    readers: tuple[type[nn.Module], ...],
) -> dict[int, Pair]:
    """The pairs that there are in train mode and in eval mode, by the id of the reader."""
    found = []
    for training in (True, False):
        with undisturbed(model, training):
            found.append(
                find_pairs(model, places, example_inputs, layers, readers, (nn.Identity,), training)
            )
    first, second = found
    return {
        key: pair
        for key, pair in first.items()
        if key in second and second[key].layer is pair.layer
    }


def separate_(model: nn.Module) -> list[str]:
    """Undoes `join_`: every BatchNorm and every ReLU computes itself again.

    Args:
        model: changed in place.

    Returns:
        The names of the layers that were joined.
    """
    joined = _joined(model)
    for layer, behind in joined.values():
        _release(layer, behind)
    return list(joined)


@contextlib.contextmanager
def separated(model: nn.Module) -> Iterator[None]:
    """Has all modules of a model compute themselves for a while."""
    joined = _joined(model)
    separate_(model)
    try:
        yield
    finally:
        for layer, behind in joined.values():
            _claim(layer, behind)


def _joined(model: nn.Module) -> dict[str, tuple[QuadraticLayer, Behind]]:
    """The layers that are joined, and to what, by their names."""
    named = model.named_modules()
    layers = [(name, layer) for name, layer in named if isinstance(layer, QuadraticLayer)]
    return {name: (one, one.behind) for name, one in layers if one.behind is not None}


def _claim(layer: QuadraticLayer, behind: Behind) -> None:
    """Lets a layer compute the modules behind it."""
    layer.behind = behind
    for module in behind.modules:
        # The same module, parameters, buffers and all, which from now on passes on what it gets.
        module.__class__ = JOINED.get(type(module), type(module))
        module.behind = behind


def _release(layer: QuadraticLayer, behind: Behind) -> None:
    """Undoes it."""
    layer.behind = None
    for module in behind.modules:
        # A class that was made of a joined one (a parametrization) stays, and computes now.
        module.__class__ = _PLAIN.get(type(module), type(module))
        del module.behind
