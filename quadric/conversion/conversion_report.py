"""What a conversion did, as a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quadric.support.texttable import text_table


@dataclass(frozen=True)
class Converted:
    """A layer that was converted."""

    name: str  # its name in the model
    kind: str  # the class that it had before
    neuron: str  # the registry name of its neuron
    rank: int | None  # its rank, None for a neuron without one
    params_before: int  # its parameters before
    params_after: int  # its parameters after
    lossless: bool  # whether it computes what it computed before
    aliases: tuple[str, ...] = ()  # other names that the layer has in the model


@dataclass(frozen=True)
class Skipped:
    """A layer that stayed as it was, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did. Prints as a table.

    Attributes:
        neuron: the neuron's registry name.
        converted: the layers that were converted.
        skipped: the layers of a convertible kind that stayed as they were, each with its reason.
        params_before: parameters of the model before, shared ones once.
        params_after: parameters of the model after.
        macs_before: multiply-accumulates for the example inputs, None if there were none.
        macs_after: multiply-accumulates after the conversion.
        notes: remarks that a user should read.
    """

    neuron: str
    converted: tuple[Converted, ...]
    skipped: tuple[Skipped, ...]
    params_before: int
    params_after: int
    macs_before: int | None = None
    macs_after: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether the model computes what it computed before."""
        return all(layer.lossless for layer in self.converted)

    @property
    def names(self) -> list[str]:
        """The names of the converted layers."""
        return [layer.name for layer in self.converted]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"lossless": self.lossless}

    def __str__(self) -> str:
        rows = [
            (c.name, c.kind, c.neuron + (f", rank {c.rank}" if c.rank is not None else ""))
            for c in self.converted
        ]
        rows += [(s.name, s.kind, f"left: {s.reason}") for s in self.skipped]
        done = f"{len(self.converted)} layer" + ("s" if len(self.converted) != 1 else "")
        lines = [
            f"{done} converted to {self.neuron}, {len(self.skipped)} left",
            text_table(("layer", "was", "is"), rows),
            _change("parameters", self.params_before, self.params_after),
        ]
        if self.macs_before is not None and self.macs_after is not None:
            lines.append(_change("MACs", self.macs_before, self.macs_after))
        return "\n".join([*lines, *self.notes])


def _change(what: str, before: int, after: int) -> str:
    share = f" ({(after - before) / before:+.2%})" if before else ""
    return f"{what}: {before:,} -> {after:,}{share}"
