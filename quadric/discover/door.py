"""`formulas`: from a table to a short list of formulas."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadric.data import laws
from quadric.data.columns import NUMBER
from quadric.data.formula_text import known_formula
from quadric.discover.doubts import EXACT, how_sure, twins
from quadric.discover.result import Formula, Formulas, symbol_names, written_formula
from quadric.discover.search import Search, Told
from quadric.discover.units import Dimensions, read_units, split_unit
from quadric.errors import InputError, InputTypeError
from quadric.support.extras import load_extra
from quadric.tables.comparison.sources import load_source

HELD_OUT = 0.2
LEAST_ROWS = 20
WILD = 3.0
"""How many times its error on the rows of the search a formula may err on those held out."""
CODES = 12
"""A column of whole numbers with at most so many values may be codes, and is said."""


def formulas(
    X: Any,
    y: Any = None,
    names: Sequence[str] | None = None,
    units: Mapping[str, str] | None = None,
    *,
    target: str | None = None,
    rows: int | None = None,
    seconds: float = 60.0,
    most: int = 10,
    seed: int = 0,
    progress: Told | None = None,
) -> Formulas:
    """Finds formulas for a target, from short and rough to long and exact.

    Polynomials, power laws, ratios, and functions (square root, reciprocal, square, exponential,
    arcsine) of such sums, with sines, cosines and logarithms of columns among the terms. Each
    coefficient has a standard error, and is written as a simple number (1/2, 4/3, 1/(4 pi)) only
    where that lies within the error and is no likely chance.

    Args:
        X: (rows, columns) of numbers, or a frame; or what to read: a CSV or Parquet file,
            `law:NAME`, `feynman:I.12.11`, `special:ellipkinc`, a data set of scikit-learn, or a
            formula with ranges, such as "sin(x*y)/z; x=0:3; y=0:1; z=1:2".
        y: the target, (rows,); None if X is a file or a frame with a column `target`, or a formula.
        names: of the columns; a name may end in a unit, as in "mass [kg]".
        units: the units of all columns and of the target, by name, as pint reads them; "1" for a
            pure number. Only formulas that fit them are offered.
        target: the name of the target, "y" by default.
        rows: the first rows of a file, or how many are drawn of a law or formula (1,000).
        seconds: about how long to search at most. Ctrl-C ends the search and keeps what it has.
        most: how many formulas to give at most.
        seed: which rows are held out.
        progress: called with the new steps done, what is tried, and the number of all steps.

    Returns:
        The formulas: print them, or take `.predict`, `.sympy()`, `.latex()` of the best.

    Raises:
        InputError: if the columns, the target, the names or the units do not fit.
        MissingExtraError: if sympy, or pint for units, is not installed.

    Examples:
        >>> import numpy as np, quadric
        >>> X = np.random.default_rng(0).uniform(1, 3, (200, 2))
        >>> found = quadric.discover.formulas(X, 0.5 * X[:, 0] * X[:, 1]**2, names=["m", "v"])
        >>> found.sympy()
        m*v**2/2
    """
    load_extra("sympy", "quadric.discover", "discover")
    if most < 1 or seed < 0:
        raise InputError(f"most must be at least 1 and seed at least 0, got {most} and {seed}")
    begin = time.monotonic()
    said: list[str] = []
    if y is None:
        X, y, target, units, said = _read(X, target, units, rows, seed)
    table = _prepared(X, y, names, units, "y" if target is None else target)
    X, y, names, notes = table.X, table.y, table.names, [*said, *table.notes]
    order = np.random.default_rng(seed).permutation(len(y))
    held = order[: max(int(len(y) * HELD_OUT), 5)] if len(y) >= 2 * LEAST_ROWS else order[:0]
    learned = np.setdiff1d(order, held)
    search = Search(X[learned], y[learned], table.dimensions, seconds)
    search.run(progress)
    notes += search.notes
    if not search.pool:
        raise InputError(
            "no formula was found that fits: give more rows, more time"
            + (", or leave the units out" if table.dimensions is not None else "")
        )
    chosen = _front(search, X, y, held, names, symbol_names(names), most)
    floor = EXACT * search.spread
    wild = [f.error > WILD * f.model.rms + floor for f in chosen]  # on rows that it has not seen
    best = min(range(len(chosen)), key=lambda i: (wild[i], chosen[i].bic))
    for each in chosen:
        each.given = tuple(table.given)
    formula = chosen[best]
    share = formula.error / search.spread
    sentence = how_sure(formula.model, search.pool.values(), share, (X, y), table.target)
    weak = [c.term for c in formula.coefficients if abs(c.value) < 4 * c.standard_error]
    if weak:
        sentence += f" Least sure: {', '.join(weak[:3])}."
    notes += twins(formula.model, X, y, names)
    snapped = [c for c in formula.coefficients if c.snapped]
    if snapped and not search.exact:
        listed = ", ".join(
            f"{c.written} for {c.value:.6g} ± {c.standard_error:.1g}" for c in snapped
        )
        notes.append(f"written as simple numbers, which lie within the error: {listed}")
    sizes, seconds = (len(learned), len(held)), time.monotonic() - begin
    spread = float(y.std())
    return Formulas(chosen, best, sentence, notes, table.target, sizes, spread, seconds)


@dataclass
class _Table:
    """Columns and target, ready to be searched."""

    X: np.ndarray
    y: np.ndarray
    names: list[str]
    given: list[str]
    target: str
    dimensions: Dimensions | None
    notes: list[str]


def _prepared(
    X: Any, y: Any, names: Sequence[str] | None, units: Mapping[str, str] | None, target: str
) -> _Table:
    """Checks what was given, takes units out of names, and leaves out columns of one value."""
    frame = hasattr(X, "columns")
    raw = [str(c) for c in X.columns] if frame and names is None else names
    try:
        X = np.asarray(X.to_numpy() if frame else X)
    except ValueError:
        raise InputError("X must be (rows, columns), got rows of several lengths") from None
    if X.ndim != 2 or not X.shape[1]:
        raise InputError(f"X must be (rows, columns), got shape {X.shape}: give a table")
    raw = [f"x{i}" for i in range(X.shape[1])] if raw is None else [str(n) for n in raw]
    if units is not None and not isinstance(units, Mapping):
        raise InputTypeError(
            f"units must be a dict by name, got {type(units).__name__}: write {{'mass': 'kg'}}"
        )
    own = {name: unit for name, unit in map(split_unit, [*raw, target]) if unit is not None}
    names, target = [split_unit(name)[0] for name in raw], split_unit(target)[0]
    _check_names(names, X.shape[1])
    given = own | {split_unit(k)[0]: v for k, v in (units or {}).items()}
    X, y, notes = _checked(X, y, names, target)
    varying = [i for i in range(X.shape[1]) if X[:, i].min() < X[:, i].max()]
    fixed = [names[i] for i in range(len(names)) if i not in varying]
    notes += [f"{name!r} has one value and is left out" for name in fixed]
    if not varying:
        raise InputError("X must have a column that varies, got none: every column has one value")
    everything, names = names, [names[i] for i in varying]
    missing = [name for name in [*names, target] if name not in given]
    if given and missing and not units:  # brackets in a heading may be anything
        listed = ", ".join(map(repr, missing))
        notes.append(f"the units in names are not used, as there are none for {listed}")
        given = {}
    dimensions = read_units(given, names, target)
    if dimensions is not None:
        dimensions.check(names, target)
    return _Table(X[:, varying], y, names, everything, target, dimensions, notes)


def _read(
    source: Any, target: str | None, units: Any, rows: int | None, seed: int
) -> tuple[Any, Any, str, Any, list[str]]:
    """Columns, target, its name, units and notes of a frame, a file or a known law."""
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "columns"):
        raise InputTypeError("formulas needs a target y for an array, got none: give one")
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    kind, _, name = str(source).partition(":")
    drawn = isinstance(source, str) and (kind == "law" or known_formula(source) is not None)
    table = load_source(
        source, target=target, task="regression", rows=rows or (1000 if drawn else None), seed=seed
    )
    numbers = [c for c in table.inputs if table.kinds[str(c)] == NUMBER]
    left = [c for c in table.inputs if c not in numbers]
    notes = [note for note in table.notes if "median" not in note]
    notes += [f"{f['column']!r} is left out: {f['dropped']}" for f in table.facts if f["dropped"]]
    if left:
        notes.append(f"left out, as they are no numbers: {', '.join(map(repr, left))}")
    if not numbers:
        raise InputError(f"{table.name} has no column of numbers besides the target: add one")
    if isinstance(source, str) and kind == "law" and units is None:
        law = laws.get(name)
        units = {v.name: v.unit for v in law.variables} | {law.target: law.unit}
    return table.inputs[numbers], table.target, str(table.target.name), units, notes


def _check_names(names: Sequence[str], count: int) -> None:
    if len(names) != count:
        raise InputError(f"names must be {count}, one for each column, got {len(names)}")
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(f"names must differ, got {twice[0]!r} twice: rename one column")


def _checked(
    X: np.ndarray, y: Any, names: Sequence[str], target: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Columns and target as numbers, and what is to be said of them."""
    notes = []
    try:
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "columns and target must hold numbers, got text: encode or leave out such columns"
        ) from None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (len(X),):
        raise InputError(f"{target!r} must be one number for each of {len(X)} rows, got {y.shape}")
    whole = np.isfinite(X).all(1) & np.isfinite(y)
    if not whole.all():
        notes.append(f"{int((~whole).sum()):,} rows with missing or infinite numbers are left out")
        X, y = X[whole], y[whole]
    if len(y) < LEAST_ROWS:
        raise InputError(
            f"a formula needs at least {LEAST_ROWS} whole rows, got {len(y)}: give more"
        )
    if not y.min() < y.max():
        raise InputError(f"the target {target!r} must vary, got only {y[0]:g}: name another column")
    if max(np.abs(X).max(), np.abs(y).max()) > 1e100:
        raise InputError("numbers must be below 1e100: give the columns in other units")
    for i, name in enumerate(names):
        values = np.unique(X[:, i])
        if 2 < len(values) <= CODES and (values == values.round()).all():
            notes.append(
                f"{name!r} has {len(values)} whole numbers and is taken for a number: if they are "
                "codes of kinds, leave it out or make a column of 0 and 1 of each"
            )
    return X, y, notes


