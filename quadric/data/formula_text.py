"""Formulas as text, read without running any of it; and tables drawn from them."""

from __future__ import annotations

import ast
import functools
import json
import math
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.errors import InputError
from quadric.support.checks import check_size
from quadric.support.extras import load_extra

if TYPE_CHECKING:
    import sympy

FUNCTIONS = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("exp", "log", "sqrt", "Abs"),
)
SPECIAL = {
    # name: arguments with their ranges, as in the paper on Kolmogorov-Arnold networks
    "ellipkinc": ("phi", "m"),
    "ellipeinc": ("phi", "m"),
    "jv": ("order", "x"),
    "yv": ("order", "x"),
    "kv": ("order", "x"),
    "iv": ("order", "x"),
}
_LONGEST = 2_000
_LARGEST_POWER = 100


def parse_formula(text: str) -> sympy.Expr:
    """Text as an expression: numbers, names, + - * / ** and the functions in `FUNCTIONS`.

    The text is taken apart as Python's grammar does and built up with sympy; nothing is evaluated.

    Examples:
        >>> parse_formula("sin(x*y)/z")
        sin(x*y)/z
    """
    sp = load_extra("sympy", "a formula as text", "discover")
    if len(text) > _LONGEST:
        raise InputError(f"a formula may have {_LONGEST} signs, got {len(text)}: shorten it")
    try:
        return _built(sp, ast.parse(text.strip().replace("^", "**"), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"a formula must be numbers, names, + - * / ** and functions, got {text!r}: correct it"
        ) from None


def _built(sp: Any, node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number: Any = node.value
        if not math.isfinite(number) or abs(number) > 1e300:
            raise InputError(f"a formula must hold finite numbers, got {number}: correct it")
        return sp.Integer(number) if isinstance(number, int) else sp.Rational(str(number))
    if isinstance(node, ast.Name):
        return sp.pi if node.id == "pi" else sp.Symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _built(sp, node.operand)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in FUNCTIONS and len(node.args) == 1 and not node.keywords:
            return getattr(sp, node.func.id)(_built(sp, node.args[0]))
        raise InputError(
            f"a formula may use {', '.join(FUNCTIONS)}, each of one number, got "
            f"{ast.unparse(node)!r}: use these"
        )
    if isinstance(node, ast.BinOp):
        a, b = _built(sp, node.left), _built(sp, node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.Div) and b != 0:
            return a / b
        if isinstance(node.op, ast.Pow) and (not b.is_number or abs(b) <= _LARGEST_POWER):
            return a**b
    raise InputError(f"a formula may not hold {ast.unparse(node)!r}: use + - * / ** and functions")


@dataclass(frozen=True)
class Known:
    """A formula with the ranges that its variables are drawn from.

    Attributes:
        name: what a user calls it.
        ranges: lowest and highest value of each variable.
        formula: as text; "" for a special function of scipy.
    """

    name: str
    ranges: dict[str, tuple[float, float]]
    formula: str = ""

    def sample(self, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Rows drawn uniformly, and their values."""
        check_size("rows", rows)
        draw = np.random.default_rng(seed)
        X = np.column_stack([draw.uniform(a, b, rows) for a, b in self.ranges.values()])
        if self.formula:
            sp = load_extra("sympy", "a formula as text", "discover")
            symbols = [sp.Symbol(name) for name in self.ranges]
            with np.errstate(all="ignore"):
                y = sp.lambdify(symbols, parse_formula(self.formula), "numpy")(*X.T)
        else:
            special = load_extra("scipy.special", "a special function", "tables")
            y = getattr(special, self.name.partition(":")[2])(*X.T)
        y = np.broadcast_to(np.asarray(y), (rows,))
        if np.iscomplexobj(y) or not np.isfinite(y).all():
            raise InputError(
                f"{self.name} must be finite on its ranges, got a root, logarithm or quotient that "
                "is not: change the ranges"
            )
        return X, np.array(y, dtype=np.float64)


@functools.lru_cache(maxsize=1)
def feynman() -> dict[str, Known]:
    """120 equations of physics with ranges, those of the Feynman lectures first."""
    text = resources.files("quadric.data").joinpath("feynman.json").read_text(encoding="utf-8")
    found = {}
    for entry in json.loads(text):
        ranges = {k: (_number(a), _number(b)) for k, (a, b) in entry["ranges"].items()}
        found[entry["name"]] = Known(f"feynman:{entry['name']}", ranges, entry["formula"])
    return found


def known_formula(source: str) -> Known | None:
    """`feynman:NAME`, `special:NAME`, or a formula with ranges; None for anything else.

    Examples:
        >>> known_formula("x*y; x=0:1; y=-1:1").ranges
        {'x': (0.0, 1.0), 'y': (-1.0, 1.0)}
    """
    kind, _, name = source.partition(":")
    if kind == "feynman":
        if name not in feynman():
            raise InputError(f"no such equation, got {source!r}: one of {', '.join(feynman())}")
        return feynman()[name]
    if kind == "special":
        if name not in SPECIAL:
            raise InputError(f"no such function, got {source!r}: one of {', '.join(SPECIAL)}")
        return Known(source, dict.fromkeys(SPECIAL[name], (0.0, 1.0)))
    if ";" not in source:
        return None
    text, *parts = source.split(";")
    variables = sorted(str(s) for s in parse_formula(text).free_symbols)
    ranges = {}
    for part in filter(str.strip, parts):
        variable, equals, limits = part.partition("=")
        low, colon, high = limits.partition(":")
        if not equals or not colon or variable.strip() not in variables:
            raise InputError(
                f"a range is NAME=LOW:HIGH of a variable ({', '.join(variables)}), got "
                f"{part.strip()!r}: write as in 'x*y; x=0:1; y=-1:1'"
            )
        ranges[variable.strip()] = (_number(low), _number(high))
        if not ranges[variable.strip()][0] < ranges[variable.strip()][1]:
            raise InputError(f"a range must go up, got {part.strip()!r}: swap the two")
    missing = [v for v in variables if v not in ranges]
    if missing or not variables:
        raise InputError(
            f"every variable of {text.strip()!r} needs a range, got none for "
            f"{', '.join(missing) or 'any'}: write as in 'x*y; x=0:1; y=-1:1'"
        )
    return Known(text.strip(), {v: ranges[v] for v in variables}, text)


def _number(text: str | float) -> float:
    if not isinstance(text, str):
        return float(text)
    value = parse_formula(text)
    if not value.is_number or not value.is_real:
        raise InputError(f"a limit must be a number, got {text!r}: such as 0.5 or 2*pi")
    return float(value)
