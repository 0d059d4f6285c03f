"""Physical laws to learn from samples: equations of the Feynman lectures with their variables'
ranges.

The numbers are those of "The Feynman lectures on physics", the ranges mostly those of the Feynman
symbolic regression database (Udrescu and Tegmark 2020). Every variable is drawn uniformly from its
range; constants of nature are variables like all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quadric.data.images import make_generator
from quadric.data.tables import TableData
from quadric.errors import InputError


@dataclass(frozen=True)
class Variable:
    """A variable of a law.

    Attributes:
        name: as in the formula.
        unit: in SI; "1" for a pure number.
        low: smallest value drawn.
        high: largest value drawn.
        meaning: in words.
    """

    name: str
    unit: str
    low: float
    high: float
    meaning: str


@dataclass(frozen=True)
class Law:
    """A physical law.

    Attributes:
        name: what `get` and `sample` take.
        title: in words.
        number: in the Feynman lectures: volume, chapter, equation.
        formula: as text.
        variables: in the order of the columns.
        target: what the formula gives, in words.
        unit: of the target.
        function: from one tensor a variable to the target.
    """

    name: str
    title: str
    number: str
    formula: str
    variables: tuple[Variable, ...]
    target: str
    unit: str
    function: Callable[..., Tensor]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Evaluates the law.

        Args:
            inputs: (N, variables), columns in the order of `variables`.

        Returns:
            The target, (N,).
        """
        if inputs.dim() != 2 or inputs.shape[1] != len(self.variables):
            raise InputError(
                f"law {self.name!r} takes a tensor (N, {len(self.variables)}), "
                f"got {tuple(inputs.shape)}"
            )
        return self.function(*inputs.unbind(1))


def _over(low: float, high: float, *variables: tuple[str, str, str]) -> tuple[Variable, ...]:
    """Variables (name, unit, meaning) of one range."""
    return tuple(Variable(name, unit, low, high, meaning) for name, unit, meaning in variables)


def _squares(*components: Tensor) -> Tensor:
    """Square of the length of a vector."""
    return sum((c * c for c in components[1:]), components[0] * components[0])


