from __future__ import annotations

import math
import re

import pytest
import torch

from quadric.data import laws

# Feynman's number, the variables and their ranges.
FACTS = """
gaussian          I.6.2    t s 1-3
distance          I.8.14   x1 x2 y1 y2 1-5
gravitation       I.9.18   m1 m2 G 1-2 x1 y1 z1 3-4 x2 y2 z2 1-2
lorentz           I.12.11  q E B v t 1-5
kinetic-energy    I.13.4   m v u w 1-5
center-of-mass    I.18.4   m1 m2 r1 r2 1-5
oscillator        I.24.6   m w w0 x 1-3
barometer         I.40.1   n m g x k T 1-5
dipole            III.10.19 m Bx By Bz 1-5
relativistic-mass I.10.7   m0 1-5 v 1-2 c 3-10
coulomb           I.12.2   q1 q2 eps r 1-5
velocity-addition I.16.6   u v c 1-5
torque            I.18.12  r F t 1-5
snell             I.26.2   n 0-1 t 1-5
lens              I.27.6   d1 d2 n 1-5
two-waves         I.29.16  a b s t 1-5
grating           I.30.3   I0 n t 1-5
doppler           I.34.14  c 3-10 v 1-2 w0 1-5
interference      I.37.4   I1 I2 d 1-5
planck            I.41.16  w T h k c 1-5
isothermal-work   I.44.4   n k T V1 V2 1-5
sound             I.47.23  g p r 1-5
anharmonic        I.50.26  x w t a 1-3
driven-charge     II.11.3  q E m 1-3 w0 3-5 w 1-2
magnetization     II.35.21 n m B k T 1-5
"""
REFERENCE = {
    name: (number, spec) for name, number, spec in re.findall(r"(\S+) +(\S+) +(.+)", FACTS)
}
NAMES = {"arcsin": math.asin, "ln": math.log, **vars(math)}


def evaluated(law: laws.Law, row: list[float]) -> float:
    """The law by its formula in words, in Python's own numbers: `a b` is a product, `^` a power."""
    code = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", law.formula).replace("^", "**")
    values = {variable.name: value for variable, value in zip(law.variables, row, strict=True)}
    return float(eval(code, NAMES | values))


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
def test_the_function_is_the_formula(name: str) -> None:
    x, y = laws.sample(name, 50, seed=3)
    expected = [evaluated(laws.get(name), row) for row in x.tolist()]
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", laws.names())
def test_number_variables_and_ranges(name: str) -> None:
    law = laws.get(name)
    number, spec = REFERENCE[name]
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
    with pytest.raises(ValueError, match="test_size must be >= 1, got 0"):
        laws.table("lorentz", 10, 0)
    with pytest.raises(ValueError, match=r"law 'lorentz' takes a tensor \(N, 5\), got \(3, 4\)"):
        laws.get("lorentz")(torch.zeros(3, 4))
