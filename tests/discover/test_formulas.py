"""Formulas from tables: what must come out clean, and what must be refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sympy as sp

from quadric.discover import formulas
from quadric.discover.numbers import simple_number
from quadric.discover.result import _all_written
from quadric.errors import InputError, InputTypeError
from tests.command_line import assert_mistake, quadric

x, y, z = sp.symbols("x y z")
LAWS: dict[str, tuple[Callable[..., np.ndarray], list[tuple[float, float]], sp.Expr]] = {
    "products": (lambda x, y, z: x * y + z**2, [(-1, 1)] * 3, x * y + z**2),
    "energy": (lambda x, y: 0.5 * x * y**2, [(1, 3)] * 2, x * y**2 / 2),
}


def table(
    law: Callable[..., np.ndarray], ranges: list[tuple[float, float]], rows: int, noise: float,
    junk: int = 0,
) -> tuple[pd.DataFrame, np.ndarray]:  # fmt: skip
    draw = np.random.default_rng(3)
    columns = [draw.uniform(*r, rows) for r in ranges]
    target = law(*columns)
    target = target + noise * target.std() * draw.normal(size=rows)
    names = [*"xyz"[: len(ranges)], *(f"junk{i}" for i in range(junk))]
    columns += [draw.uniform(-1, 1, rows) for _ in range(junk)]
    return pd.DataFrame(np.column_stack(columns), columns=names), target


@pytest.mark.parametrize(("noise", "junk"), [(0.0, 2), (0.01, 0), (0.05, 10), (0.1, 2)])
@pytest.mark.parametrize("name", LAWS)
def test_noise_and_junk(name: str, noise: float, junk: int) -> None:
    law, ranges, truth = LAWS[name]
    X, target = table(law, ranges, 800, noise, junk)
    found = formulas(X, target)
    assert sp.simplify(found.sympy() - truth) == 0, str(found)
    for c in found.formula.coefficients:
        assert abs(c.value - float(c.written)) <= 3.1 * c.standard_error + 1e-9
        # White noise of this size gives errors of this size, and no others.
        assert c.standard_error < 5 * noise / math.sqrt(800) * target.std() + 1e-9


TRUTHS = {
    "x**3*y**3/z": [(-1, 1), (0.5, 2), (1, 3)],  # a power law with signs
    "1/(y/z + 1/x)": [(0.5, 2)] * 3,  # a reciprocal
    "(x + y)/(1 + x*y/z**2)": [(-0.8, 0.8), (-0.8, 0.8), (1, 2)],  # a ratio
    "x*sqrt(x**2 + 3*y**2)": [(0.5, 1), (-1, 1)],
    "asin(x*sin(y))": [(0, 0.99), (0, 6)],
    "x/(4*pi*y**2)": [(0.1, 1), (0.5, 2)],
    "log(x/y)*z": [(0.5, 2)] * 3,
}


@pytest.mark.parametrize("text", TRUTHS)
def test_shapes_without_noise(text: str) -> None:
    ranges = ";".join(f"{n}={a}:{b}" for n, (a, b) in zip("xyz", TRUTHS[text], strict=False))
    found = formulas(f"{text};{ranges}", rows=300)
    draw = np.random.default_rng(1)
    rows = np.column_stack([draw.uniform(*r, 50) for r in TRUTHS[text]])
    truth = sp.lambdify(sp.symbols("x y z")[: rows.shape[1]], sp.sympify(text), "numpy")(*rows.T)
    assert np.abs(found.predict(rows) - truth).max() < 1e-9, str(found)
    assert found.sentence.startswith("Exact")
    assert all(c.snapped for c in found.formula.coefficients)


def test_a_free_power_has_an_error_bar() -> None:
    X, target = table(lambda x, y: 2.3 * x**1.37 / y, [(1, 3)] * 2, 1000, 0.02)
    found = formulas(X, target, seconds=20)
    (error,) = found.formula.model.exponents.values()
    ((_, power),) = [pair for pair in found.formula.model.top[0] if pair[1] > 0]
    assert abs(power - 1.37) < 3 * error < 0.03
    assert "power of x" in str(found)


def test_the_numbers_are_those_of_all_rows() -> None:
    X, target = table(LAWS["products"][0], [(-1, 1)] * 3, 300, 0.05)
    found = formulas(X, target)
    D = np.column_stack([X.x * X.y, X.z**2])
    expected, squares, *_ = np.linalg.lstsq(D, target, rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(D.T @ D)) * squares / (300 - 2))
    by_term = {c.term: c for c in found.formula.coefficients}
    for term, value, error in zip(("x*y", "z**2"), expected, errors, strict=True):
        assert by_term[term].value == pytest.approx(value, rel=1e-9)
        assert by_term[term].standard_error == pytest.approx(error, rel=1e-6)


def test_a_sine_is_told_from_a_cubic() -> None:
    X, target = table(lambda x, y: -12 * np.sin(x) - y / 3, [(-1.5, 1.5), (-5, 5)], 600, 0.02)
    assert "sin(x)" in str(formulas(X, target).sympy())


def test_a_coefficient_that_is_no_simple_number_stays() -> None:
    X, target = table(lambda x, y: 0.4637 * x * y, [(1, 3)] * 2, 1000, 0.005)
    (coefficient,) = formulas(X, target).formula.coefficients
    assert not coefficient.snapped
    assert abs(coefficient.value - 0.4637) < 3 * coefficient.standard_error < 0.001


@pytest.mark.parametrize(
    ("value", "error", "simple"),
    [
        (9.87, 0.02, None),  # 9.81 and pi² are as likely
        (math.pi**2, 1e-4, (1, 2)),
        (0.0797, 1e-4, (Fraction(1, 4), -1)),
        (0.501, 0.002, (Fraction(1, 2), 0)),
    ],
)
def test_rare_powers_of_pi_need_sure_numbers(value: float, error: float, simple: object) -> None:
    assert simple_number(value, error) == simple


def test_simple_numbers_fit_together() -> None:
    draw = np.random.default_rng(1)
    X = draw.uniform(1000, 1001, (400, 1))  # slope and constant go together
    target = 3 * X[:, 0] + 200 + draw.normal(0, 0.003, 400)
    found = formulas(X, target, seconds=8)
    assert any(c.snapped for c in found.formula.coefficients)
    assert np.sqrt(np.mean((found.predict(X) - target) ** 2)) < 0.0033


def test_rows_are_predicted_from_the_table_as_it_was_given() -> None:
    X, target = table(lambda x, y: x * y, [(1, 3)] * 2, 100, 0.0)
    X.insert(1, "same", 7.0)
    X.columns = ["a [m]", "same", "b [m]"]
    found = formulas(X.to_numpy(), target)
    assert np.allclose(found.predict(X.to_numpy()), target)
    assert np.allclose(found.predict(X[["a [m]", "b [m]"]].to_numpy()), target)
    found = formulas(X, target, units={"same": "1"}, target="A [m**2]")
    assert np.allclose(found.predict(X), target)


def test_units_rule_formulas_out() -> None:
    X, target = table(lambda x, y, z: 0.5 * x * y**2 + 0 * z, [(1, 3)] * 3, 300, 0.05)
    units = {"x": "kg", "y": "m/s", "z": "s", "E": "J"}
    found = formulas(X, target, units=units, target="E")
    assert [str(f) for f in found.formulas] == ["x*y**2/2"]
    X.columns = ["mass [kg]", "speed [m/s]", "t [s]"]
    assert str(formulas(X, target, target="E [J]").sympy()) == "mass*speed**2/2"
    with pytest.raises(InputError, match="no product of powers of mass, speed, t has the unit"):
        formulas(X, target, target="E [A]")
    with pytest.raises(InputError, match=r"one that pint knows, such as .*got .hogshovel"):
        formulas(X, target, target="E [hogshovel]")
    with pytest.raises(InputError, match="for all columns and the target or for none, got none"):
        formulas(X, target, units={"mass": "kg"}, target="E")
    partly = formulas(X, target, target="E", seconds=1)
    assert "the units in names are not used, as there are none for 'E'" in str(partly)


def test_columns_of_a_file_that_are_left_out_are_said(tmp_path: Path) -> None:
    X, target = table(lambda x, y: x * y, [(1, 3)] * 2, 100, 0.01)
    frame = X.assign(note="x", id=np.arange(100), price=[f"${1000 * v:.2f}" for v in target])
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = str(formulas(tmp_path / "t.csv", target="price", seconds=1))
    assert "price = " in said
    assert "'note' is left out: constant" in said
    assert "'id' is left out: an identifier" in said


def test_columns_that_cannot_be_told_apart_are_said() -> None:
    X, target = table(lambda x, y: x**2 + y, [(1, 3)] * 2, 400, 0.05)
    X["twin"] = X["x"] * (1 + 1e-4 * np.sin(np.arange(400)))
    found = formulas(X, target, seconds=2)
    assert any("cannot be told apart" in note for note in found.notes)


def test_names_that_are_no_identifiers() -> None:
    X, target = table(lambda x, y: x * y, [(1, 3)] * 2, 100, 0.0)
    X.columns = ["heat flow (W/m²)", "lambda"]
    found = formulas(X, target)
    data = found.to_dict()
    assert data["symbols"] == {"heat_flow_W_m": "heat flow (W/m²)", "lambda_": "lambda"}
    text = data["formulas"][data["best"]]["formula"]
    assert sp.sympify(text) == sp.Symbol("heat_flow_W_m") * sp.Symbol("lambda_")
    assert np.allclose(found.predict(X), target)


def test_what_is_no_noise_is_called_an_approximation() -> None:
    X, target = table(lambda x: np.floor(3 * x) + x, [(0, 3)], 600, 0.0)
    assert "approximation" in formulas(X, target, seconds=2).sentence


def test_ctrl_c_keeps_what_there_is() -> None:
    X, target = table(lambda x, y: np.floor(3 * x) * y, [(0, 3)] * 2, 300, 0.0)

    def stop(done: int, now: str, total: int) -> None:
        if now == "factors and functions":
            raise KeyboardInterrupt

    found = formulas(X, target, progress=stop)
    assert len(found)
    assert any("stopped by hand" in note for note in found.notes)


def test_the_picture(tmp_path: object) -> None:
    X, target = table(LAWS["products"][0], [(-1, 1)] * 3, 300, 0.01)
    (axes,) = formulas(X, target).picture().axes
    assert axes.get_yscale() == "log"


BAD: dict[str, tuple[Callable[[pd.DataFrame, np.ndarray], object], str]] = {
    "constant target": (lambda X, t: formulas(X, 0 * t), "the target 'y' must vary, got only 0"),
    "few rows": (lambda X, t: formulas(X[:8], t[:8]), "at least 20 whole rows, got 8"),
    "text": (lambda X, t: formulas(X.astype(object).replace(X.iloc[0, 0], "a"), t), "numbers"),
    "one value": (lambda X, t: formulas(X * 0, t), "a column that varies, got none"),
    "lengths": (lambda X, t: formulas(X, t[1:]), "one number for each of"),
    "names": (lambda X, t: formulas(X, t, names=["a", "a"]), "names must differ, got 'a' twice"),
    "names with units": (
        lambda X, t: formulas(X, t, names=["a [m]", "a [s]"]),
        "names must differ, got 'a' twice",
    ),
    "most": (lambda X, t: formulas(X, t, most=0), "most must be at least 1"),
    "lines": (lambda X, t: formulas([[1, 2], [3]], t), "rows of several lengths"),
    "units": (lambda X, t: formulas(X, t, units=["m", "s"]), "units must be a dict by name"),
    "nothing": (lambda X, t: formulas("nowhere"), "no such file or data set: 'nowhere'"),
    "code": (lambda X, t: formulas("__import__('os').system('ls'); x=0:1"), "may not hold"),
    "range": (lambda X, t: formulas("x*y; x=0:1"), "needs a range, got none for y"),
    "poles": (lambda X, t: formulas("log(x); x=-1:1"), "must be finite on its ranges"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises((InputError, InputTypeError), match=message):
        call(*table(lambda x, y: x * y, [(1, 3)] * 2, 100, 0.0))


def test_what_is_stated_of_odd_tables() -> None:
    X, target = table(lambda x, y: x * y, [(1, 3)] * 2, 100, 0.0)
    X["code"], X["same"] = np.arange(100) % 4, 7
    target[3] = np.inf
    notes = "\n".join(formulas(X, target).notes)
    assert "1 rows with missing or infinite numbers are left out" in notes
    assert "'code' has 4 whole numbers and is taken for a number" in notes
    assert "'same' has one value and is left out" in notes
    with pytest.raises(InputTypeError, match="needs a target y for an array"):
        formulas(X.to_numpy())


def test_the_command(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    X, target = table(LAWS["energy"][0], [(1, 3)] * 2, 200, 0.01)
    X.assign(E=target).to_csv("I.6.20b.csv", index=False)
    result = quadric("discover", "I.6.20b.csv", "--target", "E", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    best = data["formulas"][data["best"]]
    assert best["formula"] == "x*y**2/2"
    assert best["error"] > 0
    assert {"coefficient", "standard_error"} <= set(best["terms"][0])
    shown = quadric("discover", "law:coulomb", "--rows", "200", "--picture", "front.png")
    assert "force = q1*q2/(4*pi*eps*r**2)" in shown.stdout
    assert_mistake(quadric("discover", "I.6.20b.csv", "--target", "F"), "no column 'F'")
    assert_mistake(quadric("discover", "I.6.20b.csv", "--target", "E", "--units", "x"), "NAME=UNIT")


def test_a_formula_that_explodes_on_new_rows_is_not_the_best() -> None:
    X, target = table(LAWS["products"][0], [(-1, 1)] * 3, 100, 0.05)
    held = np.random.default_rng(0).permutation(100)[:20]
    target[held] += 0.8  # what was learned does not hold there
    found = formulas(X, target)
    lowest = min(found.formulas, key=lambda f: f.bic)
    assert lowest.error > 3 * lowest.model.rms  # the one that a search without them would choose
    assert found.formula is not lowest
    assert found.formula.error < 3 * found.formula.model.rms


def test_a_number_far_below_its_error_is_written() -> None:
    """Its relative error is beyond the largest float squared."""
    numbers, _ = _all_written(sp, np.array([1e-160, 2.0]), np.diag([1e10, 1e-30]))
    assert float(numbers[0]) == pytest.approx(1e-160, rel=1e-2, abs=0)