def _front(
    search: Search, X: np.ndarray, y: np.ndarray, held: np.ndarray, names: Sequence[str],
    symbols: Sequence[str], most: int,
) -> list[Formula]:  # fmt: skip
    """The formulas that no other beats in both length and error, refitted on all rows."""
    found: list[Formula] = []
    for model in sorted(search.pool.values(), key=lambda m: m.bic)[: 40 * most]:
        found.append(written_formula(model, names, symbols, math.nan))
    best = min(found, key=lambda f: f.bic)
    front: list[Formula] = []
    floor = EXACT * search.spread
    for formula in sorted(found, key=lambda f: (f.length, f.bic)):
        better = all(formula.model.rms < 0.97 * other.model.rms for other in front)
        if formula is best or (
            better and formula.bic < math.inf and formula.length <= max(2 * best.length, 20)
        ):
            if not front or formula is best or front[-1].model.rms > floor:
                front.append(formula)
    front = [
        f for f in front if f is best or f.length <= best.length or f.model.rms < best.model.rms
    ]
    while len(front) > most:  # drop where two neighbors are most alike
        gaps = [
            math.log(front[i].model.rms / front[i + 1].model.rms + 1e-300)
            if front[i + 1] is not best and i + 1 < len(front) - 1 else math.inf
            for i in range(len(front) - 1)
        ]  # fmt: skip
        del front[int(np.argmin(gaps)) + 1]
    result = []
    for formula in front:
        model = formula.model
        rest = y[held] - model(X[held]) if len(held) else np.array([model.rms])
        error = float(np.sqrt(np.mean(rest**2)))
        refitted = model.fit(X, y, model.theta) or model
        refitted.bic, refitted.rms = model.bic, model.rms
        result.append(written_formula(refitted, names, symbols, error))
    return result
