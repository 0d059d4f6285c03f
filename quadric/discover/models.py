"""A formula with its coefficients: y = g F(P / Q), fitted to the target itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quadric.discover.selection import FLOOR, log_loss
from quadric.discover.terms import ONE, Term, bits, columns_of, design, term_sympy
from quadric.support.extras import load_extra

Array = np.ndarray


@dataclass(frozen=True)
class Shape:
    """What is done to P / Q.

    Attributes:
        name: in words.
        forward: from u to F(u).
        slope: the derivative, from u and F(u).
        back: from F(u) to u; NaN where there is none.
        power: F is this power; None for another function.
        price: how long it takes to write it down.
    """

    name: str
    forward: Callable[[Array], Array]
    slope: Callable[[Array, Array], Array]
    back: Callable[[Array], Array]
    power: float | None = None
    price: float = 2.0

    def undone(self, y: Array, factor: Array) -> tuple[Array, Array] | None:
        """The u of y = factor F(u), and the weights that make errors of u those of y.

        Both are 0 where there is no u; None if there is none for many.
        """
        with np.errstate(all="ignore"):
            u = self.back(y / factor)
            weight = np.abs(factor * self.slope(u, y / factor))
        known = np.isfinite(u) & np.isfinite(weight)
        if known.mean() < 0.9:
            return None
        most = 10 * np.median(weight[known])
        return np.where(known, u, 0), np.where(known, np.minimum(weight, most), 0)


def _power(name: str, p: float) -> Shape:
    if p == 1:
        return Shape(name, lambda u: u, lambda u, v: np.ones_like(u), lambda v: v, 1, 0.0)
    if p == -1:
        return Shape(name, lambda u: 1 / u, lambda u, v: -v * v, lambda v: 1 / v, -1)
    return Shape(
        name,
        lambda u: np.where(u > 0, np.abs(u) ** p, np.nan),
        lambda u, v: p * v / u,
        lambda v: np.where(v > 0, np.abs(v) ** (1 / p), np.nan),
        p,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        _power("identity", 1),
        _power("reciprocal", -1),
        _power("square root", 0.5),
        _power("reciprocal root", -0.5),
        _power("square", 2),
        _power("reciprocal square", -2),
        Shape(
            "exponential",
            lambda u: np.exp(np.minimum(u, 700)),
            lambda u, v: v,
            lambda v: np.where(v > 0, np.log(np.abs(v) + 1e-300), np.nan),
        ),
        Shape(
            "arcsine",
            lambda u: np.where(np.abs(u) <= 1, np.arcsin(np.clip(u, -1, 1)), np.nan),
            lambda u, v: 1 / np.maximum(np.cos(v), 1e-8),
            lambda v: np.where(np.abs(v) <= np.pi / 2, np.sin(v), np.nan),
        ),
    )
}


@dataclass
class Model:
    """One structure, with what a fit found.

    Attributes:
        top: the terms of P.
        bottom: those of Q; the first has coefficient 1. Empty for no ratio.
        shape: F, a key of `SHAPES`.
        factor: g, without a coefficient.
        theta: coefficients, those of P first.
        covariance: of the coefficients.
        rms: root mean square error on the rows of the fit.
        bic: each coefficient counts the logarithm of the rows, each term what it takes to write it.
        exponents: standard errors of free exponents, by column.
    """

    top: Sequence[Term]
    bottom: Sequence[Term] = ()
    shape: str = "identity"
    factor: Term = ONE
    theta: Array = field(default_factory=lambda: np.zeros(0))
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))
    rms: float = math.inf
    bic: float = math.inf
    exponents: dict[int, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells structures apart."""
        return tuple(sorted(self.top)), tuple(self.bottom), self.shape, self.factor

    @property
    def columns(self) -> frozenset[int]:
        """The columns in it."""
        return columns_of([*self.top, *self.bottom, self.factor])

    def __call__(self, X: Array) -> Array:
        """Its values on rows."""
        return self._parts(self._designs(X), self.theta)[0]

    def _designs(self, X: Array) -> tuple[Array, Array | None, Array]:
        below = design(self.bottom, X) if self.bottom else None
        return design(self.top, X), below, design([self.factor], X)[:, 0]

    def _parts(
        self, designs: tuple[Array, Array | None, Array], theta: Array
    ) -> tuple[Array, Array]:
        """The values, and their derivatives by the coefficients."""
        above, below, g = designs
        shape, count = SHAPES[self.shape], above.shape[1]
        with np.errstate(all="ignore"):
            u, slopes = above @ theta[:count], above
            if below is not None:
                q = below[:, 0] + below[:, 1:] @ theta[count:]
                u = u / q
                slopes = np.column_stack([above, -u[:, None] * below[:, 1:]]) / q[:, None]
            v = shape.forward(u)
            return g * v, (g * shape.slope(u, v))[:, None] * slopes

    def poles(self, X: Array) -> bool:
        """Whether Q comes near 0 between the rows: the formula is then not to be trusted."""
        if not self.bottom:
            return False
        below = design(self.bottom, X)
        q = below[:, 0] + below[:, 1:] @ self.theta[len(self.top) :]
        return bool(q.min() < 0 < q.max()) or bool(np.abs(q).min() < 1e-6 * np.abs(q).max())

    def fit(self, X: Array, y: Array, start: Array | None = None) -> Model | None:
        """The model with the coefficients of least squares in the target's own unit."""
        designs = self._designs(X)
        linear = self.shape == "identity" and not self.bottom
        theta = self._start(designs, y) if start is None or linear else start
        if theta is None or not np.isfinite(theta).all():
            return None
        values, slopes = self._parts(designs, theta)
        far = 1e6 * float(np.abs(y).max())
        if not np.isfinite(values).all() or float(np.abs(values).max()) > far:
            return None
        if not linear:
            found = self._minimized(designs, y, theta)
            if found is None:
                return None
            theta = found
            values, slopes = self._parts(designs, theta)
        if not np.isfinite(values).all() or float(np.abs(values).max()) > far:
            return None
        squares = float(((y - values) ** 2).sum())
        size = np.linalg.norm(np.clip(np.nan_to_num(slopes), -1e150, 1e150), axis=0)
        if not (size > 0).all() or not np.isfinite(size).all():
            return None
        inverse = np.linalg.pinv((slopes / size).T @ (slopes / size))
        floor = (FLOOR * float(np.sqrt((y * y).mean()))) ** 2
        noise = max(squares / max(len(y) - len(theta), 1), floor)
        model = Model(self.top, self.bottom, self.shape, self.factor, theta)
        model.covariance = noise * inverse / size / size[:, None]
        model.rms = math.sqrt(squares / len(y))
        model.bic = float(log_loss(squares, y)) + self.price(len(y), X.shape[1])
        model.exponents = self.exponents
        if model.poles(X):
            return None
        return model

    def price(self, rows: int, columns: int) -> float:
        """The part of BIC that does not depend on the fit."""
        terms = [*self.top, *self.bottom]
        length = 2 * sum(bits(term, columns) for term in [*terms, self.factor])
        free = len(terms) - bool(self.bottom) + len(self.exponents)
        return length + free * math.log(rows) + 2 * SHAPES[self.shape].price + 2 * bool(self.bottom)

    def _start(self, designs: tuple[Array, Array | None, Array], y: Array) -> Array | None:
        """Least squares of P - z Q, weighted by what an error there means in y."""
        above, below, g = designs
        shape = SHAPES[self.shape]
        with np.errstate(all="ignore"):
            z = shape.back(y / g)
            weight = np.abs(g * shape.slope(z, y / g))
        known = np.isfinite(z) & np.isfinite(weight)
        if known.mean() < 0.7:
            return None
        if self.power_free:
            weight = np.minimum(weight, 10 * np.median(weight[known]))
        z, weight = np.where(known, z, 0), np.where(known, weight, 0)
        if below is None:
            return np.asarray(np.linalg.lstsq(above * weight[:, None], z * weight, rcond=None)[0])
        weight = weight / np.maximum(np.abs(below[:, 0]), 1e-9)
        theta = None
        for _ in range(3):  # the weight of a row is one over its Q
            D = np.column_stack([above, -z[:, None] * below[:, 1:]]) * weight[:, None]
            theta = np.linalg.lstsq(D, z * below[:, 0] * weight, rcond=None)[0]
            q = below[:, 0] + below[:, 1:] @ theta[above.shape[1] :]
            weight = np.where(known, 1 / np.maximum(np.abs(q), 1e-3 * np.abs(q).max()), 0)
        return theta

    @property
    def power_free(self) -> bool:
        """Whether the weights of the linearized fit can grow without limit."""
        return self.shape not in ("identity", "exponential")

    def _minimized(
        self, designs: tuple[Array, Array | None, Array], y: Array, theta: Array
    ) -> Array | None:
        """Levenberg-Marquardt from a start near the answer, by scipy."""
        least_squares = load_extra("scipy.optimize", "a formula", "discover").least_squares
        far = 1e3 * float(np.abs(y).max() + 1e-300)

        def residuals(t: Array) -> Array:
            return np.asarray(
                np.nan_to_num(self._parts(designs, t)[0] - y, nan=far, posinf=far, neginf=-far)
            )

        def jacobian(t: Array) -> Array:
            return np.asarray(np.nan_to_num(self._parts(designs, t)[1], posinf=0.0, neginf=0.0))

        if len(y) < len(theta):
            return None
        try:
            found = least_squares(
                residuals, theta, jacobian, method="lm", xtol=1e-14, ftol=1e-14, gtol=1e-14,
                x_scale="jac", max_nfev=60,
            )  # fmt: skip
        except (ValueError, np.linalg.LinAlgError):
            return None
        return np.asarray(found.x)

    def simpler(self, X: Array, y: Array) -> Model:
        """Without the terms that BIC says are none, one after another."""
        best = self
        while len(best.top) + len(best.bottom) > 1:
            errors = np.sqrt(np.maximum(np.diag(best.covariance), 1e-300))
            order = np.argsort(np.abs(best.theta) / errors)
            for place in order[:3]:
                smaller = best._without(int(place))
                theta = np.delete(best.theta, place)
                fitted = smaller and smaller.fit(
                    X, y, theta if best.shape != "identity" or best.bottom else None
                )
                if fitted and fitted.bic < best.bic:
                    best = fitted
                    break
            else:
                return best
        return best

    def _without(self, place: int) -> Model | None:
        top, bottom = list(self.top), list(self.bottom)
        if place < len(top):
            del top[place]
        else:
            del bottom[place - len(top) + 1]
        if not top:
            return None
        return Model(top, bottom, self.shape, self.factor)

    def sympy(self, sp: Any, symbols: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """The formula, with these numbers for its coefficients."""
        count = len(self.top)
        terms = [term_sympy(sp, term, symbols) for term in self.top]
        inside = sp.Add(*(c * t for c, t in zip(numbers[:count], terms, strict=True)))
        if self.bottom:
            below = [term_sympy(sp, term, symbols) for term in self.bottom]
            pairs = zip([sp.Integer(1), *numbers[count:]], below, strict=True)
            inside = inside / sp.Add(*(c * t for c, t in pairs))
        g = term_sympy(sp, self.factor, symbols)
        shape = SHAPES[self.shape]
        if shape.power is not None:
            return g * inside ** sp.Rational(round(2 * shape.power), 2)
        if self.shape == "arcsine":
            return g * sp.asin(inside)
        constant = inside.as_coeff_Add()[0]
        return g * sp.exp(constant) * sp.exp(inside - constant)
