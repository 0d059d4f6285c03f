"""check and prepare: what encryption makes of a network, before anything is encrypted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from quadric.encrypted.diagonals import layouts
from quadric.encrypted.parameters import Plan, in_range, plans, simulate
from quadric.encrypted.polynomial import Polynomial, to_polynomial
from quadric.encrypted.recording import Obstacle
from quadric.errors import InputError
from quadric.support.texttable import text_table

TOLERANCE = 1e-3
"""The largest expected error of an output, relative to the largest output on the data."""

_ROWS = 512
"""Inputs on which errors are simulated."""


@dataclass(frozen=True)
class Prepared:
    """A network ready for encryption.

    Attributes:
        polynomial: the network with its scales in the weights: every value is within -1 … 1.
        plan: the parameters.
        ranges: the largest value of the input, of each z and of the output, on the data.
        error: the expected error of an output, the largest on the data, in the network's units.
    """

    polynomial: Polynomial
    plan: Plan
    ranges: list[float]
    error: float

    def simulate(self, inputs: Tensor) -> Tensor:
        """The outputs that decryption is expected to give, by plain arithmetic.

        Args:
            inputs: a batch.

        Returns:
            The outputs in float64, with the rounding and the noise of the parameters.
        """
        rows = simulate(self.polynomial, self.plan, inputs) * self.plan.output_range
        return rows.reshape(-1, *self.plan.output_shape)


@dataclass(frozen=True)
class Check:
    """What `check` found.

    Attributes:
        problems: what encryption cannot compute, with a remedy each; empty if all is well.
        depth: multiplications in a row.
        squarings: how many of them are squares.
        facts: ring, security, levels, rotations, sizes in bytes, ranges and the expected error;
            empty if there are problems.
    """

    problems: tuple[Obstacle, ...]
    depth: int
    squarings: int
    facts: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the network can be encrypted."""
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            lines = [f"parts that are no polynomial: {len(self.problems)}"]
            return "\n".join(lines + [f"  {problem}" for problem in self.problems])
        rows = [[name, _shown(value)] for name, value in self.facts.items()]
        return "a polynomial: it can be encrypted\n" + text_table(["", "value"], rows)

    def to_dict(self) -> dict[str, Any]:
        """The same as numbers and texts."""
        problems = [dataclasses.asdict(problem) for problem in self.problems]
        own = {"ok": self.ok, "depth": self.depth, "squarings": self.squarings}
        return {**own, "problems": problems, **self.facts}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_shown(v) for v in value)
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if value else "0"


def check(
    model: nn.Module,
    example_inputs: Tensor,
    data: Tensor | None = None,
    *,
    packing: str = "one",
    security: int = 128,
) -> Check:
    """Says whether a network can be computed under encryption, and what that takes.

    Nothing is encrypted, and nothing but torch is needed.

    Args:
        model: the network; it stays as it is.
        example_inputs: a batch of inputs.
        data: more inputs, on which ranges and errors are measured; by default the examples.
        packing: "one" answer soon, or "many" answers cheaply.
        security: bits of security by the standard's table: 128, 192 or 256.

    Returns:
        Each part that is no polynomial with its remedy; or depth, levels, rotations, sizes of keys
        and ciphertexts, ranges and the expected error.

    Raises:
        InputError: if model and inputs do not fit, or no parameters are large enough.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> report = check(model, torch.randn(16, 4))
        >>> [problem.where for problem in report.problems]
        ['1']
        >>> check(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(16, 4)).depth
        1
    """
    found = to_polynomial(model, example_inputs)
    if found.problems:
        return Check(found.problems, found.depth, found.squarings, {})
    data = example_inputs if data is None else data
    best = _prepared(found, data, packing, security, None)
    plan = best.plan
    count = plan.sizes[0] if packing == "many" else 1
    answers = plan.sizes[-1] if packing == "many" else 1
    polynomials = 3 if packing == "many" and any(plan.squares) else 2
    left = plan.levels - (sum(map(plan.rescales, range(len(plan.squares)))))
    if packing == "one":
        left -= sum(plan.squares)
    facts = {
        "depth": found.depth,
        "squares in a row": found.squarings,
        "sizes": list(plan.sizes),
        "security": plan.security,
        "ring": plan.ring,
        "bits": sum(plan.bits),
        "levels": plan.levels,
        "rotations": sum(d.rotations for d in layouts(plan)) if packing == "one" else 0,
        "pictures in a request": 1 if packing == "one" else plan.slots,
        "bytes of a request": count * plan.ciphertext_bytes(1),
        "bytes of an answer": answers * plan.ciphertext_bytes(polynomials, left),
        "bytes of the server's keys": plan.key_bytes,
        "ranges": best.ranges,
        "expected error": best.error,
        "tolerated error": TOLERANCE * best.ranges[-1],
    }
    return Check((), found.depth, found.squarings, facts)


