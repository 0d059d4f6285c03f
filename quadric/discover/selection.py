"""Which terms of a linear model stay: greedy steps forward, elimination backward, both by BIC."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

FLOOR = 1e-11
"""Errors below this share of the target are rounding."""


def log_loss(squares: float | np.ndarray, z: np.ndarray) -> float | np.ndarray:
    """Rows times the logarithm of the mean square: the fit's part of BIC."""
    floor = FLOOR * FLOOR * float(z @ z)
    result: float | np.ndarray = len(z) * np.log(np.maximum(squares, 0) + floor + 1e-300)
    return result


def forward(
    D: np.ndarray, z: np.ndarray, cost: np.ndarray, most: int, start: tuple[int, ...] = ()
) -> list[int]:
    """Orthogonal least squares: at each step the term that lowers BIC most."""
    norms = np.einsum("ij,ij->j", D, D)
    left, top = norms.copy(), D.T @ z
    squares = float(z @ z)
    basis: list[np.ndarray] = []
    chosen: list[int] = []
    for step in range(most):
        gain = np.where(left > 1e-9 * norms, top * top / np.maximum(left, 1e-300), 0.0)
        before = log_loss(squares, z)
        better = before - log_loss(squares - gain, z) - cost
        better[chosen] = -np.inf
        best = start[step] if step < len(start) else int(np.argmax(better))
        if step >= len(start) and better[best] <= 0:
            break
        q = D[:, best].copy()
        for _ in range(2):
            for known in basis:
                q -= known * (known @ q)
        length = float(np.linalg.norm(q))
        if length <= 1e-7 * np.sqrt(norms[best]):
            break
        q /= length
        basis.append(q)
        chosen.append(best)
        along, shadow = float(q @ z), D.T @ q
        top -= along * shadow
        left -= shadow * shadow
        squares = max(squares - along * along, 0.0)
    return chosen


def solved(D: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Coefficients, the sum of squares, and what leaving each term out adds to it."""
    size = np.sqrt(np.einsum("ij,ij->j", D, D))
    if not np.all(np.isfinite(size)) or not np.all(size > 0):
        return None
    q, r = np.linalg.qr(D / size)
    if np.abs(np.diag(r)).min() < 1e-11:
        return None
    inverse = np.linalg.inv(r)
    scaled = inverse @ (q.T @ z)
    rest = z - (D / size) @ scaled
    loss = scaled * scaled / np.einsum("ij,ij->i", inverse, inverse)
    return scaled / size, float(rest @ rest), loss


def backward(D: np.ndarray, z: np.ndarray, cost: np.ndarray) -> Iterator[tuple[list[int], float]]:
    """Eliminates terms one after another, many at once at first; yields each set with its BIC."""
    kept = list(range(D.shape[1]))
    while kept:
        found = solved(D[:, kept], z)
        if found is None:
            return
        _, squares, loss = found
        own = cost[kept]
        yield kept, float(log_loss(squares, z)) + float(own.sum())
        worth = log_loss(squares + loss, z) - log_loss(squares, z) - own
        drop = 1
        if len(kept) > 25:
            drop = max(1, min(int((worth < 0).sum()), len(kept) // 4, len(kept) - 20))
        gone = set(np.argsort(worth)[:drop].tolist())
        kept = [k for i, k in enumerate(kept) if i not in gone]


def swapped(D: np.ndarray, z: np.ndarray, cost: np.ndarray, chosen: list[int]) -> list[int]:
    """Replaces single terms as long as that lowers BIC."""

    def bic(terms: list[int]) -> float:
        found = solved(D[:, terms], z)
        return np.inf if found is None else float(log_loss(found[1], z)) + float(cost[terms].sum())

    best = bic(chosen)
    for _ in range(3):
        before = best
        for term in list(chosen):
            rest = tuple(t for t in chosen if t != term)
            other = forward(D, z, cost, len(rest) + 1, rest)
            value = bic(other) if other else np.inf
            if value < best - 1e-6:
                chosen, best = other, value
        if best >= before - 1e-6:
            break
    return chosen


def best_pairs(D: np.ndarray, z: np.ndarray, fixed: int | None, most: int = 3) -> list[list[int]]:
    """The pairs of terms that explain most; beside a fixed term where one is given."""
    start: list[int] = [] if fixed is None else [fixed]
    if fixed is not None:
        q = D[:, fixed] / np.linalg.norm(D[:, fixed])
        D, z = D - np.outer(q, q @ D), z - q * (q @ z)
    size = np.linalg.norm(D, axis=0)
    U = D / np.where(size > 1e-9 * size.max(initial=0), size, np.inf)
    alike, top = U.T @ U, U.T @ z
    apart = 1 - alike * alike
    left = top[:, None]
    mixed = left**2 + top**2 - 2 * alike * left * top
    gain = np.where(np.triu(apart, 1) > 1e-7, mixed / np.maximum(apart, 1e-7), 0)
    order = np.argpartition(gain, -most, axis=None)[-most:]
    return [[*start, *map(int, np.unravel_index(place, gain.shape))] for place in order]
