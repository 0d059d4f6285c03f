"""The cost of a network as a report: layer by layer, with totals, as a table, markdown or JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from quadric.support.checks import check_size
from quadric.support.texttable import markdown_table, text_table


@dataclass
class LayerCost:
    """The cost of one module, without that of the modules inside it."""

    name: str  # its name in the model; empty for the model itself
    type: str  # its class
    # The registry name of its neuron, None for what is not a Quadric layer.
    neuron: str | None = None
    # The shape of its first output, None if it was never called.
    output_shape: tuple[int, ...] | None = None
    params: int = 0  # its parameters. One that several modules share counts with the first of them
    macs: int = 0  # multiply-accumulates, all calls together
    quadratic_macs: int = 0  # how many of these a linear layer of the same geometry would not have
    calls: int = 0  # how often it was called

    @property
    def quadratic_share(self) -> float:
        """The part of its MACs that a linear layer would not have, 0 to 1."""
        return self.quadratic_macs / self.macs if self.macs else 0.0

    @property
    def label(self) -> str:
        """Its class and neuron, for tables."""
        return f"{self.type} ({self.neuron})" if self.neuron else self.type


@dataclass
class Uncounted:
    """An operator whose multiplications are in no total."""

    operator: str  # its name
    # "elementwise", "normalization", "activation", "pooling", "reduction", or "no formula", which
    # may hide more than one multiplication per element.
    reason: str
    calls: int = 0  # how often it ran
    elements: int = 0  # how many elements its results have, all calls together
    layers: list[str] = field(default_factory=list)  # the modules it ran in


@dataclass
class CostReport:
    """The cost of a network for one set of example inputs, with their batch size.

    Attributes:
        model: the class of the network.
        input_shapes: the shapes of the example inputs.
        layers: every module that has parameters or MACs of its own, in the model's order.
        uncounted: the operators that are in no total.
        device: the device of the pass: "meta", or the model's device where values had to be read.
        note: the reason why it did not run on meta; empty if it did.
    """

    model: str
    input_shapes: list[tuple[int, ...]]
    layers: list[LayerCost]
    uncounted: list[Uncounted]
    device: str = "meta"
    note: str = ""

    @property
    def params(self) -> int:
        """All parameters, shared ones once."""
        return sum(layer.params for layer in self.layers)

    @property
    def macs(self) -> int:
        """All multiply-accumulates of one forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def quadratic_macs(self) -> int:
        """The MACs that the network would not have with linear layers."""
        return sum(layer.quadratic_macs for layer in self.layers)

    @property
    def quadratic_share(self) -> float:
        """The part of its MACs that the network would not have with linear layers, 0 to 1."""
        return self.quadratic_macs / self.macs if self.macs else 0.0

    def by_layer(self, depth: int | None = None) -> list[LayerCost]:
        """The cost of each layer.

        Args:
            depth: sum up layers whose names agree in this many parts: 1 gives the model's children.
                None gives single layers.

        Returns:
            The costs in the model's order.

        Raises:
            InputError: if `depth` is less than 1.
        """
        if depth is None:
            return list(self.layers)
        check_size("depth", depth)
        grouped: dict[str, LayerCost] = {}
        for layer in self.layers:
            key = ".".join(layer.name.split(".")[:depth])
            if key not in grouped and key == layer.name:
                grouped[key] = replace(layer)
                continue
            total = grouped.setdefault(key, LayerCost(key, "several"))
            total.params += layer.params
            total.macs += layer.macs
            total.quadratic_macs += layer.quadratic_macs
        return list(grouped.values())

    def compare(self, other: CostReport) -> dict[str, Any]:
        """The cost of this network next to that of another.

        Args:
            other: the report of the other network.

        Returns:
            `params` and `macs`, and with `_ratio` their ratios to those of the other network; None
            where it has none.

        Examples:
            >>> import torch, quadric
            >>> narrow, wide = torch.nn.Linear(4, 2), torch.nn.Linear(4, 8)
            >>> x = torch.zeros(1, 4)
            >>> quadric.cost(narrow, x).compare(quadric.cost(wide, x))["macs_ratio"]
            0.25
        """
        ratios: dict[str, Any] = {}
        for what, own, theirs in (
            ("params", self.params, other.params),
            ("macs", self.macs, other.macs),
        ):
            ratios |= {what: own, f"{what}_ratio": own / theirs if theirs else None}
        return ratios

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        layers = [asdict(la) | {"quadratic_share": la.quadratic_share} for la in self.layers]
        totals = ("params", "macs", "quadratic_macs", "quadratic_share")
        values = {
            "model": self.model,
            "input_shapes": self.input_shapes,
            **{name: getattr(self, name) for name in totals},
            "device": self.device,
            "note": self.note,
            "layers": layers,
            "uncounted": [asdict(entry) for entry in self.uncounted],
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        return plain

    def to_markdown(self) -> str:
        """The table of layers, the totals and what is not counted, in markdown."""
        return self._render(markdown_table, "\n\n")

    def __str__(self) -> str:
        return self._render(text_table, "\n")

    def _render(self, table: Callable[..., str], gap: str) -> str:
        shapes = ", ".join(_shape(shape) for shape in self.input_shapes) or "none"
        header = ["layer", "type", "output", "params", "MACs", "quadratic"]
        parts = [f"{self.model}, input {shapes}", table(header, self._table_rows(), "lllrrr")]
        parts += [f"not counted: {line}" for line in self._uncounted_lines()]
        return gap.join([*parts, self.note] if self.note else parts)

    def _table_rows(self) -> list[list[str]]:
        rows, without_macs = [], defaultdict(list)
        for layer in self.layers:
            if not layer.macs:
                without_macs[layer.label].append(layer)
                continue
            share = f"{layer.quadratic_share:.2%}" if layer.neuron else ""
            name = layer.name or "(the model itself)"
            shape = _shape(layer.output_shape)
            rows.append([name, layer.label, shape, f"{layer.params:,}", f"{layer.macs:,}", share])
        for label, layers in without_macs.items():
            name = layers[0].name if len(layers) == 1 else f"({len(layers)} layers)"
            rows.append([name, label, "", f"{sum(la.params for la in layers):,}", "0", ""])
        share = f"{self.quadratic_share:.2%}" if any(la.neuron for la in self.layers) else ""
        return [*rows, ["total", "", "", f"{self.params:,}", f"{self.macs:,}", share]]

    def _uncounted_lines(self) -> list[str]:
        lines = []
        kinds: dict[str, list[Uncounted]] = defaultdict(list)
        for entry in self.uncounted:
            if entry.reason == "no formula":
                where = ", ".join(entry.layers[:3]) + (" …" if len(entry.layers) > 3 else "")
                lines.append(f"{entry.operator} (no formula), {entry.calls} calls in {where}")
            else:
                kinds[entry.reason].append(entry)
        for reason, entries in kinds.items():
            names = ", ".join(entry.operator for entry in entries)
            elements = sum(entry.elements for entry in entries)
            lines.append(f"{reason}: {names}, {elements:,} elements")
        return lines


def _shape(shape: Sequence[int] | None) -> str:
    return "x".join(map(str, shape)) if shape is not None else ""