def prepare(
    model: nn.Module,
    data: Tensor,
    *,
    packing: str = "one",
    security: int = 128,
    tolerance: float = TOLERANCE,
) -> Prepared:
    """Brings a network into the form in which it is encrypted, with the smallest parameters.

    BatchNorm and everything linear between two squares become one matrix; scales move into the
    weights; the smallest ring is chosen whose simulated error is small enough.

    Args:
        model: the network; it stays as it is.
        data: inputs such as will be encrypted: a few hundred. Outputs up to four times the largest
            on these can be computed later: inputs twice as large for one square in a row.
        packing: "one" answer soon, or "many" answers cheaply.
        security: bits of security by the standard's table: 128, 192 or 256.
        tolerance: the largest expected error, relative to the largest output.

    Returns:
        The network, the parameters, and what to expect of them.

    Raises:
        InputError: if a part is no polynomial, or no parameters are large enough.

    Examples:
        >>> import quadric, torch
        >>> model = nn.Sequential(quadric.QuadraticLinear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> prepared = prepare(model, torch.randn(100, 4))
        >>> prepared.plan.ring, prepared.plan.squares
        (8192, (False, True))
    """
    found = to_polynomial(model, data)
    if found.problems:
        text = "; ".join(map(str, found.problems))
        raise InputError(f"the network must be a polynomial to be encrypted, got {text}")
    return _prepared(found, data, packing, security, tolerance)


def _prepared(
    found: Polynomial, data: Tensor, packing: str, security: int, tolerance: float | None
) -> Prepared:
    """The smallest plan that is precise enough; without a tolerance the most precise one."""
    if not isinstance(data, Tensor) or data.shape[1:] != found.input_shape:
        shape = tuple(data.shape) if isinstance(data, Tensor) else type(data).__name__
        raise InputError(
            f"data must be a batch of inputs of shape {found.input_shape}, got {shape}: give "
            "inputs such as will be encrypted"
        )
    scaled, ranges = in_range(found, data.cpu())
    inputs, best = data[:_ROWS].cpu(), None
    wanted = TOLERANCE if tolerance is None else tolerance
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not wanted > 0:
        raise InputError(f"tolerance must be a number > 0, got {tolerance!r}: leave it out")
    right = found.values(inputs)[-1]
    for plan in plans(scaled, packing, security, ranges):
        outputs = simulate(scaled, plan, inputs) * plan.output_range
        error = float((outputs - right).abs().max())
        if packing == "one":
            steps = set().union(*(layout.steps for layout in layouts(plan)))
            plan = dataclasses.replace(plan, steps=tuple(sorted(steps)))
        best = Prepared(scaled, plan, ranges, error)
        if error <= wanted * ranges[-1]:
            return best
    assert best is not None
    if tolerance is None:
        return best
    raise InputError(
        f"the expected error must be at most {wanted:g} of the largest output, got "
        f"{best.error / ranges[-1]:.1g} with the largest ring: raise tolerance, or take fewer "
        "squares in a row"
    )