_LAWS = (
    Law(
        "gaussian",
        "Gaussian density",
        "I.6.2",
        "exp(-(t/s)^2/2) / (sqrt(2 pi) s)",
        _over(1, 3, ("t", "m", "distance from the mean"), ("s", "m", "standard deviation")),
        "probability density",
        "m^-1",
        lambda t, s: torch.exp(-((t / s) ** 2) / 2) / (math.sqrt(2 * math.pi) * s),
    ),
    Law(
        "distance",
        "distance of two points",
        "I.8.14",
        "sqrt((x2 - x1)^2 + (y2 - y1)^2)",
        _over(
            1,
            5,
            ("x1", "m", "first point"),
            ("x2", "m", "second point"),
            ("y1", "m", "first point"),
            ("y2", "m", "second point"),
        ),
        "distance",
        "m",
        lambda x1, x2, y1, y2: torch.sqrt(_squares(x2 - x1, y2 - y1)),
    ),
    Law(
        "gravitation",
        "force between two masses",
        "I.9.18",
        "G m1 m2 / ((x2 - x1)^2 + (y2 - y1)^2 + (z2 - z1)^2)",
        (
            *_over(
                1,
                2,
                ("m1", "kg", "first mass"),
                ("m2", "kg", "second mass"),
                ("G", "N m^2 kg^-2", "gravitational constant"),
            ),
            *_over(
                3,
                4,
                ("x1", "m", "first mass"),
                ("y1", "m", "first mass"),
                ("z1", "m", "first mass"),
            ),
            *_over(
                1,
                2,
                ("x2", "m", "second mass"),
                ("y2", "m", "second mass"),
                ("z2", "m", "second mass"),
            ),
        ),
        "force",
        "N",
        lambda m1, m2, G, x1, y1, z1, x2, y2, z2: G * m1 * m2 / _squares(x2 - x1, y2 - y1, z2 - z1),
    ),
    Law(
        "lorentz",
        "Lorentz force on a moving charge",
        "I.12.11",
        "q (E + B v sin(t))",
        _over(
            1,
            5,
            ("q", "C", "charge"),
            ("E", "V m^-1", "electric field"),
            ("B", "T", "magnetic field"),
            ("v", "m s^-1", "speed"),
            ("t", "1", "angle of velocity and field"),
        ),
        "force",
        "N",
        lambda q, E, B, v, t: q * (E + B * v * torch.sin(t)),
    ),
    Law(
        "kinetic-energy",
        "kinetic energy",
        "I.13.4",
        "m (v^2 + u^2 + w^2) / 2",
        _over(
            1,
            5,
            ("m", "kg", "mass"),
            ("v", "m s^-1", "velocity along x"),
            ("u", "m s^-1", "velocity along y"),
            ("w", "m s^-1", "velocity along z"),
        ),
        "energy",
        "J",
        lambda m, v, u, w: m * _squares(v, u, w) / 2,
    ),
    Law(
        "center-of-mass",
        "center of two masses",
        "I.18.4",
        "(m1 r1 + m2 r2) / (m1 + m2)",
        _over(
            1,
            5,
            ("m1", "kg", "first mass"),
            ("m2", "kg", "second mass"),
            ("r1", "m", "place of the first mass"),
            ("r2", "m", "place of the second mass"),
        ),
        "place",
        "m",
        lambda m1, m2, r1, r2: (m1 * r1 + m2 * r2) / (m1 + m2),
    ),
    Law(
        "oscillator",
        "energy of a driven oscillator",
        "I.24.6",
        "m (w^2 + w0^2) x^2 / 4",
        _over(
            1,
            3,
            ("m", "kg", "mass"),
            ("w", "s^-1", "driving frequency"),
            ("w0", "s^-1", "own frequency"),
            ("x", "m", "amplitude"),
        ),
        "energy",
        "J",
        lambda m, w, w0, x: m * _squares(w, w0) * x * x / 4,
    ),
    Law(
        "barometer",
        "density of an atmosphere (exponent scaled by 1/5)",
        "I.40.1",
        "n exp(-m g x / (5 k T))",
        _over(
            1,
            5,
            ("n", "m^-3", "density on the ground"),
            ("m", "kg", "mass of a molecule"),
            ("g", "m s^-2", "gravity"),
            ("x", "m", "height"),
            ("k", "J K^-1", "Boltzmann's constant"),
            ("T", "K", "temperature"),
        ),
        "density",
        "m^-3",
        lambda n, m, g, x, k, T: n * torch.exp(-m * g * x / (5 * k * T)),
    ),
    Law(
        "dipole",
        "energy of a magnetic moment in a field",
        "III.10.19",
        "m sqrt(Bx^2 + By^2 + Bz^2)",
        _over(
            1,
            5,
            ("m", "J T^-1", "magnetic moment"),
            ("Bx", "T", "magnetic field"),
            ("By", "T", "magnetic field"),
            ("Bz", "T", "magnetic field"),
        ),
        "energy",
        "J",
        lambda m, Bx, By, Bz: m * torch.sqrt(_squares(Bx, By, Bz)),
    ),
    Law(
        "relativistic-mass",
        "mass of a moving body",
        "I.10.7",
        "m0 / sqrt(1 - v^2/c^2)",
        (
            Variable("m0", "kg", 1, 5, "mass at rest"),
            Variable("v", "m s^-1", 1, 2, "speed"),
            Variable("c", "m s^-1", 3, 10, "speed of light"),
        ),
        "mass",
        "kg",
        lambda m0, v, c: m0 / torch.sqrt(1 - (v / c) ** 2),
    ),
    Law(
        "coulomb",
        "force between two charges",
        "I.12.2",
        "q1 q2 / (4 pi eps r^2)",
        _over(
            1,
            5,
            ("q1", "C", "first charge"),
            ("q2", "C", "second charge"),
            ("eps", "C^2 N^-1 m^-2", "permittivity"),
            ("r", "m", "distance"),
        ),
        "force",
        "N",
        lambda q1, q2, eps, r: q1 * q2 / (4 * math.pi * eps * r * r),
    ),
    Law(
        "velocity-addition",
        "relativistic sum of two velocities",
        "I.16.6",
        "(u + v) / (1 + u v / c^2)",
        _over(
            1,
            5,
            ("u", "m s^-1", "first velocity"),
            ("v", "m s^-1", "second velocity"),
            ("c", "m s^-1", "speed of light"),
        ),
        "velocity",
        "m s^-1",
        lambda u, v, c: (u + v) / (1 + u * v / c**2),
    ),
    Law(
        "torque",
        "torque of a force",
        "I.18.12",
        "r F sin(t)",
        _over(
            1, 5, ("r", "m", "lever"), ("F", "N", "force"), ("t", "1", "angle of lever and force")
        ),
        "torque",
        "N m",
        lambda r, F, t: r * F * torch.sin(t),
    ),
    Law(
        "snell",
        "angle of refraction",
        "I.26.2",
        "arcsin(n sin(t))",
        # n below 1, or there is no refracted ray.
        (
            Variable("n", "1", 0, 1, "ratio of the refractive indices"),
            Variable("t", "1", 1, 5, "angle of incidence"),
        ),
        "angle",
        "1",
        lambda n, t: torch.arcsin(n * torch.sin(t)),
    ),
    Law(
        "lens",
        "focal length",
        "I.27.6",
        "1 / (1/d1 + n/d2)",
        _over(
            1,
            5,
            ("d1", "m", "distance of the object"),
            ("d2", "m", "distance of the image"),
            ("n", "1", "refractive index"),
        ),
        "focal length",
        "m",
        lambda d1, d2, n: 1 / (1 / d1 + n / d2),
    ),
    Law(
        "two-waves",
        "amplitude of two waves together",
        "I.29.16",
        "sqrt(a^2 + b^2 - 2 a b cos(s - t))",
        _over(
            1,
            5,
            ("a", "m", "first amplitude"),
            ("b", "m", "second amplitude"),
            ("s", "1", "first phase"),
            ("t", "1", "second phase"),
        ),
        "amplitude",
        "m",
        # Rewritten as a sum of squares: the difference of the formula could round below 0.
        lambda a, b, s, t: torch.sqrt((a - b) ** 2 + 4 * a * b * torch.sin((s - t) / 2) ** 2),
    ),
    Law(
        "grating",
        "intensity behind a diffraction grating",
        "I.30.3",
        "I0 sin(n t/2)^2 / sin(t/2)^2",
        _over(
            1,
            5,
            ("I0", "W m^-2", "intensity of one slit"),
            ("n", "1", "number of slits"),
            ("t", "1", "phase between neighbors"),
        ),
        "intensity",
        "W m^-2",
        lambda I0, n, t: I0 * (torch.sin(n * t / 2) / torch.sin(t / 2)) ** 2,
    ),
    Law(
        "doppler",
        "frequency of a moving source of light",
        "I.34.14",
        "w0 (1 + v/c) / sqrt(1 - v^2/c^2)",
        (
            Variable("c", "m s^-1", 3, 10, "speed of light"),
            Variable("v", "m s^-1", 1, 2, "speed of approach"),
            Variable("w0", "s^-1", 1, 5, "frequency at rest"),
        ),
        "frequency",
        "s^-1",
        lambda c, v, w0: w0 * (1 + v / c) / torch.sqrt(1 - (v / c) ** 2),
    ),
    Law(
        "interference",
        "intensity of two sources of light",
        "I.37.4",
        "I1 + I2 + 2 sqrt(I1 I2) cos(d)",
        _over(
            1,
            5,
            ("I1", "W m^-2", "first intensity"),
            ("I2", "W m^-2", "second intensity"),
            ("d", "1", "phase difference"),
        ),
        "intensity",
        "W m^-2",
        lambda I1, I2, d: I1 + I2 + 2 * torch.sqrt(I1 * I2) * torch.cos(d),
    ),
    Law(
        "planck",
        "black-body radiation",
        "I.41.16",
        "h w^3 / (pi^2 c^2 (exp(h w / (k T)) - 1))",
        _over(
            1,
            5,
            ("w", "s^-1", "frequency"),
            ("T", "K", "temperature"),
            ("h", "J s", "Planck's constant over 2 pi"),
            ("k", "J K^-1", "Boltzmann's constant"),
            ("c", "m s^-1", "speed of light"),
        ),
        "intensity per frequency",
        "J m^-2",
        lambda w, T, h, k, c: h * w**3 / (math.pi**2 * c**2 * torch.expm1(h * w / (k * T))),
    ),
    Law(
        "isothermal-work",
        "work of a gas that expands at one temperature",
        "I.44.4",
        "n k T ln(V2/V1)",
        _over(
            1,
            5,
            ("n", "1", "number of molecules"),
            ("k", "J K^-1", "Boltzmann's constant"),
            ("T", "K", "temperature"),
            ("V1", "m^3", "volume before"),
            ("V2", "m^3", "volume after"),
        ),
        "work",
        "J",
        lambda n, k, T, V1, V2: n * k * T * torch.log(V2 / V1),
    ),
    Law(
        "sound",
        "speed of sound",
        "I.47.23",
        "sqrt(g p / r)",
        _over(
            1,
            5,
            ("g", "1", "adiabatic exponent"),
            ("p", "Pa", "pressure"),
            ("r", "kg m^-3", "density"),
        ),
        "speed",
        "m s^-1",
        lambda g, p, r: torch.sqrt(g * p / r),
    ),
    Law(
        "anharmonic",
        "anharmonic oscillation",
        "I.50.26",
        "x (cos(w t) + a cos(w t)^2)",
        _over(
            1,
            3,
            ("x", "m", "amplitude"),
            ("w", "s^-1", "frequency"),
            ("t", "s", "time"),
            ("a", "1", "anharmonicity"),
        ),
        "displacement",
        "m",
        lambda x, w, t, a: x * (torch.cos(w * t) + a * torch.cos(w * t) ** 2),
    ),
    Law(
        "driven-charge",
        "displacement of a bound charge in an alternating field",
        "II.11.3",
        "q E / (m (w0^2 - w^2))",
        (
            *_over(
                1,
                3,
                ("q", "C", "charge"),
                ("E", "V m^-1", "electric field"),
                ("m", "kg", "mass"),
            ),
            Variable("w0", "s^-1", 3, 5, "own frequency"),
            Variable("w", "s^-1", 1, 2, "driving frequency"),
        ),
        "displacement",
        "m",
        lambda q, E, m, w0, w: q * E / (m * (w0**2 - w**2)),
    ),
    Law(
        "magnetization",
        "magnetization of independent spins",
        "II.35.21",
        "n m tanh(m B / (k T))",
        _over(
            1,
            5,
            ("n", "m^-3", "density of the spins"),
            ("m", "J T^-1", "magnetic moment"),
            ("B", "T", "magnetic field"),
            ("k", "J K^-1", "Boltzmann's constant"),
            ("T", "K", "temperature"),
        ),
        "magnetization",
        "J T^-1 m^-3",
        lambda n, m, B, k, T: n * m * torch.tanh(m * B / (k * T)),
    ),
)

