"""Look for 120 equations of physics in samples of them, and write which ones are found.

    python tools/evidence_formulas.py --noise 0          # goes on where it was
    python tools/evidence_formulas.py --opponents        # a sample, beside pyoperon and gplearn

1,000 rows of each equation, drawn from its ranges; noise is a share of the target's spread. Found
exactly: with its numbers written as simple ones, the formula is the equation, to 25 digits at
random points. Close: the error on fresh rows without noise is below 1e-5 of the spread. Opponents
get as many seconds as our search took at the same load of the machine, but at least 20; one thread
each.
Polynomials come first, then ratios of polynomials, then the rest.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sympy as sp
from evidence_runs import parser_of, read_piece, run_cells

from quadric.data.formula_text import Known, feynman, parse_formula
from quadric.discover import formulas
from quadric.support.texttable import markdown_table

ROWS, FRESH, SECONDS = 1_000, 1_000, 120.0
CLOSE = 1e-5
LEAST = 20.0  # seconds of an opponent
OPPONENTS = (
    *("I.13.4", "I.24.6", "II.37.1", "I.12.2", "I.16.6", "I.27.6", "II.2.42", "II.36.38"),
    *("I.8.4", "I.12.11", "I.40.1", "II.6.15a"),
)
NOISES = {"0": 0.0, "0.01": 0.01, "0.1": 0.1}


def kind(known: Known) -> str:
    """Whether an equation is a polynomial, a ratio of polynomials, or another function."""
    expression = parse_formula(known.formula)
    top, bottom = sp.fraction(sp.together(expression))
    symbols = [sp.Symbol(name) for name in known.ranges]
    if not all(part.is_polynomial(*symbols) for part in (top, bottom)):
        return "other"
    return "ratio" if bottom.free_symbols else "polynomial"


def is_same(found: Any, truth: Any) -> bool:
    """Whether two expressions are equal at random points, to 25 digits."""
    draw = random.Random(0)
    if any(not number.is_Rational for number in found.atoms(sp.Number)):
        return False  # a number that was left as it was fitted
    hits = 0
    for _ in range(40):
        point = {s: sp.Rational(draw.randint(51, 99), 100) for s in truth.free_symbols}
        a, b = (e.subs(point).evalf(40) for e in (truth, found))
        if not (a.is_real and b.is_real):
            continue
        if abs(a - b) > sp.Float(10) ** -25 * (abs(a) + sp.Float(10) ** -30):
            return False
        hits += 1
    return hits > 5


def measure(
    name: str, noise: float, method: str = "quadric", seconds: float = SECONDS
) -> dict[str, Any]:
    """One equation, looked for by one method."""
    known = feynman()[name]
    X, clean = known.sample(ROWS, 1)
    y = clean + noise * clean.std() * np.random.default_rng(2).normal(size=ROWS)
    fresh, truth = known.sample(FRESH, 3)
    begin, processor = time.perf_counter(), time.process_time()
    text, expression, predicted = METHODS[method](known, X, y, fresh, seconds)
    row: dict[str, Any] = {
        "kind": kind(known),
        "seconds": time.perf_counter() - begin,
        "processor_seconds": time.process_time() - processor,
        "error": float(np.sqrt(np.mean((predicted - truth) ** 2)) / clean.std()),
        "formula": text[:400],
    }
    same = expression is not None and is_same(expression, parse_formula(known.formula))
    return row | {"exact": same, "close": row["error"] < CLOSE}


def _ours(known: Known, X: Any, y: Any, fresh: Any, seconds: float) -> tuple[str, Any, Any]:
    found = formulas(X, y, names=list(known.ranges), seconds=seconds)
    return str(found.sympy()), found.sympy(), found.predict(fresh)


def _operon(known: Known, X: Any, y: Any, fresh: Any, seconds: float) -> tuple[str, Any, Any]:
    model = importlib.import_module("pyoperon.sklearn").SymbolicRegressor(
        allowed_symbols="add,sub,mul,div,constant,variable,sin,cos,exp,log,sqrt,square",
        optimizer_iterations=5, max_time=max(1, round(seconds)), generations=100_000,
        max_evaluations=10**9, n_threads=1, random_state=0,
    )  # fmt: skip
    model.fit(X, y)
    return model.get_model_string(model.model_, 6), None, np.asarray(model.predict(fresh))


def _gplearn(known: Known, X: Any, y: Any, fresh: Any, seconds: float) -> tuple[str, Any, Any]:
    end = time.perf_counter() + seconds
    model = importlib.import_module("gplearn.genetic").SymbolicRegressor(
        population_size=500, generations=1, warm_start=True, random_state=0,
        function_set=("add", "sub", "mul", "div", "sqrt", "log", "sin", "cos"),
    )  # fmt: skip
    while model.fit(X, y) and time.perf_counter() < end:
        model.set_params(generations=model.generations + 1)
    return str(model._program), None, np.asarray(model.predict(fresh))


METHODS = {"quadric": _ours, "pyoperon": _operon, "gplearn": _gplearn}
FACTS = {"rows": ROWS, "close": CLOSE, "most_seconds": SECONDS}


def against_opponents(path: Path) -> None:
    """Ours first, then the others with as much time."""
    for noise in (0.0,):
        for name in OPPONENTS:
            for method in METHODS:
                known = read_piece(path)["fits"] if path.exists() else []
                own = [
                    r
                    for r in known
                    if (r["name"], r["noise"], r["method"]) == (name, noise, "quadric")
                ]
                seconds = max(own[0]["seconds"], LEAST) if own else SECONDS

                def one(name: str, noise: float, method: str, s: float = seconds) -> dict[str, Any]:
                    return measure(name, noise, method, s)

                cell = [(name, noise, method)]
                run_cells(
                    path,
                    "fits",
                    ("name", "noise", "method"),
                    cell,
                    one,
                    FACTS,
                    "pyoperon",
                    "gplearn",
                )


def _share(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    return f"{sum(row[key] for row in rows)} of {len(rows)}" if rows else "-"


def formulas_table(results: Path) -> str:
    """How many equations of each kind are found, by noise."""
    cells = []
    files = sorted((results / "formulas").glob("noise-*.json"), key=lambda f: float(f.stem[6:]))
    for file in files:
        rows = read_piece(file)["fits"]
        for wanted in ("polynomial", "ratio", "other"):
            own = [row for row in rows if row["kind"] == wanted]
            if own:
                times = sorted(row["processor_seconds"] for row in own)
                errors = sorted(row["error"] for row in own)
                noise, middle = f"{100 * own[0]['noise']:g} %", len(own) // 2
                shares = [_share(own, "exact"), _share(own, "close"), f"{errors[middle]:.1e}"]
                cells.append(
                    [noise, wanted, *shares, f"{times[middle]:.1f} s", f"{times[-1]:.0f} s"]
                )
    head = ["noise", "kind", "exact", "close", "median error", "median time", "longest"]
    return markdown_table(head, cells, "rlrrrrr")


def opponents_table(results: Path) -> str:
    """Ours and the others, at equal time."""
    rows = read_piece(results / "formulas" / "opponents.json")["fits"]
    cells = []
    for noise in sorted({row["noise"] for row in rows}):
        whole = {
            r["name"] for r in rows if r["noise"] == noise and r["method"] == list(METHODS)[-1]
        }
        for method in METHODS:
            own = [
                r
                for r in rows
                if r["noise"] == noise and r["method"] == method and r["name"] in whole
            ]
            if own:
                errors = sorted(row["error"] for row in own)
                small = f"{sum(row['error'] < 0.01 for row in own)} of {len(own)}"
                spent = f"{sum(row['processor_seconds'] for row in own):.0f} s"
                middle = f"{errors[len(errors) // 2]:.1e}"
                cells.append(
                    [f"{100 * noise:g} %", method, _share(own, "close"), middle, small, spent]
                )
    head = ["noise", "method", "close", "median error", "error below 1 %", "processor time"]
    return markdown_table(head, cells, "rlrrrr")


def main() -> None:
    """Measures what is not there yet."""
    parser = parser_of(__doc__, "results/formulas")
    parser.add_argument("--noise", choices=list(NOISES), default="0")
    parser.add_argument("--opponents", action="store_true")
    arguments = parser.parse_args()
    out = arguments.out
    if arguments.summary:
        print(formulas_table(out.parent), opponents_table(out.parent), sep="\n\n")
    elif arguments.opponents:
        against_opponents(out / "opponents.json")
    else:
        order = ["polynomial", "ratio", "other"]
        names = sorted(feynman(), key=lambda name: order.index(kind(feynman()[name])))
        noise = NOISES[arguments.noise]
        cells = [(name, noise) for name in names]
        run_cells(
            out / f"noise-{arguments.noise}.json",
            "fits",
            ("name", "noise"),
            cells,
            measure,
            FACTS,
            "sympy",
        )


if __name__ == "__main__":
    main()
