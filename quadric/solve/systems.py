"""The linear system of a step: minimize |r + J d|^2 + sum shift d^2 + 2 pull'd.

Three ways. `NormalSystem` builds J'J (P x P). `ResidualSystem` builds J J' (N x N), for fewer
residuals than unknowns. `ProductSystem` builds nothing: conjugate gradients on products with J.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp

from quadric.errors import InputError
from quadric.solve.problems import Problem

_PARTS = 4


class System:
    """Abstract: a problem made linear at u.

    Attributes:
        gradient: J'r.
        scale: the largest entry on the diagonal of J'J.
        loss: r'r.
    """

    gradient: Tensor
    scale: float
    loss: float

    def __init__(self, problem: Problem, u: Tensor) -> None:
        raise NotImplementedError

    def step(self, shift: Tensor, pull: Tensor) -> Tensor | None:
        """The minimum d, or None where rounding leaves no positive matrix."""
        raise NotImplementedError

    def bend(self, second: Tensor) -> Tensor | None:
        """The correction of the last step for the curvature of r along it; None if too dear."""
        return None

    def determined(self, decay: Tensor) -> Tensor:
        """The diagonal of J'J (J'J + decay)^-1: how far the data determine each unknown, 0 to 1."""
        raise NotImplementedError

    def spread(self, rows: Tensor, decay: Tensor) -> Tensor:
        """j'(J'J + decay)^-1 j for each row j."""
        raise NotImplementedError


class NormalSystem(System):
    """J'J and its Cholesky factor."""

    def __init__(self, problem: Problem, u: Tensor) -> None:
        self.problem, self.u, count = problem, u, len(u)
        self.matrix = u.new_zeros(count, count)
        self.gradient, self.loss = torch.zeros_like(u), 0.0
        # Only what lies left of the end of each part: Cholesky reads the lower triangle alone.
        ends = [count * i // _PARTS for i in range(_PARTS + 1)]
        for r, rows in problem.blocks(u):
            for a, b in pairwise(ends):
                self.matrix[a:b, :b].addmm_(rows[:, a:b].T, rows[:, :b])
            self.gradient.addmv_(rows.T, r)
            self.loss += float(r @ r)
        self.scale = float(self.matrix.diagonal().max())

    def _factor(self, shift: Tensor) -> Tensor | None:
        matrix = self.matrix.clone()
        matrix.diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return None if int(failed) else factor

    def step(self, shift: Tensor, pull: Tensor) -> Tensor | None:
        self.factor = self._factor(shift)
        if self.factor is None:
            return None
        return -torch.cholesky_solve((self.gradient + pull).unsqueeze(1), self.factor).squeeze(1)

    def bend(self, second: Tensor) -> Tensor | None:
        assert self.factor is not None
        with torch.enable_grad():
            u = self.u.detach().requires_grad_()
            (back,) = torch.autograd.grad(self.problem.residuals(u), u, second)
        return -torch.cholesky_solve(back.unsqueeze(1), self.factor).squeeze(1) / 2

    def determined(self, decay: Tensor) -> Tensor:
        factor = self._factor(decay)
        if factor is None:
            return torch.ones_like(self.gradient)
        return 1 - decay * torch.cholesky_inverse(factor).diagonal()

    def spread(self, rows: Tensor, decay: Tensor) -> Tensor:
        factor = self._factor(decay)
        if factor is None:
            raise _no_error_bars()
        seen: Tensor = torch.linalg.solve_triangular(factor, rows.T, upper=False)
        return seen.square().sum(0)


class ResidualSystem(System):
    """J and J J'."""

    def __init__(self, problem: Problem, u: Tensor) -> None:
        parts = [(r, rows.clone()) for r, rows in problem.blocks(u)]
        self.r = torch.cat([r for r, _ in parts])
        self.rows = torch.cat([rows for _, rows in parts])
        self.gradient = self.rows.T @ self.r
        self.loss = float(self.r @ self.r)
        self.scale = float(self.rows.square().sum(0).max())

    def _factor(self, shift: Tensor) -> Tensor | None:
        """The Cholesky factor of 1 + J shift^-1 J'."""
        matrix = (self.rows / shift) @ self.rows.T
        matrix.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return None if int(failed) else factor

    def step(self, shift: Tensor, pull: Tensor) -> Tensor | None:
        self.factor, self.shift = self._factor(shift), shift
        if self.factor is None:
            return None
        apart = -pull / shift
        return apart + self._solved(self.r + self.rows @ apart)

    def bend(self, second: Tensor) -> Tensor | None:
        return self._solved(second) / 2

    def _solved(self, right: Tensor) -> Tensor:
        assert self.factor is not None
        inner = torch.cholesky_solve(right.unsqueeze(1), self.factor).squeeze(1)
        return -(self.rows.T @ inner) / self.shift

    def determined(self, decay: Tensor) -> Tensor:
        factor = self._factor(decay)
        if factor is None:
            return torch.ones_like(self.gradient)
        seen: Tensor = torch.linalg.solve_triangular(factor, self.rows, upper=False)
        return seen.square().sum(0) / decay

    def spread(self, rows: Tensor, decay: Tensor) -> Tensor:
        factor = self._factor(decay)
        if factor is None:
            raise _no_error_bars()
        own = rows / decay
        seen: Tensor = torch.linalg.solve_triangular(factor, self.rows @ own.T, upper=False)
        left: Tensor = (rows * own).sum(1) - seen.square().sum(0)
        return left.clamp_min(0)


class ProductSystem(System):
    """Products with J and J' alone; conjugate gradients solve a step to 1 %."""

    tolerance, limit = 1e-2, 200

    def __init__(self, problem: Problem, u: Tensor) -> None:
        self.problem, self.u = problem, u
        pair: Any = vjp(problem.residuals, u)
        r, self._back = pair
        self.gradient, self.loss = self._back(r)[0], float(r @ r)
        self.generator = torch.Generator().manual_seed(0)
        probe = self._probe()
        # The mean of the diagonal, and a guess of how far its largest entry lies above.
        self.scale = 10 * float(probe @ self._product(probe)) / len(u)

    def _probe(self) -> Tensor:
        signs = torch.randint(0, 2, self.u.shape, generator=self.generator)
        return (2 * signs - 1).to(self.u)

    def _product(self, d: Tensor) -> Tensor:
        out: Tensor = self._back(jvp(self.problem.residuals, (self.u,), (d,))[1])[0]
        return out

    def _solve(self, shift: Tensor, right: Tensor) -> Tensor:
        x, left = torch.zeros_like(right), right.clone()
        direction, size = left.clone(), float(left @ left)
        end = self.tolerance**2 * size
        for _ in range(self.limit):
            if size <= end:
                break
            product = self._product(direction) + shift * direction
            length = size / float(direction @ product)
            x, left = x + length * direction, left - length * product
            before, size = size, float(left @ left)
            direction = left + size / before * direction
        return x

    def step(self, shift: Tensor, pull: Tensor) -> Tensor | None:
        return self._solve(shift, -(self.gradient + pull))

    def determined(self, decay: Tensor) -> Tensor:
        # Hutchinson: the mean of z Az over random signs z is the diagonal of A.
        probe = self._probe()
        return 1 - decay * probe * self._solve(decay, probe)

    def spread(self, rows: Tensor, decay: Tensor) -> Tensor:
        return torch.stack([row @ self._solve(decay, row) for row in rows])


def _no_error_bars() -> InputError:
    return InputError(
        "error bars need a matrix that float64 can factor, got a singular one: fit with "
        "regularization='evidence'"
    )
