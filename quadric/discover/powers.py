"""Power laws, factors of powers, and sums of power laws: regressions of logarithms."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quadric.discover.models import Model
from quadric.discover.selection import backward, solved
from quadric.discover.terms import ONE, Atom, Choices, Term, column, design, polynomial
from quadric.support.extras import load_extra

Array = np.ndarray


@dataclass(frozen=True)
class Peel:
    """A factor that is divided out, and the columns that what is left depends on."""

    factor: Term
    columns: tuple[int, ...]


def _logs(y: Array) -> tuple[Array, Array]:
    """Logarithms of sizes, and weights: an error of y is one of log y times y."""
    size = np.abs(y)
    usual = float(np.median(size)) or 1.0
    with np.errstate(divide="ignore"):
        z = np.where(size > 1e-12 * usual, np.log(size), 0)
    return z, np.where(size > 1e-12 * usual, np.minimum(size / usual, 1.0), 0)


def _usable(X: Array, atoms: Sequence[Atom]) -> list[Atom]:
    return [a for a in atoms if (np.abs(a.values(X)) > 0).all()]


def _near(power: float, far: float) -> float:
    """The whole or half number within reach; 0 else."""
    for step in (1, 0.5):
        rounded = round(power / step) * step
        if abs(power - rounded) <= far:
            return float(rounded)
    return 0.0


def peels(X: Array, y: Array, allowed: Choices, columns: Sequence[int]) -> list[Peel]:
    """Factors that the target may have: powers of columns, of sines and of cosines."""
    z, weight = _logs(y)
    atoms = [
        a for a in allowed.of(columns, ("sin", "cos")).powers
        if len(a.powers) == 1 and (not a.function or len(columns) <= 10)
    ]  # fmt: skip
    atoms = _usable(X, atoms)
    L = design([((a, 1.0),) for a in atoms], X)
    L = np.log(np.abs(L))
    curved = polynomial(list(columns), 2, 100) or [ONE]
    Z = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    D = np.column_stack([L, design(curved, Z)])
    found: list[Peel] = [Peel(ONE, tuple(columns))]
    rows = np.log(len(y))
    short = np.column_stack([L, np.ones(len(y))])
    for part in (D, short):
        if 3 * part.shape[1] > len(y):
            continue
        cost = np.full(part.shape[1], rows + 4.0)
        cost[: len(atoms)] = rows
        sets = list(backward(part * weight[:, None], z * weight, cost))
        if not sets:
            continue
        kept = min(sets, key=lambda s: s[1])[0]
        answer = solved(part[:, kept] * weight[:, None], z * weight)
        if answer is None:
            continue
        powers = dict(zip(kept, answer[0], strict=True))
        left = {i for k in kept if k >= len(atoms) and part is D
                for atom, _ in curved[k - len(atoms)] for i, _ in atom.powers}  # fmt: skip
        for far, only_alone in ((0.1, True), (0.12, False), (0.3, False)):
            term, rest = [], set(left)
            for k, atom in enumerate(atoms):
                i = atom.powers[0][0]
                power = _near(powers.get(k, 0.0), far)
                crossing = not atom.function and X[:, i].min() < 0
                if crossing:
                    power = float(round(power))
                if power and not (only_alone and i in left):
                    term.append((atom, max(-4.0, min(4.0, power))))
                elif abs(powers.get(k, 0.0)) > 0:
                    rest.add(i)
            found.append(Peel(tuple(sorted(term)), tuple(sorted(rest))))
    return list(dict.fromkeys(found))


def power_laws(X: Array, y: Array) -> Iterator[Model]:
    """Numbers times powers of columns: rounded powers, and free ones with their errors."""
    least_squares = load_extra("scipy.optimize", "a power law", "discover").least_squares
    columns = [i for i in range(X.shape[1]) if (X[:, i] != 0).all() and np.ptp(np.abs(X[:, i])) > 0]
    if not columns or len(y) < 2 * len(columns) + 3:
        return
    z, weight = _logs(y)
    L = np.log(np.abs(X[:, columns]))
    D = np.column_stack([L, np.ones(len(y))])
    sets = list(backward(D * weight[:, None], z * weight, np.full(D.shape[1], np.log(len(y)))))
    if not sets:
        return
    kept = [k for k in min(sets, key=lambda s: s[1])[0] if k < len(columns)]
    signed = {k for k in kept if X[:, columns[k]].min() < 0}
    for _ in range(len(columns)):
        if not kept:
            return
        part = np.column_stack([L[:, kept], np.ones(len(y))])
        start = np.linalg.lstsq(part * weight[:, None], z * weight, rcond=None)[0]
        for place, k in enumerate(kept):
            if k in signed:
                start[place] = round(start[place])
        rounded = [
            (columns[k], float(_near(p, 0.2) or round(p, 3)))
            for k, p in zip(kept, start, strict=False)
        ]
        yield Model([_term(rounded)])
        fixed = [place for place, k in enumerate(kept) if k in signed]
        free = [place for place in range(len(kept)) if place not in fixed]
        sign = np.sign(design([_term([(columns[kept[p]], start[p]) for p in fixed])], X)[:, 0])
        base = sign * np.exp(L[:, [kept[p] for p in fixed]] @ start[fixed])
        inner = L[:, [kept[p] for p in free]]

        def value(t: Array, base: Array = base, inner: Array = inner) -> Array:
            return np.asarray(t[0] * base * np.exp(np.clip(inner @ t[1:], -300, 300)))

        first = np.concatenate([[np.exp(np.clip(start[-1], -300, 300))], start[free]])
        unit = value(first)
        first[0] *= float(unit @ y) / max(float(unit @ unit), 1e-300)

        def slopes(t: Array, base: Array = base, inner: Array = inner) -> Array:
            v = value(t, base, inner)
            return np.column_stack([v / (t[0] or 1e-300), v[:, None] * inner])

        answer = least_squares(
            lambda t: value(t) - y,
            first,
            slopes,
            method="lm",
            x_scale="jac",
            max_nfev=100,
        )
        J = slopes(answer.x)
        noise = max(2 * answer.cost / max(len(y) - len(first), 1), 1e-20 * float((y * y).mean()))
        errors = np.sqrt(np.maximum(np.diag(noise * np.linalg.pinv(J.T @ J)), 1e-24))[1:]
        powers = start[:-1].copy()
        powers[free] = answer.x[1:]
        gone = [p for p, e in zip(free, errors, strict=True) if abs(powers[p]) < 3 * e]
        if gone:  # not needed: without it
            weakest = min(gone, key=lambda p: abs(powers[p]) / errors[free.index(p)])
            kept = [k for place, k in enumerate(kept) if place != weakest]
            continue
        loose: dict[int, float] = {}
        said = []
        for place, k in enumerate(kept):
            power = float(powers[place])
            if place in free:
                error = float(errors[free.index(place)])
                near = [round(k * power) / k for k in (1, 2, 3, 4)]
                simple = [s for s in near if abs(s - power) <= 3 * error + 1e-7]
                if simple and error < 0.06:
                    power = float(simple[0])
                else:
                    loose[columns[k]] = error
            said.append((columns[k], power))
        model = Model([_term(said)])
        model.exponents = loose
        yield model
        return


def _term(powers: Sequence[tuple[int, float]]) -> Term:
    return tuple(sorted((column(i), float(p)) for i, p in powers if p))


def power_sums(X: Array, y: Array, end: float) -> Iterator[list[Term]]:
    """Terms of sums of two and three power laws, found with free exponents and rounded."""
    least_squares = load_extra("scipy.optimize", "a power law", "discover").least_squares
    columns = [i for i in range(X.shape[1]) if X[:, i].min() > 0 and np.ptp(X[:, i]) > 0]
    if not columns or len(columns) > 10:
        return
    draw = np.random.default_rng(0)
    rows = draw.permutation(len(y))[:400]
    L, target = np.log(X[rows][:, columns]), y[rows] / float(np.abs(y).max())
    width = len(columns)
    z, weight = _logs(target)
    middle = np.linalg.lstsq(
        np.column_stack([L, np.ones(len(rows))]) * weight[:, None], z * weight, rcond=None
    )[0][:width]
    for count, constant in ((1, True), (2, False), (2, True), (3, False)):
        for _ in range(8):
            if time.monotonic() > end:
                return
            start = np.concatenate(
                [draw.normal(size=count), *(middle + draw.normal(size=(count, width)) * 0.8), [0.0]]
            )

            def parts(t: Array, count: int = count) -> Array:
                powers = t[count : count + count * width].reshape(count, width)
                return np.asarray(np.exp(np.clip(L @ powers.T, -50, 50)))

            def residuals(t: Array, count: int = count, constant: bool = constant) -> Array:
                return np.asarray(parts(t, count) @ t[:count] + constant * t[-1] - target)

            def slopes(t: Array, count: int = count, constant: bool = constant) -> Array:
                v = parts(t, count)
                inner = [(t[k] * v[:, k])[:, None] * L for k in range(count)]
                last = np.full((len(L), 1), 1.0 if constant else 1e-12)
                return np.column_stack([v, *inner, last])

            answer = least_squares(
                residuals, start, slopes, method="lm", x_scale="jac", max_nfev=80
            )
            if 2 * answer.cost / len(rows) > 0.2 * float(target.var()):
                continue
            powers = answer.x[count : count + count * width].reshape(count, width)
            terms = [
                _term([(c, _rounded(p)) for c, p in zip(columns, row, strict=True)])
                for row in powers
            ]
            yield list(dict.fromkeys([*terms, *([ONE] if constant else [])]))


def _rounded(power: float) -> float:
    whole = round(power)
    return float(whole if abs(power - whole) < 0.2 else round(2 * power) / 2)
