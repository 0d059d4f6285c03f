"""Which solver a fit of some size should use, and why."""

from __future__ import annotations

from typing import NamedTuple

MEMORY = 2**31
"""Bytes that the matrices of a fit may take."""

SPEED = 2e10
"""Operations a second that one core makes in a product of matrices."""

STEPS = 100
"""Steps of a usual fit."""

PATIENCE = 600.0
"""Seconds after which a usual fit is better left to Adam, unless it is asked for."""


class Choice(NamedTuple):
    """A solver: "normal", "residual", "products" or "adam"; the reason; about how many seconds."""

    solver: str
    reason: str
    seconds: float


def choose_solver(
    residuals: int, parameters: int, *, memory: int = MEMORY, patience: float = PATIENCE
) -> Choice:
    """Chooses how to solve a least-squares fit, from its size.

    The matrices J'J (parameters squared) and J J' (residuals squared) give the same steps; the
    smaller one is built. Where neither fits into memory, or 100 steps would take longer than
    `patience`, products with J remain (conjugate gradients). Where also those would take longer,
    Adam on minibatches is the better choice: it needs a few hundred passes over the data.

    Args:
        residuals: rows times outputs.
        parameters: the number of the network's parameters.
        memory: bytes that the matrices may take.
        patience: seconds that a usual fit may take on one core.

    Returns:
        The solver, its reason in words, and about how many seconds 100 steps take on one core.

    Examples:
        >>> choose_solver(2_000, 500).solver
        'normal'
        >>> choose_solver(100, 5_000).solver
        'residual'
        >>> choose_solver(5_000, 5_900).solver
        'products'
    """
    few = min(residuals, parameters)
    name = "normal" if parameters <= residuals else "residual"
    size = f"{residuals:,} residuals, {parameters:,} parameters"
    bytes_ = 8 * (3 * few * few + (residuals * parameters if name == "residual" else 0))
    seconds = STEPS * (2 * residuals * parameters * few * 0.6 + few**3) / SPEED
    if bytes_ <= memory and seconds <= patience:
        what = "J'J" if name == "normal" else "J J'"
        return Choice(name, f"{size}: {what} has {few:,} rows and is the smaller matrix", seconds)
    limit = "memory" if bytes_ > memory else "time"
    # Some fifty products a step, each two passes of about 4 operations a number, at a tenth of
    # the speed.
    cheap = STEPS * 50 * 8 * residuals * parameters / (SPEED / 10)
    if cheap <= patience:
        return Choice("products", f"{size}: a matrix would take too much {limit}", cheap)
    return Choice("adam", f"{size}: even products with J take about {cheap:,.0f} s", cheap)
