"""Terms of a formula, products of powers of columns and functions of columns; and their lists."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FUNCTIONS = {"sin": np.sin, "cos": np.cos, "log": np.log, "exp": np.exp}
ALL_POWERS = (1, 2, 3, 4, -1, -2, -3, 0.5, -0.5)
_ZERO = -800.0  # the logarithm of 0: its powers are 0, without a NaN


@dataclass(frozen=True, order=True)
class Atom:
    """A column, or a function of a product of powers of columns.

    Attributes:
        function: a key of `FUNCTIONS`; "" for a column itself.
        powers: the columns by place, each with its power.
    """

    function: str
    powers: tuple[tuple[int, float], ...]

    def values(self, X: np.ndarray) -> np.ndarray:
        """The atom on rows."""
        inner = np.prod([X[:, i] ** p for i, p in self.powers], axis=0)
        return np.asarray(FUNCTIONS[self.function](inner) if self.function else inner)

    def sympy(self, sp: Any, symbols: Sequence[Any]) -> Any:
        """The atom as an expression."""
        inner = sp.Mul(*(symbols[i] ** exact_power(sp, p) for i, p in self.powers))
        return getattr(sp, self.function)(inner) if self.function else inner


Term = tuple[tuple[Atom, float], ...]
"""Atoms with their powers, in order; the empty product is 1."""
ONE: Term = ()


def column(i: int) -> Atom:
    """A column by its place."""
    return Atom("", ((i, 1),))


def product(*terms: Term) -> Term:
    """The product of terms."""
    powers: dict[Atom, float] = {}
    for atom, power in itertools.chain(*terms):
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))


def exact_power(sp: Any, power: float) -> Any:
    """A power as an integer or a fraction where it is one."""
    for below in (1, 2, 3, 4):
        if abs(power * below - round(power * below)) < 1e-9:
            return sp.Rational(round(power * below), below)
    return sp.Float(f"{power:.6g}")


def term_sympy(sp: Any, term: Term, symbols: Sequence[Any]) -> Any:
    """A term as an expression."""
    return sp.Mul(*(a.sympy(sp, symbols) ** exact_power(sp, p) for a, p in term))


def columns_of(terms: Sequence[Term]) -> frozenset[int]:
    """The columns in some terms."""
    return frozenset(i for term in terms for atom, _ in term for i, _ in atom.powers)


@functools.lru_cache(maxsize=200_000)
def bits(term: Term, columns: int) -> float:
    """How long it takes to write a term down, in natural units (extended BIC's log of choices)."""
    total = 1.5  # for being one more: dust is rarely worth it
    for atom, power in term:
        total += math.log(columns + 1) * len(atom.powers)
        total += math.log(6) if atom.function else 0.0
        total += math.log(2) if power < 0 else 0.0
        whole = abs(power - round(power)) < 1e-9
        total += math.log(max(abs(power), 1)) if whole else math.log(6)
    return total


def design(terms: Sequence[Term], X: np.ndarray) -> np.ndarray:
    """The terms on rows, (rows, terms)."""
    atoms = sorted({atom for term in terms for atom, _ in term})
    if not atoms:
        return np.ones((len(X), len(terms)))
    place = {atom: i for i, atom in enumerate(atoms)}
    powers = np.zeros((len(atoms), len(terms)))
    for j, term in enumerate(terms):
        for atom, power in term:
            powers[place[atom], j] = power
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values = np.stack([atom.values(X) for atom in atoms], 1)
        logs = np.maximum(np.log(np.abs(values)), _ZERO)
        found = np.exp(np.minimum(logs @ powers, 700.0))
    negative = (values < 0).astype(float)
    if negative.any():
        odd = (negative @ (np.abs(powers) % 2 == 1)) % 2 == 1
        found[odd] *= -1
    return np.asarray(found)


@dataclass(frozen=True)
class Choices:
    """Which atoms a table allows, and their powers."""

    powers: dict[Atom, tuple[float, ...]]

    def of(self, columns: Sequence[int], functions: Sequence[str] | None = None) -> Choices:
        """Those over some columns, and with some functions."""
        wanted = set(columns)
        return Choices({
            atom: powers
            for atom, powers in self.powers.items()
            if {i for i, _ in atom.powers} <= wanted
            and (functions is None or atom.function in ("", *functions))
        })  # fmt: skip


def choices(X: np.ndarray) -> Choices:
    """What can be computed from the columns: no division by 0, no logarithm of a negative."""
    found: dict[Atom, tuple[float, ...]] = {}
    for i, values in enumerate(X.T):
        large, small = np.abs(values).max(), np.abs(values).min()
        apart = small > 1e-3 * large and (values.min() > 0 or values.max() < 0)
        positive = values.min() >= 0
        found[column(i)] = tuple(
            p for p in ALL_POWERS if (p > 0 or apart) and (p % 1 == 0 or positive)
        )
        span = values.max() - values.min()
        if span > 2.0 and large < 100:
            found |= {Atom(name, ((i, 1),)): (1, 2) for name in ("sin", "cos")}
        if apart and positive:
            found[Atom("log", ((i, 1),))] = (1,)
        if span > 0.2 and large < 20:
            found[Atom("exp", ((i, 1),))] = (1, -1)
    for i, j in itertools.combinations(range(X.shape[1]), 2):
        inner = X[:, i] * X[:, j]
        if 2.0 < np.ptp(inner) < 100:
            found |= {Atom(name, ((i, 1), (j, 1))): (1, 2) for name in ("sin", "cos")}
    return Choices(found)


def _weight(atom: Atom, power: float) -> float:
    """What a factor counts in the degree of a term."""
    extra = (len(atom.powers) - 1) + (1.0 if atom.function == "exp" else 0.0)
    return max(abs(power), 1.0) + extra + (0.5 if power % 1 else 0.0)


def monomials(allowed: Choices, degree: float, most: int) -> list[Term] | None:
    """All products up to a degree, the constant first; None if they are more than `most`."""
    factors = [[(a, p, _weight(a, p)) for p in ps] for a, ps in sorted(allowed.powers.items())]
    found: list[Term] = []

    def grow(place: int, left: float, term: Term) -> Iterator[Term]:
        yield term
        for i in range(place, len(factors)):
            for atom, power, weight in factors[i]:
                if weight <= left:
                    yield from grow(i + 1, left - weight, (*term, (atom, power)))

    for term in grow(0, degree, ONE):
        found.append(term)
        if len(found) > most:
            return None
    return found


def library(allowed: Choices, most: int, degree: int = 6) -> list[Term]:
    """The products of the highest degree that is not too many."""
    for d in range(degree, 0, -1):
        found = monomials(allowed, d, most)
        if found is not None:
            return found
    return [ONE, *(((atom, 1),) for atom in itertools.islice(allowed.powers, most))]


def polynomial(columns: Sequence[int], degree: int, most: int) -> list[Term] | None:
    """All products of powers of columns up to a degree; None if they are too many."""
    powers = tuple(range(1, degree + 1))
    return monomials(Choices({column(i): powers for i in columns}), degree, most)
