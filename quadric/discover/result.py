"""What a search gives: formulas with error bars, from short to exact."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.discover.models import SHAPES, Model
from quadric.discover.numbers import number_sympy, simple_number
from quadric.discover.terms import term_sympy
from quadric.discover.units import split_unit
from quadric.errors import InputError
from quadric.support.texttable import text_table

if TYPE_CHECKING:
    import sympy
    from matplotlib.figure import Figure


def symbol_names(columns: Sequence[str]) -> list[str]:
    """Names that sympy can parse, in place of those of the columns.

    Examples:
        >>> symbol_names(["mass", "heat flow (W/m²)", "lambda", "heat-flow-W/m"])
        ['mass', 'heat_flow_W_m', 'lambda_', 'heat_flow_W_m_2']
    """
    found: list[str] = []
    for name in columns:
        text = name if name.isidentifier() else re.sub(r"[^0-9A-Za-z_]+", "_", name).strip("_")
        text = f"x_{text}" if not text or text[0].isdigit() else text
        text += "_" * keyword.iskeyword(text)
        number = 2
        while text in found:
            text = f"{text.rpartition('_')[0] if number > 2 else text}_{number}"
            number += 1
        found.append(text)
    return found


@dataclass(frozen=True)
class Coefficient:
    """A number of a formula.

    Attributes:
        term: what it multiplies, as text.
        part: "numerator" or "denominator".
        value: as fitted.
        standard_error: of the fit.
        written: as it stands in the formula: a simple number where the data allow one.
        snapped: whether it was replaced by a simple number.
    """

    term: str
    part: str
    value: float
    standard_error: float
    written: Any
    snapped: bool


@dataclass
class Formula:
    """One formula.

    Attributes:
        model: terms and coefficients.
        expression: as a sympy expression.
        coefficients: its numbers with their errors.
        error: root mean square error on rows that were held out.
        bic: Bayesian information criterion on the rows of the search, in which each term also
            counts what it takes to write it down; lower is better.
        length: the number of signs: numbers, names and operations.
        names: the columns that were searched.
        symbols: their names in the expression.
        given: all columns of the table, with those of one value.
    """

    model: Model
    expression: sympy.Expr
    coefficients: list[Coefficient]
    error: float
    bic: float
    length: int
    names: tuple[str, ...]
    symbols: tuple[str, ...]
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.expression)

    def sympy(self) -> sympy.Expr:
        """The formula as an expression of sympy, in the names of the columns."""
        return self.expression

    def latex(self) -> str:
        """The formula in LaTeX."""
        import sympy as sp

        return str(sp.latex(self.expression))

    def predict(self, X: Any) -> np.ndarray:
        """The formula's values on rows: an array of all columns in order, or a frame with them."""
        import sympy as sp

        rows = rows_of(X, self.names, self.given)
        call = sp.lambdify([sp.Symbol(s) for s in self.symbols], self.expression, "numpy")
        with np.errstate(all="ignore"):
            values = np.asarray(call(*rows.T), dtype=np.float64)
        return np.array(np.broadcast_to(values, len(rows)))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        powers = {self.names[i]: error for i, error in self.model.exponents.items()}
        return {
            "formula": str(self.expression),
            "error": self.error,
            "bic": self.bic,
            "length": self.length,
            "terms": [
                {
                    "term": c.term,
                    "part": c.part,
                    "coefficient": c.value,
                    "standard_error": c.standard_error,
                    "written": str(c.written),
                    "simple": c.snapped,
                }
                for c in self.coefficients
            ],
            **({"exponent_errors": powers} if powers else {}),
        }


def rows_of(X: Any, names: Sequence[str], given: Sequence[str]) -> np.ndarray:
    """Rows as an array of the searched columns; of a frame by name, with or without units."""
    if hasattr(X, "columns"):
        labels = {split_unit(str(label))[0]: label for label in X.columns}
        missing = [name for name in names if name not in labels]
        if missing:
            raise InputError(f"the rows need the column {missing[0]!r}, got {list(X.columns)}")
        X = X[[labels[name] for name in names]]
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim == 2 and rows.shape[1] == len(given):
        rows = rows[:, [given.index(name) for name in names]]
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(f"rows must be (N, {len(names)}), got {rows.shape}: give all columns")
    return rows


