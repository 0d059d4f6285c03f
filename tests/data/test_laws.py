from __future__ import annotations

import math
import re
from collections.abc import Callable
from math import cos, exp, log, pi, sin, sqrt, tanh

import pytest
import torch

from quadric.data import laws

# The laws once more, in Python's own numbers: Feynman's number, variables and ranges, formula.
Reference = tuple[str, str, Callable[..., float]]
REFERENCE: dict[str, Reference] = {
    "gaussian": ("I.6.2", "t s 1-3", lambda t, s: exp(-((t / s) ** 2) / 2) / sqrt(2 * pi) / s),
    "distance": (
        "I.8.14",
        "x1 x2 y1 y2 1-5",
        lambda x1, x2, y1, y2: math.dist((x1, y1), (x2, y2)),
    ),
    "gravitation": (
        "I.9.18",
        "m1 m2 G 1-2 x1 y1 z1 3-4 x2 y2 z2 1-2",
        lambda m1, m2, G, x1, y1, z1, x2, y2, z2: (
            G * m1 * m2 / math.dist((x1, y1, z1), (x2, y2, z2)) ** 2
        ),
    ),
    "lorentz": ("I.12.11", "q E B v t 1-5", lambda q, E, B, v, t: q * E + q * B * v * sin(t)),
    "kinetic-energy": (
        "I.13.4",
        "m v u w 1-5",
        lambda m, v, u, w: 0.5 * m * (v * v + u * u + w * w),
    ),
    "center-of-mass": (
        "I.18.4",
        "m1 m2 r1 r2 1-5",
        lambda m1, m2, r1, r2: (m1 * r1 + m2 * r2) / (m1 + m2),
    ),
    "oscillator": ("I.24.6", "m w w0 x 1-3", lambda m, w, v, x: m * (w**2 + v**2) * x**2 / 4),
    "barometer": (
        "I.40.1",
        "n m g x k T 1-5",
        lambda n, m, g, x, k, T: n * exp(-m * g * x / k / T / 5),
    ),
    "dipole": ("III.10.19", "m Bx By Bz 1-5", lambda m, x, y, z: m * math.hypot(x, y, z)),
    "relativistic-mass": (
        "I.10.7",
        "m0 1-5 v 1-2 c 3-10",
        lambda m, v, c: m * c / sqrt(c**2 - v**2),
    ),
    "coulomb": ("I.12.2", "q1 q2 eps r 1-5", lambda p, q, e, r: p * q / (4 * pi * e * r**2)),
    "velocity-addition": (
        "I.16.6",
        "u v c 1-5",
        lambda u, v, c: (u + v) * c**2 / (c**2 + u * v),
    ),
    "torque": ("I.18.12", "r F t 1-5", lambda r, F, t: r * F * sin(t)),
    "snell": ("I.26.2", "n 0-1 t 1-5", lambda n, t: math.asin(n * sin(t))),
    "lens": ("I.27.6", "d1 d2 n 1-5", lambda d1, d2, n: d1 * d2 / (d2 + n * d1)),
    "two-waves": (
        "I.29.16",
        "a b s t 1-5",
        lambda a, b, s, t: sqrt(a**2 + b**2 - 2 * a * b * cos(s - t)),
    ),
    "grating": ("I.30.3", "I0 n t 1-5", lambda i, n, t: i * sin(n * t / 2) ** 2 / sin(t / 2) ** 2),
    "doppler": (
        "I.34.14",
        "c 3-10 v 1-2 w0 1-5",
        lambda c, v, w: w * sqrt((1 + v / c) / (1 - v / c)),
    ),
    "interference": (
        "I.37.4",
        "I1 I2 d 1-5",
        lambda i, j, d: i + j + 2 * sqrt(i * j) * cos(d),
    ),
    "planck": (
        "I.41.16",
        "w T h k c 1-5",
        lambda w, T, h, k, c: h * w**3 / (pi**2 * c**2) / (exp(h * w / (k * T)) - 1),
    ),
    "isothermal-work": (
        "I.44.4",
        "n k T V1 V2 1-5",
        lambda n, k, T, V1, V2: n * k * T * (log(V2) - log(V1)),
    ),
    "sound": ("I.47.23", "g p r 1-5", lambda g, p, r: sqrt(g * p) / sqrt(r)),
    "anharmonic": (
        "I.50.26",
        "x w t a 1-3",
        lambda x, w, t, a: x * cos(w * t) * (1 + a * cos(w * t)),
    ),
    "driven-charge": (
        "II.11.3",
        "q E m 1-3 w0 3-5 w 1-2",
        lambda q, E, m, v, w: q * E / m / (v - w) / (v + w),
    ),
    "magnetization": (
        "II.35.21",
        "n m B k T 1-5",
        lambda n, m, B, k, T: n * m * tanh(m * B / k / T),
    ),
}

