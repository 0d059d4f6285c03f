"""How sure a formula is: is what it leaves noise, and which columns cannot be told apart?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from quadric.discover.models import Model
from quadric.discover.terms import Term, columns_of
from quadric.support.extras import load_extra

Array = np.ndarray

EXACT = 1e-10
"""Errors below this share of the spread are none."""


def how_sure(
    model: Model, pool: Iterable[Model], share: float, rows: tuple[Array, Array], target: str
) -> str:
    """How sure the best formula is, in a sentence; its held-out error is a share of the spread."""
    if share < 100 * EXACT:
        return f"Exact: on rows that were held out it errs by {share:.1g} of the spread: rounding."
    X, y = rows
    rest = y - model(X)
    left = max(structure_left(X[:, sorted(model.columns)], rest), structure_left(X, rest))
    said = f"It errs by {100 * share:.2g} % of the spread of {target} on rows that were held out; "
    if left > 4:
        said += (
            "what it leaves is no noise (neighboring rows err alike): it is an approximation, and "
            "should not be trusted outside of the data."
        )
    else:
        said += "what it leaves looks like noise."
    rivals = [m for m in pool if m.bic < model.bic + 10 and not m.columns >= model.columns]
    if rivals:
        said += f" {len(rivals)} formulas in other columns are about as likely."
    return said


def structure_left(X: Array, rest: Array) -> float:
    """How far, in standard errors, the errors of neighbors are alike: 0 for noise."""
    if not X.shape[1] or len(rest) < 20 or not rest.std():
        return 0.0
    Z = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    few = np.random.default_rng(0).permutation(len(rest))[:3000]
    tree = load_extra("scipy.spatial", "a formula", "discover").KDTree
    _, near = tree(Z[few]).query(Z[few], k=2)
    e = np.clip((rest[few] - rest[few].mean()) / rest[few].std(), -4, 4)
    alike = e * e[near[:, 1]]
    return float(alike.mean() / max(alike.std(), 1e-12) * math.sqrt(len(e)) / math.sqrt(1.5))


def correlated(X: Array, limit: float = 0.98) -> list[tuple[int, int, float]]:
    """Pairs of columns that nearly say the same."""
    if X.shape[1] < 2:
        return []
    C = np.corrcoef(X.T)
    pairs = zip(*np.triu_indices(len(C), 1), strict=True)
    return [(int(i), int(j), float(C[i, j])) for i, j in pairs if abs(C[i, j]) > limit]


def same_as(model: Model, other: int, instead: int) -> Model | None:
    """The formula with another column in place of one."""

    def put(term: Term) -> Term:
        return tuple(
            (type(a)(a.function, tuple((instead if i == other else i, p) for i, p in a.powers)), q)
            for a, q in term
        )

    if other not in columns_of([*model.top, *model.bottom, model.factor]):
        return None
    return Model(
        [put(t) for t in model.top], [put(t) for t in model.bottom], model.shape, put(model.factor)
    )


def twins(model: Model, X: np.ndarray, y: np.ndarray, names: Sequence[str]) -> list[str]:
    """Columns that the data cannot tell apart."""
    notes = []
    for i, j, r in correlated(X):
        for one, other in ((i, j), (j, i)):
            swapped = same_as(model, one, other)
            fitted = None if swapped is None else swapped.fit(X, y)
            if fitted is not None and fitted.rms < 1.05 * model.rms + EXACT * float(y.std()):
                notes.append(
                    f"{names[one]!r} and {names[other]!r} (correlation {r:.3f}) cannot be told "
                    f"apart: with {names[other]!r} the formula is as good"
                )
    return notes