LAWS: dict[str, Law] = {law.name: law for law in _LAWS}


def names() -> list[str]:
    """Lists the laws."""
    return list(LAWS)


def get(name: str) -> Law:
    """Returns a law by name."""
    if name not in LAWS:
        raise InputError(f"unknown law {name!r}: choose from {', '.join(LAWS)}")
    return LAWS[name]


def sample(
    law: str | Law, n: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Draws samples of a law.

    Args:
        law: a law or its name.
        n: number of samples.
        seed: samples of another seed are independent of these.
        dtype: of the result; the computation is in float64.

    Returns:
        Inputs (n, variables) and targets (n,).

    Examples:
        >>> x, y = sample("distance", 1000, seed=1)
        >>> x.shape, y.shape
        (torch.Size([1000, 4]), torch.Size([1000]))
    """
    law = get(law) if isinstance(law, str) else law
    if n < 1:
        raise InputError(f"n must be >= 1, got {n}")
    unit = torch.rand(n, len(law.variables), generator=make_generator(seed), dtype=torch.float64)
    low = torch.tensor([v.low for v in law.variables], dtype=torch.float64)
    high = torch.tensor([v.high for v in law.variables], dtype=torch.float64)
    inputs = low + (high - low) * unit
    return inputs.to(dtype), law(inputs).to(dtype)


def table(
    law: str | Law,
    train_size: int = 10_000,
    test_size: int = 10_000,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> TableData:
    """Samples of a law as a table to learn from.

    Args:
        law: a law or its name.
        train_size: rows to learn from.
        test_size: rows to be tested on.
        seed: of both.
        dtype: of inputs and targets.
    """
    law = get(law) if isinstance(law, str) else law
    if train_size < 1 or test_size < 1:
        raise InputError(f"train_size and test_size must be >= 1, got {train_size} and {test_size}")
    inputs, targets = sample(law, train_size + test_size, seed, dtype)
    return TableData(
        name=f"law:{law.name}",
        train_inputs=inputs[:train_size],
        train_targets=targets[:train_size, None],
        test_inputs=inputs[train_size:],
        test_targets=targets[train_size:, None],
        input_names=tuple(v.name for v in law.variables),
        target_name=law.target,
    )
