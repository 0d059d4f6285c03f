"""Residuals that a user writes for one point: equations, conditions, inverse problems."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from quadric.errors import InputError, InputTypeError, in_one_line
from quadric.solve.problems import Problem
from quadric.solve.unknowns import Tensors, Unknowns

POINTS = 2**12
"""Points of a term that are differentiated at once."""

_WITHOUT_CURVATURE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Threshold)


class Field:
    """The network as a function of one point.

    Attributes:
        parameters: the network's parameters and buffers by name, as they are in this residual. An
            unknown constant of an equation is a parameter of the network and is read here.
    """

    def __init__(self, module: nn.Module, parameters: Tensors) -> None:
        self._module = module
        self.parameters = parameters

    def __call__(self, x: Tensor) -> Tensor:
        """The value at a point x (d,): a number for a network of one output, else (outputs,)."""
        if x.dim() != 1:
            raise InputError(
                f"u takes one point of shape (d,), got shape {tuple(x.shape)}: the function of a "
                "term is called for each point on its own"
            )
        out: Tensor = functional_call(self._module, self.parameters, (x.unsqueeze(0),))
        out = out.reshape(-1)
        return out[0] if len(out) == 1 else out


@dataclass(frozen=True)
class Term:
    """A condition that a network should meet at some points.

    Attributes:
        function: takes the network `u` and one point `x` (d,), and gives the residual there: a
            number, or a vector for several equations. `u(x)` is a number for a network of one
            output. `torch.func` works inside: `hessian(u)(x).diagonal().sum()` is the Laplacian.
        points: where it should be zero, (N, d).
        weight: the factor of the mean of the squared residuals.

    Examples:
        >>> from torch.func import hessian
        >>> points = torch.rand(100, 2, dtype=torch.float64)
        >>> laplace = Term(lambda u, x: hessian(u)(x).diagonal().sum(), points)
    """

    function: Callable[[Any, Tensor], Tensor]
    points: Tensor
    weight: float = 1.0


class TermProblem(Problem):
    """sqrt(weight / points) times each residual of each term."""

    def __init__(self, unknowns: Unknowns, terms: Sequence[Term]) -> None:
        super().__init__(unknowns)
        self.terms = [_checked(i, term, unknowns.device) for i, term in enumerate(terms)]
        self.sizes = [self._probe(i) for i in range(len(terms))]
        rows = [len(t.points) * k for t, k in zip(self.terms, self.sizes, strict=True)]
        self.count = sum(rows)
        # The mean factor is 1 for one term of weight 1, as for rows of data.
        self.factors = [(t.weight * self.count / len(t.points)) ** 0.5 for t in self.terms]

    def _one(self, i: int, u: Tensor, x: Tensor) -> Tensor:
        field = Field(self.unknowns.copy, self.unknowns.split(u * self.units))
        residual: Tensor = torch.as_tensor(self.terms[i].function(field, x)).reshape(-1)
        weighted: Tensor = residual * self.factors[i]
        return weighted

    def _pieces(self, i: int) -> Iterator[Tensor]:
        rows = min(POINTS, self.rows_at_once(self.sizes[i]))
        yield from self.terms[i].points.split(rows)

    def residuals(self, u: Tensor) -> Tensor:
        parts = []
        for i in range(len(self.terms)):
            for x in self._pieces(i):
                parts.append(vmap(lambda x, i=i: self._one(i, u, x))(x).flatten())
        return torch.cat(parts)

    @torch.no_grad()
    def blocks(self, u: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for i, size in enumerate(self.sizes):
            seeds = torch.eye(size, dtype=u.dtype, device=u.device)

            def rows(x: Tensor, i: int = i, seeds: Tensor = seeds) -> tuple[Tensor, Tensor]:
                pair: Any = vjp(lambda u: self._one(i, u, x), u)
                return pair[0], vmap(pair[1])(seeds)[0]

            for x in self._pieces(i):
                r, found = vmap(rows)(x)
                yield r.flatten(), found.flatten(0, 1)

    def means(self, u: Tensor) -> list[float]:
        """The mean squared residual of each term, without its weight."""
        with torch.no_grad():
            squares = self.residuals(u).square()
        sizes = [len(t.points) * k for t, k in zip(self.terms, self.sizes, strict=True)]
        parts = zip(squares.split(sizes), self.factors, strict=True)
        return [float(part.mean()) / factor**2 for part, factor in parts]

    def _probe(self, i: int) -> int:
        """Calls a term at its first point; the number of its residuals there."""
        term, x = self.terms[i], self.terms[i].points[0]
        module, parameters = self.unknowns.copy, self.unknowns.split(self.unknowns.start())
        try:
            value = torch.as_tensor(term.function(Field(module, parameters), x))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the function of term {i} must work for one point x {tuple(x.shape)}, got "
                f"{in_one_line(error)}: index x as x[0], x[1], …, not as a table of points"
            ) from error
        outputs = functional_call(module, parameters, (x.unsqueeze(0),)).numel()
        if value.dim() > 1 or (
            value.numel() > max(outputs, len(x)) and value.numel() == len(term.points)
        ):
            raise InputError(
                f"a term's residual must be a number or a short vector for one point, got shape "
                f"{tuple(value.shape)} from term {i}, which has {len(term.points)} points: compute "
                "what belongs to a point from x, instead of taking in a table (N, 1) or (N,)"
            )
        self._warn_of_flat_pieces(i, value)
        return value.numel()

    def _warn_of_flat_pieces(self, i: int, value: Tensor) -> None:
        """Warns where second derivatives of a piecewise linear activation are taken."""
        flat = [m for m in self.unknowns.copy.modules() if isinstance(m, _WITHOUT_CURVATURE)]
        if not flat:
            return
        x = self.terms[i].points[0]
        parameters = self.unknowns.split(self.unknowns.start())
        # A field with the same value and slopes at x but another curvature.
        bent = _Bent(self.unknowns.copy, parameters, x)
        if not torch.equal(torch.as_tensor(self.terms[i].function(bent, x)), value):
            warnings.warn(
                f"term {i} takes second derivatives of a network with {type(flat[0]).__name__}, "
                "whose second derivative is 0: use SiLU or Tanh",
                UserWarning,
                stacklevel=5,
            )


class _Bent(Field):
    def __init__(self, module: nn.Module, parameters: Tensors, center: Tensor) -> None:
        super().__init__(module, parameters)
        self._center = center

    def __call__(self, x: Tensor) -> Tensor:
        away = x - self._center
        return super().__call__(x) + (away @ away + away.sum() ** 2)


def _checked(i: int, term: Term, device: torch.device) -> Term:
    """A term with float64 points, or an error that names it."""
    if not isinstance(term, Term):
        raise InputTypeError(
            f"terms must be a list of quadric.solve.Term, got {type(term).__name__} at {i}: write "
            "Term(function, points)"
        )
    points = torch.as_tensor(term.points)
    if points.dim() != 2 or not len(points):
        raise InputError(
            f"the points of term {i} must be a table (N, d), got shape {tuple(points.shape)}: "
            "points on a line are x[:, None]"
        )
    if not bool(points.isfinite().all()):
        raise InputError(f"the points of term {i} must be finite, got NaN or infinity: drop those")
    weight = float(term.weight)
    if not 0 < weight < float("inf"):
        raise InputError(f"the weight of term {i} must be positive, got {weight}: leave it out")
    return Term(term.function, points.detach().to(device, torch.float64), weight)