# Length, mass, time, current and temperature of each unit.
UNITS = {
    "1": (0, 0, 0, 0, 0),
    "m": (1, 0, 0, 0, 0),
    "kg": (0, 1, 0, 0, 0),
    "s": (0, 0, 1, 0, 0),
    "K": (0, 0, 0, 0, 1),
    "C": (0, 0, 1, 1, 0),
    "N": (1, 1, -2, 0, 0),
    "J": (2, 1, -2, 0, 0),
    "W": (2, 1, -3, 0, 0),
    "Pa": (-1, 1, -2, 0, 0),
    "V": (2, 1, -3, -1, 0),
    "T": (0, 1, -2, -1, 0),
}


def scale(unit: str, bases: tuple[float, ...]) -> float:
    """What a number of this unit is multiplied by when the base units shrink by `bases`."""
    factor = 1.0
    for word in unit.split():
        name, _, power = word.partition("^")
        for base, exponent in zip(bases, UNITS[name], strict=True):
            factor *= base ** (exponent * int(power or 1))
    return factor


def test_all_are_tested() -> None:
    assert laws.names() == list(REFERENCE)
    assert len(laws.names()) >= 19


@pytest.mark.parametrize("name", laws.names())
def test_values(name: str) -> None:
    function = REFERENCE[name][2]
    x, y = laws.sample(name, 50, seed=3)
    expected = torch.tensor([function(*row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", laws.names())
def test_number_variables_and_ranges(name: str) -> None:
    law = laws.get(name)
    number, spec, _ = REFERENCE[name]
    assert law.number == number
    expected, waiting = [], []
    for word in spec.split():
        if bounds := re.fullmatch(r"(\d+)-(\d+)", word):
            expected += [(variable, *map(int, bounds.groups())) for variable in waiting]
            waiting = []
        else:
            waiting.append(word)
    assert [(v.name, v.low, v.high) for v in law.variables] == expected
    x, _ = laws.sample(name, 4000, seed=1)
    low, high = (
        torch.tensor([float(getattr(v, side)) for v in law.variables], dtype=torch.float64)
        for side in ("low", "high")
    )
    assert (x >= low).all()
    assert (x <= high).all()
    # Uniform: each tenth of each range has its tenth of the samples.
    tenth = ((x - low) / (high - low) * 10).floor().long().clamp(max=9)
    for column in tenth.unbind(1):
        assert (column.bincount(minlength=10) - 400).abs().max() < 120


@pytest.mark.parametrize("name", laws.names())
def test_the_formula_says_which_variables(name: str) -> None:
    law = laws.get(name)
    words = set(re.findall(r"[A-Za-z]\w*", law.formula))
    functions = {"exp", "sqrt", "sin", "cos", "tanh", "arcsin", "ln", "pi"}
    assert words - functions == {v.name for v in law.variables}


@pytest.mark.parametrize("name", laws.names())
def test_units_agree(name: str) -> None:
    # Measured with other base units, all numbers change, but the law still holds.
    law = laws.get(name)
    x, y = laws.sample(law, 20)
    bases = (1.7, 0.6, 1.3, 0.8, 2.1)
    factors = torch.tensor([scale(v.unit, bases) for v in law.variables], dtype=torch.float64)
    torch.testing.assert_close(law(x * factors), y * scale(law.unit, bases))


def test_seeds() -> None:
    x, _ = laws.sample("lorentz", 100, seed=1)
    state = torch.get_rng_state()
    again, _ = laws.sample("lorentz", 100, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again, x)
    assert not torch.equal(laws.sample("lorentz", 100, seed=2)[0], x)
    assert laws.sample("lorentz", 5, dtype=torch.float32)[0].dtype == torch.float32


def test_table() -> None:
    table = laws.table("distance", train_size=30, test_size=20, seed=4)
    assert table.name == "law:distance"
    assert table.train_inputs.shape == (30, 4)
    assert table.test_targets.shape == (20, 1)
    assert table.train_inputs.dtype == torch.float32
    assert table.input_names == ("x1", "x2", "y1", "y2")
    both = torch.cat([table.train_inputs, table.test_inputs])
    assert len(both.unique(dim=0)) == 50
    x, y = laws.sample("distance", 50, seed=4)
    torch.testing.assert_close(both, x.float())
    torch.testing.assert_close(table.test_targets[:, 0], y[30:].float())


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"unknown law 'lorenz': choose from .*lorentz"):
        laws.sample("lorenz", 10)
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        laws.sample("lorentz", 0)
    with pytest.raises(ValueError, match="train_size and test_size must be >= 1, got 10 and 0"):
        laws.table("lorentz", 10, 0)
    with pytest.raises(ValueError, match=r"law 'lorentz' takes a tensor \(N, 5\), got \(3, 4\)"):
        laws.get("lorentz")(torch.zeros(3, 4))