def written_formula(
    model: Model, names: Sequence[str], symbols: Sequence[str], error: float
) -> Formula:
    """A model as a formula, with simple numbers where the data allow them."""
    import sympy as sp

    own = [sp.Symbol(s) for s in symbols]
    shape = SHAPES[model.shape]
    errors = np.sqrt(np.maximum(np.diag(model.covariance), 0))
    ways = [_numbers(sp, model, errors, None)]
    if shape.power not in (None, 1) and len(model.top) > 1 and not model.bottom:
        # A common factor in front may make them simple.
        ways += [_numbers(sp, model, errors, one) for one in range(len(model.top))]
    numbers, front, flags = max(ways, key=lambda way: sum(way[2]))
    expression = model.sympy(sp, own, numbers) * front
    terms = [*model.top, *model.bottom[1:]]
    coefficients = [
        Coefficient(
            str(term_sympy(sp, term, own)),
            "numerator" if i < len(model.top) else "denominator",
            float(model.theta[i]),
            float(errors[i]),
            numbers[i],
            flags[i],
        )
        for i, term in enumerate(terms)
    ]
    length = sum(1 for _ in sp.preorder_traversal(expression))
    return Formula(
        model, expression, coefficients, error, model.bic, length, tuple(names), tuple(symbols)
    )


def _numbers(
    sp: Any, model: Model, errors: np.ndarray, one: int | None
) -> tuple[list[Any], Any, list[bool]]:
    """The numbers of a formula, a factor in front, and which are simple."""
    if one is None:
        numbers, flags = _all_written(sp, model.theta, model.covariance, _constant(model))
        return numbers, sp.Integer(1), flags
    theta, power = model.theta, SHAPES[model.shape].power
    assert power is not None
    # In place of one number the factor in front; the others become ratios to it.
    scale, sign = abs(theta[one]), np.sign(theta[one])
    values = theta / scale
    slopes = np.eye(len(theta)) / scale
    slopes[:, one] -= values * sign / scale
    values[one] = scale**power
    slopes[one] = 0
    slopes[one, one] = power * values[one] * sign / scale
    numbers, flags = _all_written(sp, values, slopes @ model.covariance @ slopes.T)
    front, numbers[one] = numbers[one], sp.Integer(int(sign))
    return numbers, front, flags


def _constant(model: Model) -> int | None:
    """The place of c in exp(c + ...), which is written as C exp(...)."""
    if model.shape != "exponential" or model.bottom:
        return None
    return next((i for i, term in enumerate(model.top) if not term), None)


def _all_written(
    sp: Any, values: np.ndarray, covariance: np.ndarray, power: int | None = None
) -> tuple[list[Any], list[bool]]:
    """Numbers as they are written, and which are simple; one may be written as its logarithm's.

    One number after another is written, the surest first, and the rest moves along with it as the
    data want it: numbers that each lie within their error may together lie far outside.
    """
    values, covariance = values.copy(), covariance.copy()
    numbers: list[Any] = [None] * len(values)
    flags = [False] * len(values)
    own = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    for simple_only in (True, False):
        for i in np.argsort(own / np.maximum(np.abs(values), 1e-150)).tolist():
            if flags[i]:
                continue
            value, variance = float(values[i]), max(float(covariance[i, i]), 0.0)
            error = math.sqrt(variance)
            if i == power:
                number, flags[i] = _written(sp, math.exp(value), math.exp(value) * error)
                number = sp.log(number)
            else:
                number, flags[i] = _written(sp, value, error)
            if simple_only and not flags[i]:
                continue
            numbers[i] = number
            if variance > 1e-12 * own[i] ** 2:
                along = covariance[:, i] / variance
                values = values + along * (float(number) - value)
                covariance = covariance - np.outer(along, covariance[i])
    return numbers, flags


