"""What is minimized: residuals of the unknowns, and their derivatives in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from quadric.solve.jacobian import NetworkStep, jacobian, outputs_of
from quadric.solve.unknowns import Unknowns

BLOCK = 2**21
"""Numbers of J that are held at once, 16 MB: with them a fit needs three matrices P x P."""


class Problem:
    """Abstract: residuals r(u), where u are the unknowns in units of `units`.

    Attributes:
        unknowns: the network and the places of its parameters.
        units: what one unit of each unknown is.
        count: the number of residuals.
    """

    unknowns: Unknowns
    units: Tensor
    count: int

    def __init__(self, unknowns: Unknowns, units: Tensor | None = None) -> None:
        self.unknowns = unknowns
        ones = torch.ones(unknowns.count, dtype=torch.float64, device=unknowns.device)
        self.units = ones if units is None else units
        self._plain = units is None or bool((units == 1).all())
        self._buffer = ones[:0]

    def residuals(self, u: Tensor) -> Tensor:
        """All residuals, as a vector; `torch.func` can differentiate it."""
        raise NotImplementedError

    def blocks(self, u: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Residuals and their derivatives by u, some rows at a time; the next rows replace them."""
        raise NotImplementedError

    def loss(self, u: Tensor) -> float:
        """The sum of the squared residuals; infinity where it is not finite."""
        with torch.no_grad():
            r = self.residuals(u)
            total = float(r @ r)
        return total if total == total else float("inf")

    def renew(self, u: Tensor, accepted: int) -> bool:
        """Draws other points after so many steps, if it is time to; whether it did."""
        return False

    def _room(self, rows: int) -> Tensor:
        """Memory for the derivatives of so many residuals, used again and again."""
        size = rows * self.unknowns.count
        if len(self._buffer) < size:
            self._buffer = self.units.new_empty(size)
        return self._buffer[:size].view(rows, -1)

    def _in_units(self, derivatives: Tensor) -> Tensor:
        return derivatives if self._plain else derivatives.mul_(self.units)

    def rows_at_once(self, each: int) -> int:
        """How many rows of `each` residuals fit into a block."""
        return max(1, BLOCK // (each * self.unknowns.count))


class RowProblem(Problem):
    """(network(x) - y) sqrt(w) / unit for each row and output."""

    def __init__(
        self,
        unknowns: Unknowns,
        steps: Sequence[NetworkStep],
        data: tuple[Tensor, Tensor, Tensor],
        unit: float,
        units: Tensor | None,
    ) -> None:
        super().__init__(unknowns, units)
        self.steps, self.unit = steps, unit
        self.inputs, self.targets, weights = data
        self.factors = weights.sqrt().unsqueeze(1) / unit
        self.count = self.targets.numel()

    def residuals(self, u: Tensor) -> Tensor:
        parameters = self.unknowns.split(u * self.units)
        if torch.is_grad_enabled():
            outputs = functional_call(self.unknowns.copy, parameters, (self.inputs,))
            outputs = outputs.reshape(self.targets.shape)
        else:
            outputs = outputs_of(self.steps, parameters, self.inputs)
        residuals: Tensor = (outputs - self.targets) * self.factors
        return residuals.flatten()

    def blocks(self, u: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        each = self.targets.shape[1]
        rows = self.rows_at_once(each)
        for start in range(0, len(self.inputs), rows):
            part = slice(start, start + rows)
            x, factors = self.inputs[part], self.factors[part]
            into = self._room(len(x) * each)
            outputs = jacobian(
                self.steps, self.unknowns, u * self.units, x, into.view(len(x), each, -1)
            )
            if not (self.unit == 1 and bool((factors == 1).all())):
                into.view(len(x), each, -1).mul_(factors.unsqueeze(2))
            yield ((outputs - self.targets[part]) * factors).flatten(), self._in_units(into)
