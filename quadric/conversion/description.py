"""The quadratic layers of a model as plain values, from which they can be made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from quadric.conversion.targets import walk
from quadric.layers import QuadraticLayer, QuadraticMultiheadAttention, get_neuron
from quadric.layers.parabola import PARTS

# Options that do not change what a layer computes.
_INDIFFERENT = ("eigenvalue_init", "recompute", "max_bytes")


@dataclass(frozen=True)
class LayerDescription:
    """One quadratic layer: its neuron and rank, and those of its options that are not the default.

    A part of a polynomial network that is no layer has the word of `PARTS` in place of a neuron.

    An attention whose four projections are alike is one layer.
    """

    neuron: str
    rank: int | None
    attention: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The layer as plain values. `attention` and `options` are left out where empty."""
        more = {"attention": self.attention, "options": dict(self.options)}
        return {"neuron": self.neuron, "rank": self.rank} | {k: v for k, v in more.items() if v}

    def agrees(self, other: LayerDescription) -> bool:
        """Whether both layers compute the same function of their parameters."""
        own, others = (
            {k: v for k, v in layer.options.items() if k not in _INDIFFERENT}
            for layer in (self, other)
        )
        return (self.neuron, self.rank, own) == (other.neuron, other.rank, others)

    def plan(self) -> dict[str, Any]:
        """What `make_layer` gets to make this layer out of a linear one."""
        if self.neuron in PARTS.values():
            return {"neuron": self.neuron}
        start = "linear" if get_neuron(self.neuron).can_be_linear else "published"
        return {"neuron": self.neuron, "rank": self.rank, "init": start, **self.options}

    def __str__(self) -> str:
        words = [str(self.neuron)] + ([] if self.rank is None else [f"rank {self.rank}"])
        return ", ".join(words + [f"{k}={v!r}" for k, v in self.options.items()])


def describe_layer(layer: QuadraticLayer) -> LayerDescription:
    """A layer as plain values."""
    defaults = layer.rule.defaults() | {"rank": layer.rank}
    own = {k: v for k, v in layer.rule.options().items() if v != defaults[k]}
    if callable(own.get("eigenvalue_init")):
        # A function cannot be written to a file, and only a fresh layer needs this one.
        del own["eigenvalue_init"]
    return LayerDescription(layer.neuron, layer.rank, options=own)


def describe_layers(model: nn.Module) -> Iterator[tuple[str, LayerDescription, int]]:
    """Describes every place of every quadratic layer, with the id of its module."""
    if isinstance(model, QuadraticLayer):
        yield "", describe_layer(model), id(model)
    parts: set[int] = set()
    for name, module in walk(model):
        if isinstance(module, QuadraticMultiheadAttention):
            inside = list(module.children())
            described = [describe_layer(p) for p in inside if isinstance(p, QuadraticLayer)]
            if len(described) == len(inside) and all(one == described[0] for one in described):
                parts.update(map(id, inside))
                yield name, replace(described[0], attention=True), id(module)
        elif isinstance(module, QuadraticLayer) and id(module) not in parts:
            yield name, describe_layer(module), id(module)
        elif type(module) in PARTS:
            yield name, LayerDescription(PARTS[type(module)], None), id(module)
