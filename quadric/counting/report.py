"""The cost of a network as a report: layer by layer, with totals, as a table, markdown or JSON."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quadric.errors import InputError
from quadric.texttable import markdown_table, text_table
from quadric.writing import write_text


@dataclass
class LayerCost:
    """The cost of one module, without that of the modules inside it.

    Attributes:
        name: its name in the model; empty for the model itself.
        type: its class.
        neuron: the registry name of its neuron, None for what is not a Quadric layer.
        output_shape: the shape of its first output, None if it was never called.
        params: its parameters. One that several modules share counts with the first of them.
        macs: multiply-accumulates, all calls together.
        quadratic_macs: how many of these a linear layer of the same geometry would not have.
        calls: how often it was called.
    """

    name: str
    type: str
    neuron: str | None = None
    output_shape: tuple[int, ...] | None = None
    params: int = 0
    macs: int = 0
    quadratic_macs: int = 0
    calls: int = 0

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
    """An operator whose multiplications are in no total.

    Attributes:
        operator: its name.
        reason: "elementwise", "normalization", "activation", "pooling", "reduction", or
            "no formula", which may hide more than one multiplication per element.
        calls: how often it ran.
        elements: how many elements its results have, all calls together.
        layers: the modules it ran in.
    """

    operator: str
    reason: str
    calls: int = 0
    elements: int = 0
    layers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CostComparison:
    """The cost of one network next to that of another.

    Attributes:
        params: parameters of the first.
        other_params: parameters of the other.
        macs: MACs of the first.
        other_macs: MACs of the other.
    """

    params: int
    other_params: int
    macs: int
    other_macs: int

    @property
    def params_ratio(self) -> float:
        """Parameters of the first divided by those of the other."""
        return self.params / self.other_params if self.other_params else math.nan

    @property
    def macs_ratio(self) -> float:
        """MACs of the first divided by those of the other."""
        return self.macs / self.other_macs if self.other_macs else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Counts and ratios. A ratio is None where the other network has a count of zero."""
        ratios = {"params_ratio": self.params_ratio, "macs_ratio": self.macs_ratio}
        return asdict(self) | {k: None if math.isnan(v) else v for k, v in ratios.items()}

    def __str__(self) -> str:
        return "\n".join(
            f"{what}: {own:,} against {other:,}, ratio {ratio:.3f}, {abs(1 - ratio):.1%} "
            + ("more" if ratio > 1 else "fewer")
            for what, own, other, ratio in (
                ("parameters", self.params, self.other_params, self.params_ratio),
                ("MACs", self.macs, self.other_macs, self.macs_ratio),
            )
        )


@dataclass
class CostReport:
    """The cost of a network for one set of example inputs, with their batch size.

    Attributes:
        model: the class of the network.
        input_shapes: the shapes of the example inputs.
        layers: every module that has parameters or MACs of its own, in the model's order.
        uncounted: the operators that are in no total.
        device: where the pass ran: "meta", or the model's device where values had to be read.
        note: why it did not run on meta; empty if it did.
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
        if depth < 1:
            raise InputError(f"depth must be >= 1, got {depth}: leave it out for single layers")
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

    def compare(self, other: CostReport) -> CostComparison:
        """The cost of this network next to that of another.

        Args:
            other: the report of the other network.

        Returns:
            Counts, and ratios of this network to the other.

        Examples:
            >>> import quadric, torch
            >>> wide, narrow = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 3, bias=False)
            >>> x = torch.zeros(1, 4)
            >>> print(quadric.cost(narrow, x).compare(quadric.cost(wide, x)))
            parameters: 12 against 24, ratio 0.500, 50.0% fewer
            MACs: 12 against 24, ratio 0.500, 50.0% fewer
        """
        return CostComparison(self.params, other.params, self.macs, other.macs)

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

    def to_json(self, path: str | Path | None = None) -> str:
        """The values of `to_dict` as JSON.

        Args:
            path: a file to write them to as well.

        Returns:
            The text.
        """
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        if path is not None:
            write_text(path, text + "\n")
        return text

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


def comparison(reports: Mapping[str, CostReport], base: CostReport) -> list[dict[str, Any]]:
    """One row per network: its cost, and the ratio to that of `base`.

    Args:
        reports: the networks' reports, by the name of their neuron.
        base: the report that they are compared with.

    Returns:
        The rows as plain values.
    """
    columns = ("params", "params_ratio", "macs", "macs_ratio")
    rows = []
    for name, report in reports.items():
        values = report.compare(base).to_dict()
        row = {"neuron": name} | {column: values[column] for column in columns}
        rows.append(row | {"quadratic_share": report.quadratic_share})
    return rows
