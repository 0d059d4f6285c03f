"""Formulas as text: read right, and never run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sympy as sp

from quadric.data.formula_text import SPECIAL, feynman, known_formula, parse_formula
from quadric.errors import InputError
from quadric.tables.comparison.sources import load_source, table_name


@pytest.mark.parametrize("text", ["sin(x*y)/z", "-x**2 + 3*y^0.5", "pi*(a + b)/2", "exp(-t/T)*E"])
def test_text_is_the_formula_that_it_says(text: str) -> None:
    names = {name: sp.Symbol(name) for name in "xyzabtTE"}
    expected = sp.sympify(text.replace("^", "**").replace("0.5", "(1/2)"), locals=names)
    assert sp.simplify(parse_formula(text) - expected) == 0


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch ran')",
        "().__class__",
        "[x for x in y]",
        "lambda: 1",
        "open(x)",
        "x.real",
        "'text'",
        "x if y else z",
        "9**9**9**9",
        "x; y",
        "sin(x, y)",
        "1e400",
        "x" * 3000,
        "(" * 1500,
        "",
        "1/0",
    ],
)
def test_all_else_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="a formula m"):
        parse_formula(text)
    assert not list(tmp_path.iterdir())


def test_every_equation_can_be_drawn() -> None:
    assert len(feynman()) == 120
    for known in feynman().values():
        X, y = known.sample(20)
        assert X.shape == (20, len(known.ranges))
        assert np.isfinite(y).all()
        assert {str(s) for s in parse_formula(known.formula).free_symbols} == set(known.ranges)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str) -> None:
    known = known_formula(f"special:{name}")
    assert known is not None
    assert np.isfinite(known.sample(50)[1]).all()


def test_compare_takes_them_too() -> None:
    table = load_source("feynman:I.12.11", rows=30)
    assert list(table.inputs) == ["q", "E_f", "B", "v", "theta"]
    row = table.inputs.iloc[0]
    expected = row.q * (row.E_f + row.B * row.v * np.sin(row.theta))
    assert table.target[0] == pytest.approx(expected)
    assert list(load_source("x*y; x=0:1; y=2:3", rows=5).inputs) == ["x", "y"]
    with pytest.raises(InputError, match="no such equation, got"):
        load_source("feynman:I.1")
    with pytest.raises(InputError, match="--target is for files"):
        load_source("feynman:I.12.11", target="q")
    with pytest.raises(InputError, match="a range must go up, got 'x=1:0'"):
        load_source("x; x=1:0")


def test_a_file_keeps_its_whole_name() -> None:
    names = ["I.6.20b.csv", "a.CSV.gz", "plain", "v1.2.parquet", "I.6.20"]
    assert [table_name(Path(n)) for n in names] == ["I.6.20b", "a", "plain", "v1.2", "I.6.20"]
