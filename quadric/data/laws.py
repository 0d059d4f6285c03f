"""Physical laws to learn from samples: equations of the Feynman lectures.

laws.json holds what is known of each law in words and numbers; the functions are below.

The numbers are those of "The Feynman lectures on physics", the ranges mostly those of the Feynman
symbolic regression database (Udrescu and Tegmark 2020). Every variable is drawn uniformly from its
range; constants of nature are variables like all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import torch
from torch import Tensor

from quadric.data.batches import make_generator
from quadric.data.tables import TableData
from quadric.errors import InputError
from quadric.support.checks import check_size


@dataclass(frozen=True)
class Variable:
    """A variable of a law."""

    name: str  # as in the formula
    unit: str  # in SI; "1" for a pure number
    low: float  # smallest value drawn
    high: float  # largest value drawn
    meaning: str  # in words


@dataclass(frozen=True)
class Law:
    """A physical law."""

    name: str  # what `get` and `sample` take
    title: str  # in words
    number: str  # in the Feynman lectures: volume, chapter, equation
    formula: str  # as text
    variables: tuple[Variable, ...]  # in the order of the columns
    target: str  # what the formula gives, in words
    unit: str  # of the target
    function: Callable[..., Tensor]  # takes one tensor per variable and returns the target

    def __call__(self, inputs: Tensor) -> Tensor:
        """Evaluates the law."""
        if inputs.dim() != 2 or inputs.shape[1] != len(self.variables):
            raise InputError(
                f"law {self.name!r} takes a tensor (N, {len(self.variables)}), "
                f"got {tuple(inputs.shape)}"
            )
        return self.function(*inputs.unbind(1))


def _squares(*components: Tensor) -> Tensor:
    """Square of the length of a vector."""
    return sum((c * c for c in components[1:]), components[0] * components[0])


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian": lambda t, s: torch.exp(-((t / s) ** 2) / 2) / (math.sqrt(2 * math.pi) * s),
    "distance": lambda x1, x2, y1, y2: torch.sqrt(_squares(x2 - x1, y2 - y1)),
    "gravitation": lambda m1, m2, G, x1, y1, z1, x2, y2, z2: (
        G * m1 * m2 / _squares(x2 - x1, y2 - y1, z2 - z1)
    ),
    "lorentz": lambda q, E, B, v, t: q * (E + B * v * torch.sin(t)),
    "kinetic-energy": lambda m, v, u, w: m * _squares(v, u, w) / 2,
    "center-of-mass": lambda m1, m2, r1, r2: (m1 * r1 + m2 * r2) / (m1 + m2),
    "oscillator": lambda m, w, w0, x: m * _squares(w, w0) * x * x / 4,
    "barometer": lambda n, m, g, x, k, T: n * torch.exp(-m * g * x / (5 * k * T)),
    "dipole": lambda m, Bx, By, Bz: m * torch.sqrt(_squares(Bx, By, Bz)),
    "relativistic-mass": lambda m0, v, c: m0 / torch.sqrt(1 - (v / c) ** 2),
    "coulomb": lambda q1, q2, eps, r: q1 * q2 / (4 * math.pi * eps * r * r),
    "velocity-addition": lambda u, v, c: (u + v) / (1 + u * v / c**2),
    "torque": lambda r, F, t: r * F * torch.sin(t),
    # n is below 1, or there is no refracted ray.
    "snell": lambda n, t: torch.arcsin(n * torch.sin(t)),
    "lens": lambda d1, d2, n: 1 / (1 / d1 + n / d2),
    # A sum of squares: the difference in the formula could round below 0.
    "two-waves": lambda a, b, s, t: torch.sqrt(
        (a - b) ** 2 + 4 * a * b * torch.sin((s - t) / 2) ** 2
    ),
    "grating": lambda I0, n, t: I0 * (torch.sin(n * t / 2) / torch.sin(t / 2)) ** 2,
    "doppler": lambda c, v, w0: w0 * (1 + v / c) / torch.sqrt(1 - (v / c) ** 2),
    "interference": lambda I1, I2, d: I1 + I2 + 2 * torch.sqrt(I1 * I2) * torch.cos(d),
    "planck": lambda w, T, h, k, c: h * w**3 / (math.pi**2 * c**2 * torch.expm1(h * w / (k * T))),
    "isothermal-work": lambda n, k, T, V1, V2: n * k * T * torch.log(V2 / V1),
    "sound": lambda g, p, r: torch.sqrt(g * p / r),
    "anharmonic": lambda x, w, t, a: x * (torch.cos(w * t) + a * torch.cos(w * t) ** 2),
    "driven-charge": lambda q, E, m, w0, w: q * E / (m * (w0**2 - w**2)),
    "magnetization": lambda n, m, B, k, T: n * m * torch.tanh(m * B / (k * T)),
}


def _read() -> dict[str, Law]:
    text = resources.files("quadric.data").joinpath("laws.json").read_text(encoding="utf-8")
    laws = {}
    for law in json.loads(text):
        variables = tuple(Variable(*values) for values in law.pop("variables"))
        function = _FUNCTIONS[law["name"]]
        laws[law["name"]] = Law(**law, variables=variables, function=function)
    return laws


LAWS = _read()


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

    Examples:
        >>> x, y = sample("distance", 1000, seed=1)
        >>> x.shape, y.shape
        (torch.Size([1000, 4]), torch.Size([1000]))
    """
    law = get(law) if isinstance(law, str) else law
    check_size("n", n)
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
    """Samples of a law as a table to learn from."""
    law = get(law) if isinstance(law, str) else law
    check_size("train_size", train_size)
    check_size("test_size", test_size)
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
