"""Units of columns, by pint: which terms fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quadric.discover.terms import Term
from quadric.errors import InputError
from quadric.support.extras import load_extra

_IN_NAME = re.compile(r"(?P<name>.*\S)\s*\[(?P<unit>[^\[\]]*)\]\s*")


def split_unit(name: str) -> tuple[str, str | None]:
    """The unit in a name.

    Examples:
        >>> split_unit("mass [kg]"), split_unit("heat flow")
        (('mass', 'kg'), ('heat flow', None))
    """
    match = _IN_NAME.fullmatch(name)
    return (name, None) if match is None else (match["name"], match["unit"].strip())


class Dimensions:
    """The dimensions of columns and target: the powers of length, mass, time, and others."""

    def __init__(self, columns: Sequence[Mapping[str, float]], target: Mapping[str, float]) -> None:
        bases = sorted({base for unit in [*columns, target] for base in unit})
        self.columns = np.array([[u.get(b, 0) for b in bases] for u in columns], dtype=float)
        self.target = np.array([target.get(b, 0) for b in bases], dtype=float)
        self.columns = self.columns.reshape(len(columns), len(bases))

    def of(self, term: Term) -> np.ndarray | None:
        """The dimension of a term; None if a function in it takes no pure number."""
        total = np.zeros(len(self.target))
        for atom, power in term:
            inner = sum((p * self.columns[i] for i, p in atom.powers), np.zeros(len(self.target)))
            if not atom.function:
                total += power * inner
            elif np.abs(inner).max(initial=0) > 1e-6:
                return None
        return total

    def inside(self, power: float | None, factor: Term) -> np.ndarray | None:
        """The dimension that a sum must have in g F(sum); None if there is none."""
        own = self.of(factor)
        if own is None:
            return None
        left = self.target - own
        if power is not None:
            return np.asarray(left / power)
        return np.zeros_like(left) if np.abs(left).max(initial=0) < 1e-6 else None

    def filter(self, terms: Sequence[Term], wanted: np.ndarray) -> list[Term]:
        """The terms of this dimension."""
        found = ((term, self.of(term)) for term in terms)
        return [t for t, d in found if d is not None and np.abs(d - wanted).max(initial=0) < 1e-6]

    def check(self, names: Sequence[str], target: str) -> None:
        """Refuses a target that no product of powers of the columns has the unit of."""
        if not len(self.target):
            return
        powers = np.linalg.lstsq(self.columns.T, self.target, rcond=None)[0]
        if np.abs(self.columns.T @ powers - self.target).max() > 1e-6:
            raise InputError(
                f"no product of powers of {', '.join(names)} has the unit of {target!r}: add the "
                "constants of nature as columns, or leave the units out"
            )


def read_units(
    units: Mapping[str, str | None], names: Sequence[str], target: str
) -> Dimensions | None:
    """The dimensions of all columns; None where no unit is given."""
    if not any(units.get(name) is not None for name in [*names, target]):
        return None
    missing = [name for name in [*names, target] if units.get(name) is None]
    if missing:
        raise InputError(
            f"units must be given for all columns and the target or for none, got none for "
            f"{', '.join(map(repr, missing))}: write '1' for a pure number"
        )
    pint: Any = load_extra("pint", "formulas with units", "discover")
    registry = pint.UnitRegistry()
    found = []
    for name in [*names, target]:
        text = str(units[name])
        try:
            unit = registry.parse_units("" if text in ("1", "-") else text.replace("·", "*"))
        except Exception as error:  # its parser raises many kinds
            raise InputError(
                f"the unit of {name!r} must be one that pint knows, such as 'kg' or 'm / s**2', "
                f"got {text!r} ({type(error).__name__}): correct it, or write '1' for a pure number"
            ) from None
        found.append({str(base): float(power) for base, power in unit.dimensionality.items()})
    return Dimensions(found[:-1], found[-1])