def _written(sp: Any, value: float, error: float) -> tuple[Any, bool]:
    simple = simple_number(float(value), float(error))
    if simple is not None:
        return number_sympy(sp, *simple), True
    # A square root of a simple number, as in 1/sqrt(2 pi).
    square = simple_number(float(value) ** 2, 2 * abs(float(value)) * float(error))
    if square is not None and error < 1e-6 * abs(value):
        return sp.sqrt(number_sympy(sp, *square)) * (1 if value > 0 else -1), True
    digits = 15
    if error > 0 and value:
        digits = min(15, max(3, 3 + math.ceil(math.log10(abs(value) / error + 1))))
    return sp.Float(f"{value:.{digits}g}", digits), False


@dataclass
class Formulas:
    """The formulas that are worth their length, short ones first.

    Attributes:
        formulas: no other is both shorter and better.
        best: the place of the one with the lowest BIC.
        sentence: how sure that one is.
        notes: what was left out, replaced or could not be told apart.
        target: what they give.
        rows: how many were searched, and how many held out.
        spread: the standard deviation of the target.
        seconds: of the search.
    """

    formulas: list[Formula]
    best: int
    sentence: str
    notes: list[str]
    target: str
    rows: tuple[int, int]
    spread: float
    seconds: float

    def __getitem__(self, place: int) -> Formula:
        return self.formulas[place]

    def __len__(self) -> int:
        return len(self.formulas)

    @property
    def formula(self) -> Formula:
        """The best one."""
        return self.formulas[self.best]

    def predict(self, X: Any) -> np.ndarray:
        """The best formula's values on rows."""
        return self.formula.predict(X)

    def sympy(self) -> sympy.Expr:
        """The best formula as an expression of sympy."""
        return self.formula.sympy()

    def latex(self) -> str:
        """The best formula in LaTeX."""
        return self.formula.latex()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        best = self.formula
        renamed = {s: n for s, n in zip(best.symbols, best.names, strict=True) if s != n}
        return {
            "target": self.target,
            "best": self.best,
            "formulas": [formula.to_dict() for formula in self.formulas],
            "sentence": self.sentence,
            "notes": self.notes,
            "symbols": renamed,
            "rows": self.rows[0],
            "held_out_rows": self.rows[1],
            "spread": self.spread,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        rows = []
        for place, formula in enumerate(self.formulas):
            text = str(formula)
            rows.append([
                "best" if place == self.best else "",
                str(formula.length),
                f"{formula.error:.3g}",
                f"{100 * formula.error / self.spread:.2g} %",
                f"{formula.bic:.0f}",
                text if len(text) <= 100 else text[:97] + "…",
            ])  # fmt: skip
        head = ["", "length", "error", "of the spread", "BIC", self.target]
        lines = [text_table(head, rows, "lrrrrl"), "", f"{self.target} = {self.formula}"]
        cells = [
            [c.term + (" (below)" if c.part == "denominator" else ""),
             f"{c.value:.6g} ± {c.standard_error:.2g}", str(c.written) if c.snapped else ""]
            for c in self.formula.coefficients
        ]  # fmt: skip
        cells += [
            [f"power of {self.formula.names[i]}", f"± {error:.2g}", ""]
            for i, error in self.formula.model.exponents.items()
        ]
        lines += [
            text_table(["term", "coefficient", "written as"], cells, "lrl"),
            "",
            self.sentence,
        ]
        return "\n".join([*lines, *self.notes])

    def picture(self) -> Figure:
        """Error against length."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        x, y = [f.length for f in self.formulas], [max(f.error, 1e-15) for f in self.formulas]
        axes.plot(x, y, "o-", color="0.6")
        axes.plot(x[self.best], y[self.best], "o", color="C0", markersize=9)
        text = f"{self.target} = {self.formula}"
        axes.set_title(text if len(text) < 70 else text[:69] + "…", fontsize=9)
        axes.set(
            yscale="log", xlabel="length of the formula", ylabel=f"error of {self.target}, held out"
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure
