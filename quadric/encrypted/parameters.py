"""Parameters of CKKS for a polynomial: ring, primes and scales, safe by the standard's table.

A number is kept as a whole number, times a scale, modulo a product of primes. Multiplying adds the
bits of two scales; rescaling takes the bits of a prime away again, and with them one level. How
many bits the product may have is given by the ring and the security (Albrecht et al.,
"Homomorphic Encryption Standard", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from quadric.encrypted.polynomial import Polynomial, Stage
from quadric.errors import InputError

STANDARD = {
    128: {2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881},
    192: {2048: 37, 4096: 75, 8192: 152, 16384: 305, 32768: 611},
    256: {2048: 29, 4096: 58, 8192: 118, 16384: 237, 32768: 476},
}
"""The largest number of bits by security and ring, against classical computers."""

HEADROOM = 3
"""Bits of range above the largest value on the calibration data: a sign, and four times as much."""

_MOST = 60  # bits of a prime of SEAL
_SPREAD = 3.2  # of the noise of an encryption


@dataclass(frozen=True)
class Plan:
    """How a polynomial is computed: everything but its weights and the keys.

    Attributes:
        packing: "one" or "many".
        ring: numbers of a polynomial of the ring; a ciphertext holds half as many values.
        bits: of each prime; the last one is for the keys.
        scale: bits of the scale of the input.
        weights: bits of the scale of each stage's weights.
        squares: for each stage whether it squares.
        sizes: numbers of the input, and of each stage's output.
        security: bits.
        input_range: the inputs are divided by it.
        output_range: the outputs are multiplied by it.
        input_shape: of one input.
        output_shape: of one output.
    """

    packing: str
    ring: int
    bits: tuple[int, ...]
    scale: int
    weights: tuple[int, ...]
    squares: tuple[bool, ...]
    sizes: tuple[int, ...]
    security: int
    input_range: float
    output_range: float
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    steps: tuple[int, ...] = field(default=())

    @property
    def slots(self) -> int:
        """Values in a ciphertext."""
        return self.ring // 2

    @property
    def levels(self) -> int:
        """Primes that a fresh ciphertext has, without the one for the keys."""
        return len(self.bits) - 1

    @property
    def needs_keys(self) -> bool:
        """Whether the server needs keys to multiply ciphertexts or to rotate them."""
        return self.packing == "one" or sum(self.squares) > 1

    def rescales(self, stage: int) -> bool:
        """Whether a prime is dropped after a stage."""
        if self.packing == "one":
            return stage + 1 < len(self.squares)
        return self.squares[stage] and any(self.squares[stage + 1 :])

    def ciphertext_bytes(self, polynomials: float = 2, levels: int | None = None) -> int:
        """Bytes of a ciphertext; a fresh one is one polynomial and a seed."""
        used = self.bits[:-1] if levels is None else self.bits[:levels]
        return int(polynomials * self.ring * sum(used) / 8)

    @property
    def key_bytes(self) -> int:
        """Bytes of the server's keys, each half a seed."""
        count = (len(self.steps) + any(self.squares)) * self.needs_keys
        return int(count * self.levels * self.ring * sum(self.bits) / 8)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        values: dict[str, Any] = {}
        for name, value in found.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def in_range(polynomial: Polynomial, data: Tensor) -> tuple[Polynomial, list[float]]:
    """The polynomial with every value within -1 … 1 on the data, and the largest values before.

    The scales move into the weights: z is divided by its range where it is made and multiplied
    where it is used.
    """
    values = polynomial.values(data)
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise InputError(
            "every value of the network must be finite on the data, got an infinite one: give "
            "normalized data, or train with smaller rates"
        )
    zero = [
        m is None or not bool(m.any()) for s in polynomial.stages for m in (s.linear, s.squares)
    ]
    if any(map(all, zip(zero[::2], zero[1::2], strict=True))):
        raise InputError(
            "the outputs must depend on the inputs, got a layer whose weights are all zero: train "
            "the network first"
        )
    most = [float(value.abs().max()) for value in values]
    if most[-1] == 0 or most[0] == 0:
        raise InputError("inputs and outputs must not be all zero: give data that are real")
    first, last = torch.full_like(values[0][0], most[0]), torch.full_like(values[-1][0], most[-1])
    inner = [value.abs().amax(0) for value in values[1:-1]]
    ranges = [first, *(torch.where(r == 0, 1.0, r) for r in inner), last]
    stages = []
    for stage, before, after in zip(polynomial.stages, ranges, ranges[1:], strict=False):
        squares = stage.squares
        if squares is not None:
            squares = squares * before.square() / after[:, None]
        linear = stage.linear * before / after[:, None]
        stages.append(Stage(linear, squares, stage.bias / after))
    scaled = Polynomial(tuple(stages), polynomial.input_shape, polynomial.output_shape)
    return scaled, most


def plans(
    polynomial: Polynomial, packing: str, security: int, ranges: Sequence[float]
) -> list[Plan]:
    """The most precise plan of each ring, smallest ring first."""
    if packing not in ("one", "many"):
        raise InputError(f'packing must be "one" or "many", got {packing!r}: choose one')
    if security not in STANDARD:
        raise InputError(
            f"security must be 128, 192 or 256 bits by the standard, got {security!r}: take 128"
        )
    squares = tuple(stage.squares is not None for stage in polynomial.stages)
    sizes = (polynomial.stages[0].linear.shape[1], *(len(s.bias) for s in polynomial.stages))
    found = []
    for ring, most in STANDARD[security].items():
        if packing == "one" and max(sizes) > ring // 2:
            continue
        for scale in range(34 if packing == "one" else 22, 13, -1):
            layout = _one(scale, squares) if packing == "one" else _many(scale, squares)
            if layout is None or sum(layout[0]) > most:
                continue
            bits, weights = layout
            found.append(
                Plan(
                    *(packing, ring, bits, scale, weights, squares, sizes, security),
                    *(ranges[0], ranges[-1], polynomial.input_shape, polynomial.output_shape),
                )
            )
            break
    if not found:
        raise InputError(
            f"the network must fit into the largest ring, got {polynomial.squarings} squares in a "
            f"row and values of {max(sizes):,} numbers: take fewer layers, or smaller ones"
        )
    return found


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""The bits of the primes, and those of the weights."""


def _one(scale: int, squares: tuple[bool, ...]) -> Layout | None:
    """A prime for each map and each square, which brings the scale back; none for the last map."""
    last = min(scale - 4, _MOST - HEADROOM - scale)
    drops = len(squares) - 1 + sum(squares)
    ends = scale + last + HEADROOM
    bits = (ends, *(scale,) * drops, max(ends, scale))
    return bits, (*(scale,) * (len(squares) - 1), last)


def _many(scale: int, squares: tuple[bool, ...]) -> Layout | None:
    """Weights are whole numbers that add no noise: a prime is dropped only between two squares."""
    reached, drops, weights = scale, [], []
    most = reached + scale  # the scale that is squared
    for i, square in enumerate(squares):
        last = i + 1 == len(squares)
        weights.append(scale - 3 if last and square else scale)
        reached = reached * (1 + square) + weights[-1]
        if square and any(squares[i + 1 :]):
            drops.append(reached - most)
            reached = most
    total = reached + HEADROOM + 1
    if max(drops, default=0) > _MOST or total > 5 * _MOST:
        return None
    count = math.ceil(total / _MOST)
    base = [math.ceil(total / count)] * count
    special = max(base + drops) if drops else 24
    return (*base, *reversed(drops), special), tuple(weights)


def simulate(polynomial: Polynomial, plan: Plan, inputs: Tensor, seed: int = 0) -> Tensor:
    """What the server's arithmetic gives, in plain float64, with the rounding and noise of CKKS.

    `polynomial` is the one with its scales in the weights. The result is in its units.
    """
    draw = torch.Generator().manual_seed(seed)

    def noisy(values: Tensor, spread: float) -> Tensor:
        return values + spread * torch.randn(values.shape, generator=draw, dtype=values.dtype)

    ring, one = plan.ring, plan.packing == "one"
    # Rounding a product of the ring, and the secret key of two thirds ones.
    rounding = math.sqrt(ring / 12 * (1 + 2 * ring / 3) / 2)
    scale = float(plan.scale)
    z = inputs.flatten(1).double() / plan.input_range
    z = noisy(z, _SPREAD * math.sqrt(ring / 2) / 2**scale)
    for i, (stage, bits) in enumerate(zip(polynomial.stages, plan.weights, strict=True)):
        after = scale * (1 + plan.squares[i]) + bits
        own = bits if one else after - scale

        def rounded(matrix: Tensor, own: float) -> Tensor:
            if one:
                return noisy(matrix, math.sqrt(ring / 24) / 2**own)
            return (matrix * 2**own).round() / 2**own

        # Turning adds noise, and so does bringing a square back to two polynomials.
        squared = noisy(z.square(), 3 * rounding / 2**scale) if one else z.square()
        z = noisy(z, 3 * rounding / 2**scale) if one else z
        z = z @ rounded(stage.linear, own).T + stage.bias
        if stage.squares is not None:
            z = z + squared @ rounded(stage.squares, bits).T
        if one:
            # Each output gathers the noise of all slots that are summed for it.
            slots = plan.slots if i == 0 else max(plan.sizes[i : i + 2])
            gathered = 8 * rounding * math.sqrt(slots / plan.sizes[i + 1])
            z = noisy(z, gathered / 2 ** (scale if plan.rescales(i) else after - scale))
        elif plan.rescales(i):
            z, scale = noisy(z, 2 * rounding / 2 ** (2 * plan.scale)), 2.0 * plan.scale
        else:
            scale = after
    return z
