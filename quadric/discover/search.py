"""The search: cheap and sure ways first, each of which adds formulas to a pool."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from quadric.discover.doubts import EXACT, structure_left
from quadric.discover.models import SHAPES, Model
from quadric.discover.powers import Peel, peels, power_laws, power_sums
from quadric.discover.selection import backward, best_pairs, forward, solved, swapped
from quadric.discover.support import strongest_columns
from quadric.discover.terms import (
    ONE,
    Term,
    bits,
    choices,
    design,
    library,
    monomials,
    polynomial,
)
from quadric.discover.units import Dimensions

Array = np.ndarray
Told = Callable[[int, str, int], object]

NOISY = 0.2
"""With more noise than this share of the spread, every way is tried."""
MOST_TERMS = 4000
SCREENED = 800
"""Rows that long lists of terms are compared on."""


class Search:
    """What is searched, and the formulas that were found."""

    def __init__(self, X: Array, y: Array, dimensions: Dimensions | None, seconds: float) -> None:
        self.X, self.y, self.dimensions = X, y, dimensions
        self.choices = choices(X)
        self.spread = float(y.std())
        self.end = time.monotonic() + seconds
        self.pool: dict[object, Model] = {}
        self.notes: list[str] = []
        few = np.random.default_rng(0).permutation(len(y))[:SCREENED]
        self.few = np.sort(few)
        self.everything: Sequence[int] = range(X.shape[1])
        self.found_peels: list[Peel] = []
        self.after_cheap = False
        self.fullest: list[tuple[float, int]] = []

    def run(self, told: Told | None) -> None:
        """All stages, until a formula is exact or time is over."""
        stages: list[tuple[str, Callable[[], object]]] = [
            ("polynomials", self.polynomials),
            ("power laws", self.power_laws),
            ("functions of columns", self.functions),
            ("factors and functions", self.products),
            ("ratios", self.ratios),
            ("sums of power laws", self.sums),
            ("pairs of functions", self.wide),
        ]
        if polynomial(self.everything, 4, len(self.y) // 2) is None and self.X.shape[1] > 12:
            stages.insert(3, ("columns by a quadratic network", self.by_network))
        try:
            for name, stage in stages:
                if told is not None:
                    told(0, name, len(stages))
                if self.done or time.monotonic() > self.end:
                    break
                stage()
                if told is not None:
                    told(1, name, len(stages))
        except KeyboardInterrupt:
            self.notes.append("stopped by hand: this is what was found until then")
        if time.monotonic() > self.end:
            self.notes.append("the time was over before all ways were tried")

    @property
    def best(self) -> Model | None:
        """The one with the lowest BIC."""
        return min(self.pool.values(), key=lambda m: m.bic, default=None)

    @property
    def exact(self) -> bool:
        """Whether the best formula leaves no error but rounding."""
        best = self.best
        return best is not None and best.rms < EXACT * self.spread

    @property
    def done(self) -> bool:
        """Whether the best formula explains everything but noise, as far as can be seen.

        That is: it is short, no worse than all monomials together, and what it leaves is as
        different between neighbors as between any rows.
        """
        best = self.best
        if best is None or self.exact:
            return best is not None
        if not self.after_cheap or len(best.top) + len(best.bottom) > 4:
            return False
        if best.rms > NOISY * self.spread:
            return False
        rest = self.y - best(self.X)
        # Neither the monomials of the last degree nor all of them may explain more.
        if len(self.fullest) < 2:
            return False
        before, (loss, count) = self.fullest[-2], self.fullest[-1]
        own = (best.rms**2 * len(self.y), len(best.theta))
        for more, fewer in (before, own) if own[0] > loss else ():
            new = count - fewer
            limit = loss * (
                1 + (new + 3 * math.sqrt(2 * max(new, 1))) / max(len(self.y) - count, 1)
            )
            if more > limit:
                return False
        tails = float((rest**4).mean() / (rest**2).mean() ** 2)
        return tails < 4.5 and abs(structure_left(self.X[:, sorted(best.columns)], rest)) < 4

    def add(self, model: Model | None) -> Model | None:
        """Puts a fitted formula into the pool."""
        if model is not None and math.isfinite(model.bic) and self._has_units(model):
            known = self.pool.get(model.key)
            if known is None or model.bic < known.bic:
                self.pool[model.key] = model
            return model
        return None

    def cost(self, terms: Sequence[Term]) -> Array:
        """What BIC counts for each term."""
        width, rows = self.X.shape[1], math.log(len(self.y))
        return np.array([rows + 2 * bits(term, width) for term in terms])

    def fitting(self, terms: Sequence[Term], shape: str, factor: Term) -> list[Term]:
        """The terms of P that fit the units."""
        if self.dimensions is None:
            return list(terms)
        wanted = self.dimensions.inside(SHAPES[shape].power, factor)
        return [] if wanted is None else self.dimensions.filter(terms, wanted)

    def _has_units(self, model: Model) -> bool:
        if self.dimensions is None:
            return True
        units = self.dimensions
        below = [units.of(term) for term in model.bottom]
        if any(b is None or not np.allclose(b, below[0]) for b in below):  # type: ignore[arg-type]
            return False
        wanted = units.inside(SHAPES[model.shape].power, model.factor)
        if wanted is None:
            return False
        if below:
            wanted = wanted + below[0]
        return len(units.filter(model.top, wanted)) == len(model.top)

    # The stages.

    def polynomials(self) -> None:
        """Monomials of the columns, all of them first, then fewer and fewer."""
        for degree in (1, 2, 3, 4):
            terms = polynomial(self.everything, degree, min(1500, len(self.y) // 2))
            terms = terms and self.fitting(terms, "identity", ONE)
            if not terms:
                if degree > 1 and self.dimensions is None:
                    listed = polynomial(self.everything, degree, 2 * MOST_TERMS)
                    if listed is not None:
                        self._forward(listed, "identity", ONE, 12)
                    return
                continue
            self._path(terms, design(terms, self.X), self.y)
            if self.exact:
                return

    def _path(self, terms: Sequence[Term], D: Array, y: Array) -> None:
        """Eliminates terms, and keeps the best sets and the short ones."""
        sets = list(backward(D, y, self.cost(terms)))
        whole = solved(D, y)
        if whole is not None:
            self.fullest.append((whole[1], D.shape[1]))
        order = sorted(sets, key=lambda s: s[1])[:2]
        for kept, _ in [*order, *(s for s in sets if len(s[0]) <= 6)]:
            if len(kept) <= 60:
                self.add(Model([terms[k] for k in kept]).fit(self.X, y))

    def power_laws(self) -> None:
        """One regression of logarithms."""
        for model in power_laws(self.X, self.y):
            self.add(model.fit(self.X, self.y))
            shifted = Model([*model.top, ONE])
            shifted.exponents = model.exponents
            self.add(shifted.fit(self.X, self.y))

    def functions(self) -> None:
        """Sums with sines, cosines, logarithms and exponentials: a cubic may only look like one."""
        for names in (("sin", "cos"), ("log", "exp")):
            terms = library(self.choices.of(self.everything, names), 1000, 3)
            self._forward(terms, "identity", ONE, 6)
        self.after_cheap = True

    def by_network(self) -> None:
        """The columns that a quadratic network uses, where the terms of all are too many."""
        chosen, said = strongest_columns(self.X, self.y)
        self.notes.append(said)
        self.everything, self.fullest = chosen, []
        self.polynomials()

    def products(self) -> None:
        """A factor times a function of a sum of terms."""
        self.found_peels = peels(self.X, self.y, self.choices, self.everything)
        for names in ((), ("sin", "cos"), ("log",)):
            seen = set()
            for peel in self.found_peels:
                for columns, most in ((peel.columns, MOST_TERMS), (self.everything, 1500)):
                    allowed = self.choices.of(columns, names)
                    plain = not any(atom.function for atom in allowed.powers)
                    key = (peel.factor, tuple(allowed.powers))
                    if not columns or key in seen or (names and plain):
                        continue
                    seen.add(key)
                    if not names and most == MOST_TERMS:
                        self._shapes(polynomial(columns, 2, 200) or [], peel.factor)
                    lists = [monomials(allowed, 3, most), monomials(allowed, 4, most)]
                    for terms in [*filter(None, lists), library(allowed, most)]:
                        self._shapes(terms, peel.factor)
                    if self.exact or time.monotonic() > self.end:
                        return

    def wide(self) -> None:
        """Functions of all columns and of products of two."""
        for names in (("sin", "cos"), ("log",), ("sin", "cos", "log", "exp")):
            terms = library(self.choices.of(self.everything, names), 2 * MOST_TERMS)
            for factor in dict.fromkeys([ONE, *(peel.factor for peel in self.found_peels)]):
                self._shapes(terms, factor)
                if self.exact or time.monotonic() > self.end:
                    return

    def _shapes(self, terms: Sequence[Term], factor: Term) -> None:
        """Each function around a sum of these terms; the promising ones are fitted."""
        if not terms or self.exact:
            return
        X, y = self.X[self.few], self.y[self.few]
        whole = design(terms, X)
        usual = np.isfinite(whole).all(0) & (np.abs(whole).max(0) < 1e12)
        g = design([factor], X)[:, 0]
        best, worst = self.best, math.inf
        if best is not None:  # only what may become better is fitted
            rest = y - best(X)
            worst = len(y) * math.log(float(rest @ rest) / len(y) + (1e-11 * self.spread) ** 2)
            worst += best.price(len(self.y), X.shape[1]) + 30
        prices = self.cost(terms)
        tried: list[tuple[float, str, list[Term], list[int]]] = []
        kept: list[tuple[float, str, list[Term], Array, Array, Array, list[int]]] = []
        for name, shape in SHAPES.items():
            places = np.flatnonzero(usual).tolist()
            if self.dimensions is not None:
                good = set(self.fitting(terms, name, factor))
                places = [i for i in places if terms[i] in good]
            if not places:
                continue
            undone = shape.undone(y, g)
            if undone is None:
                continue
            z, weight = undone
            D, target = whole[:, places] * weight[:, None], z * weight
            own = [terms[i] for i in places]
            price = prices[places]
            chosen = forward(D, target, price, 12)
            if not chosen:
                continue
            rest = target - D[:, chosen] @ np.linalg.lstsq(D[:, chosen], target, rcond=None)[0]
            bic = len(y) * math.log(float(rest @ rest) / len(y) + (1e-11 * self.spread) ** 2)
            bic += float(price[chosen].sum()) + 2 * shape.price
            if bic > worst + 200 and len(own) > 100:
                continue
            tried.append((bic, name, own, chosen))
            kept.append((bic, name, own, D, target, price, chosen))
        kept.sort(key=lambda entry: entry[0])
        for bic, name, own, D, target, price, chosen in kept[: 3 if len(terms) > 100 else None]:
            if len(own) <= len(y) // 2:  # few enough to begin with all of them
                sets = backward(D, target, price)
                fewer, _ = min(sets, key=lambda pair: pair[1], default=(chosen, math.inf))
                if len(fewer) <= 14:
                    tried.append((min(bic, worst) - 2.0, name, own, fewer))
            if 2 < len(own) <= 1500:
                one = own.index(ONE) if ONE in own else None
                for fixed in (None, one) if one is not None else (None,):
                    for pair in best_pairs(D, target, fixed):
                        tried.append((min(bic, worst) - 3.0, name, own, pair))
            for size in (2, 3, 4, 5, 6, 7) if len(own) < 500 else (3, 5):
                if size <= len(chosen):
                    better = swapped(D, target, price, chosen[:size])
                    tried.append((min(bic, worst) - 1.0, name, own, better))
        fitted: set[tuple[str, frozenset[Term]]] = set()
        for bic, name, own, chosen in sorted(tried, key=lambda t: t[0]):
            key = (name, frozenset(own[c] for c in chosen))
            if bic > worst or key in fitted:
                continue
            fitted.add(key)
            model = Model([own[c] for c in chosen], (), name, factor).fit(self.X, self.y)
            if self.add(model) is not None and model is not None:
                self.add(model.simpler(self.X, self.y))

    def _forward(self, terms: Sequence[Term], shape: str, factor: Term, most: int) -> None:
        terms = self.fitting(terms, shape, factor)
        D, y = design(terms, self.X), self.y
        usual = np.isfinite(D).all(0) & (np.abs(D).max(0, initial=0) < 1e12)
        if not usual.any():
            return
        terms, D = [t for t, good in zip(terms, usual, strict=True) if good], D[:, usual]
        if 2 < len(terms) <= 1500:
            for pair in best_pairs(D, y, None):
                self.add(Model([terms[c] for c in pair], (), shape, factor).fit(self.X, y))
        chosen = forward(D, y, self.cost(terms), most)
        if chosen:
            for size in range(1, len(chosen) + 1):
                model = Model([terms[c] for c in chosen[:size]], (), shape, factor)
                self.add(model.fit(self.X, y))
            model_ = Model([terms[c] for c in chosen]).fit(self.X, y)
            if model_ is not None:
                self.add(model_.simpler(self.X, y))

    def ratios(self) -> None:
        """P / Q: linear in the coefficients once multiplied with Q, then fitted as it is."""
        groups = [(peel.factor, peel.columns) for peel in self.found_peels]
        groups.append((ONE, tuple(self.everything)))
        for factor, columns in dict.fromkeys(groups):
            if not columns:
                continue
            for powers in ((1, 2), (1, 2, 3)):
                terms = [
                    t for t in polynomial(columns, len(powers), 90) or ()
                    if len(columns) > 1 or len(t) <= 1
                ]  # fmt: skip
                for name in ("identity", "square root"):
                    for model in self._ratio(terms, name, factor):
                        self.add(model)
                    if self.exact or time.monotonic() > self.end:
                        return

    def _ratio(self, terms: Sequence[Term], name: str, factor: Term) -> Iterator[Model]:
        X, y = self.X, self.y
        if len(terms) < 2 or 4 * len(terms) > len(y):
            return
        shape, M, g = SHAPES[name], design(terms, X), design([factor], X)[:, 0]
        undone = shape.undone(y, g)
        if undone is None:
            return
        (z, weight), price = undone, self.cost(terms)
        found: list[tuple[float, Model]] = []
        # A Q with a coefficient of 1: the constant, or one of the simplest terms.
        for one in np.argsort(price)[: 1 + min(len(terms) - 1, 2 * X.shape[1] + 2)]:
            below = [i for i in range(len(terms)) if i != one]
            D = np.column_stack([M, -z[:, None] * M[:, below]]) * weight[:, None]
            target = z * M[:, one] * weight
            cost = np.concatenate([price, price[below]])
            for kept, bic in backward(D, target, cost):
                top = [terms[k] for k in kept if k < len(terms)]
                bottom = [terms[below[k - len(terms)]] for k in kept if k >= len(terms)]
                if top and bottom and len(kept) <= 12:
                    found.append((bic, Model(top, [terms[one], *bottom], name, factor)))
        found.sort(key=lambda pair: pair[0])
        for _, model in found[:6]:
            fitted = model.fit(X, y)
            if fitted is not None:
                yield fitted.simpler(X, y)

    def sums(self) -> None:
        """Two or three power laws with free exponents."""
        for terms in power_sums(self.X, self.y, self.end):
            model = Model(self.fitting(terms, "identity", ONE) or terms).fit(self.X, self.y)
            if self.add(model) is not None and model is not None:
                self.add(model.simpler(self.X, self.y))
