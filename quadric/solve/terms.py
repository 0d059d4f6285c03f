"""Residuals that a user writes for one point: equations, conditions, inverse problems."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from quadric.errors import InputError, InputTypeError, in_one_line
from quadric.solve.jets import JetNetwork, Orders
from quadric.solve.problems import Problem
from quadric.solve.unknowns import Tensors, Unknowns

POINTS = 2**12
"""Points of a term that are differentiated at once."""

REDRAW = 20
"""Steps between two draws of points."""


class Field:
    """The network as a function of one point.

    Attributes:
        parameters: the network's parameters and buffers by name, as they are in this residual. An
            unknown constant of an equation is a parameter of the network and is read here.
    """

    def __init__(self, module: nn.Module, parameters: Tensors) -> None:
        self._module = module
        self.parameters = parameters
        self._sizes = (0, 0)

    def __call__(self, x: Tensor) -> Tensor:
        """The value at a point x (d,): a number for a network of one output, else (outputs,)."""
        if x.dim() != 1:
            raise InputError(
                f"u takes one point of shape (d,), got shape {tuple(x.shape)}: the function of a "
                "term is called for each point on its own"
            )
        out = self._values(x)
        return out[0] if len(out) == 1 else out

    def _values(self, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self._module, self.parameters, (x.unsqueeze(0),))
        self._sizes = (len(x), out.numel())
        return out.reshape(-1)

    def sizes(self) -> tuple[int, int]:
        """The columns of the points that it was asked at, and its outputs."""
        return self._sizes


class _Near(Field):
    """The network around one point: its Taylor polynomial, known from the jet there."""

    def __init__(self, parameters: Tensors, center: Tensor, jet: Tensor, orders: Orders) -> None:
        self.parameters = parameters
        self._center, self._jet, self._orders = center[: orders.columns], jet, orders

    def _values(self, x: Tensor) -> Tensor:
        return self._orders.taylor(self._jet, x - self._center)


@dataclass(frozen=True)
class Term:
    """A condition that a network should meet at some points.

    Attributes:
        function: takes the network `u` and one point `x` (d,), and gives the residual there: a
            number, or a vector for several equations. `u(x)` is a number for a network of one
            output. `torch.func` works inside: `hessian(u)(x).diagonal().sum()` is the Laplacian.
        points: where it should be zero, (N, d). Further columns may hold what belongs to a point,
            such as a measured value: the function then calls `u(x[:2])`.
        weight: the factor of the mean of the squared residuals.
        draw: a function that gives other points, (M, d) with M >= N. Every 20 steps N of them
            become the points. With M > N those with a large residual are taken more often.

    Examples:
        >>> from torch.func import hessian
        >>> points = torch.rand(100, 2, dtype=torch.float64)
        >>> laplace = Term(lambda u, x: hessian(u)(x).diagonal().sum(), points)
    """

    function: Callable[[Any, Tensor], Tensor]
    points: Tensor
    weight: float = 1.0
    draw: Callable[[], Tensor] | None = None

    def way(self, unknowns: Unknowns) -> Way:
        """How its residuals are had."""
        return Way(unknowns, self)


class _Reads(dict[str, Tensor]):
    """Parameters that notes which are read."""

    def __init__(self, parameters: Tensors) -> None:
        super().__init__(parameters)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.names.add(name)
        return super().__getitem__(name)


class Way:
    """How the residuals of a term are had: for each point by torch.func, the reference.

    Attributes:
        k: the residuals of a point, where the way itself knows; else 0.
    """

    k = 0

    def __init__(self, unknowns: Unknowns, term: Term) -> None:
        self.unknowns, self.term = unknowns, term

    def residuals(self, parameters: Tensors, x: Tensor) -> Tensor:
        """(N, k)."""
        with torch.enable_grad():  # without, SiLU has no second derivative forward over reverse
            return vmap(lambda x: self._one(parameters, x))(x)

    def _one(self, parameters: Tensors, x: Tensor) -> Tensor:
        field = Field(self.unknowns.copy, parameters)
        return torch.as_tensor(self.term.function(field, x)).reshape(-1)

    def rows(self, parameters: Tensors, x: Tensor, into: Tensor) -> Tensor:
        """Fills J (N, k, unknowns); returns the residuals (N, k)."""
        trained = {name: parameters[name] for name in self.unknowns.parts}
        seeds = torch.eye(into.shape[1], dtype=x.dtype, device=x.device)

        def one(x: Tensor) -> Any:
            pair: Any = vjp(lambda own: self._one({**parameters, **own}, x), trained)
            return pair[0], vmap(pair[1])(seeds)[0]

        with torch.enable_grad():
            r, found = vmap(one)(x)
        for name, (a, b, _) in self.unknowns.parts.items():
            into[:, :, a:b] = found[name].reshape(*into.shape[:2], b - a)
        return r  # type: ignore[no-any-return]


class NearWay(Way):
    """Residuals of what the network does near each point: its jets, for all points at once."""

    def __init__(
        self, network: JetNetwork, term: Term, orders: Orders, reads: Sequence[str] = ()
    ) -> None:
        super().__init__(network.unknowns, term)
        self.network, self.orders, self.reads = network, orders, reads
        self._traced: dict[tuple[str, int], Callable[..., Any]] = {}

    def _near(self, parameters: Tensors, x: Tensor, jet: Tensor) -> Tensor:
        field = _Near(parameters, x, jet, self.orders)
        return torch.as_tensor(self.term.function(field, x)).reshape(-1)

    def residuals(self, parameters: Tensors, x: Tensor) -> Tensor:
        jet = self.network(parameters, x[:, : self.orders.columns], self.orders).stack

        def all_of(x: Tensor, jet: Tensor, read: Tensors) -> Any:
            own = {**parameters, **read}
            return vmap(lambda x, jet: self._near(own, x, jet), (0, 1))(x, jet)

        return self._run("residuals", all_of, x, jet, parameters)  # type: ignore[no-any-return]

    def seeds(self, parameters: Tensors, x: Tensor, jet: Tensor, k: int) -> Any:
        """Residuals, their derivatives by the jets, (N, k, components, outputs), and by `reads`."""
        eye = torch.eye(k, dtype=x.dtype, device=x.device)

        def all_of(x: Tensor, jet: Tensor, read: Tensors) -> Any:
            def one(x: Tensor, jet: Tensor) -> Any:
                pair: Any = vjp(lambda j, own: self._near({**parameters, **own}, x, j), jet, read)
                return pair[0], *vmap(pair[1])(eye)

            return vmap(one, (0, 1))(x, jet)

        return self._run("seeds", all_of, x, jet, parameters)

    def _run(self, kind: str, function: Any, x: Tensor, jet: Tensor, parameters: Tensors) -> Any:
        """Calls a function, traced once for so many points: torch.func costs more than the work."""
        read = {name: parameters[name] for name in self.reads}
        key = kind, len(x)
        if key not in self._traced:
            with torch.enable_grad():
                traced = make_fx(function)(
                    x, jet.detach(), {n: t.detach() for n, t in read.items()}
                )
            traced.graph.eliminate_dead_code()
            traced.recompile()
            self._traced[key] = traced
        return self._traced[key](x, jet, read)

    def rows(self, parameters: Tensors, x: Tensor, into: Tensor) -> Tensor:
        with torch.enable_grad():
            near = x[:, : self.orders.columns]
            out = self.network(parameters, near, self.orders, keep=True)
        r, by_jet, by_read = self.seeds(parameters, x, out.stack.detach(), into.shape[1])
        self.network.rows(out, by_jet.permute(1, 2, 0, 3), into)
        for name, found in by_read.items():
            a, b, _ = self.unknowns.parts[name]
            into[:, :, a:b] += found.reshape(*into.shape[:2], b - a)
        return r  # type: ignore[no-any-return]


@torch.no_grad()
def way_of(unknowns: Unknowns, term: Term, k: int) -> tuple[Way, str]:
    """The fastest way to the same residuals; and an activation without curvature, if it matters.

    Both ways are compared at all points, with parameters a little beside the start, where nothing
    is zero by chance: an equation of third order, or one that looks at another point, stays with
    torch.func.
    """
    plain = Way(unknowns, term)
    x = term.points
    parameters = unknowns.split(_beside(unknowns))
    try:
        network = JetNetwork(unknowns)
        field = Field(unknowns.copy, parameters)
        with torch.enable_grad():
            term.function(field, x[0])
        orders = Orders.all(field.sizes()[0])
        jet = network(parameters, x[:, : orders.columns], orders)
        reads = _Reads(parameters)
        term.function(_Near(reads, x[0], jet.stack[:, 0], orders), x[0])
        near = NearWay(network, term, orders, sorted(reads.names & set(unknowns.parts)))
        other = _random(jet.stack)
        found = [near.seeds(parameters, x, each, k)[1] for each in (jet.stack, other)]
        used = torch.stack([(each != 0).flatten(0, 1).any(-1).any(0) for each in found]).any(0)
        near = NearWay(network, term, near.orders.needed(used), near.reads)
        if _close(near.residuals(parameters, x), plain.residuals(parameters, x)):
            few = x[:: max(1, len(x) // 16)]
            rows = [x.new_empty(len(few), k, unknowns.count) for _ in range(2)]
            for way, into in zip((near, plain), rows, strict=True):
                way.rows(parameters, few, into)
            if _close(*rows):
                return near, jet.tape.flat if near.orders.pairs else ""
    except Exception:  # whatever a network or an equation does that jets cannot
        pass
    return plain, ""


def _random(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _beside(unknowns: Unknowns) -> Tensor:
    """A vector near the start in which nothing is zero."""
    start = unknowns.start()
    noise = 0.01 * _random(start)
    return torch.where(start == 0, noise, start * (1 + noise))


def _close(found: Tensor, wanted: Tensor) -> bool:
    return float((found - wanted).abs().max()) <= 1e-9 * float(wanted.abs().max())


class TermProblem(Problem):
    """sqrt(weight / points) times each residual of each term."""

    def __init__(self, unknowns: Unknowns, terms: Sequence[Term]) -> None:
        super().__init__(unknowns)
        self.terms = [_checked(i, term, unknowns.device) for i, term in enumerate(terms)]
        self.ways: list[Way] = [term.way(unknowns) for term in self.terms]
        self.sizes = [way.k or self._probe(i) for i, way in enumerate(self.ways)]
        rows = [len(t.points) * k for t, k in zip(self.terms, self.sizes, strict=True)]
        self.count = sum(rows)
        # The mean factor is 1 for one term of weight 1, as for rows of data.
        self.factors = [(t.weight * self.count / len(t.points)) ** 0.5 for t in self.terms]

    def hasten(self) -> None:
        """Takes the fastest way to the residuals of each term; torch.func cannot go through it."""
        for i, (term, k) in enumerate(zip(self.terms, self.sizes, strict=True)):
            if self.ways[i].k:
                continue
            self.ways[i], flat = way_of(self.unknowns, term, k)
            if flat:
                warnings.warn(
                    f"term {i} takes second derivatives of a network with {flat}, "
                    "whose second derivative is 0: use SiLU or Tanh",
                    UserWarning,
                    stacklevel=4,
                )

    def _pieces(self, i: int) -> Iterator[Tensor]:
        rows = min(POINTS, self.rows_at_once(self.sizes[i]))
        if self.ways[i].k:
            rows = len(self.terms[i].points)
        yield from self.terms[i].points.split(rows)

    def residuals(self, u: Tensor) -> Tensor:
        parameters = self.unknowns.split(u * self.units)
        parts = []
        for i, way in enumerate(self.ways):
            for x in self._pieces(i):
                parts.append(way.residuals(parameters, x).flatten() * self.factors[i])
        return torch.cat(parts)

    @torch.no_grad()
    def blocks(self, u: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        parameters = self.unknowns.split(u * self.units)
        for i, (way, size) in enumerate(zip(self.ways, self.sizes, strict=True)):
            for x in self._pieces(i):
                into = self._room(len(x) * size)
                r = way.rows(parameters, x, into.view(len(x), size, -1)).flatten()
                into.mul_(self.factors[i])
                yield r * self.factors[i], self._in_units(into)

    @torch.no_grad()
    def renew(self, u: Tensor, accepted: int) -> bool:
        if accepted % REDRAW or all(term.draw is None for term in self.terms):
            return False
        parameters = self.unknowns.split(u * self.units)
        for i, (term, way) in enumerate(zip(self.terms, self.ways, strict=True)):
            if term.draw is None:
                continue
            new, count = _checked(i, replace(term, points=term.draw()), u.device), len(term.points)
            if new.points.shape[1:] != term.points.shape[1:] or len(new.points) < count:
                raise InputError(
                    f"draw of term {i} must give at least {count} points of "
                    f"{term.points.shape[1]} columns, got {tuple(new.points.shape)}: draw more"
                )
            squares = torch.cat(
                [way.residuals(parameters, x).square().sum(1) for x in new.points.split(POINTS)]
            )
            odds = squares / squares.mean().clamp_min(1e-300) + 1
            kept = torch.multinomial(odds.nan_to_num(1, 1, 1), count)
            self.terms[i] = replace(term, points=new.points[kept])
        return True

    def idle(self) -> list[str]:
        """The parameters that no residual depends on."""
        with torch.enable_grad():
            u = _beside(self.unknowns).requires_grad_()
            r = self.residuals(u)
            (found,) = torch.autograd.grad(r, u, _random(r), allow_unused=True)
        parts = self.unknowns.parts.items()
        return [n for n, (a, b, _) in parts if found is None or not bool(found[a:b].any())]

    def means(self, u: Tensor) -> list[float]:
        """The squared residual of each term at a point, in the mean, without its weight."""
        with torch.no_grad():
            squares = self.residuals(u).square()
        rows = [len(t.points) * k for t, k in zip(self.terms, self.sizes, strict=True)]
        parts = zip(squares.split(rows), self.terms, strict=True)
        return [float(part.sum()) / (term.weight * self.count) for part, term in parts]

    def _probe(self, i: int) -> int:
        """Calls a term at its first point; the number of its residuals there."""
        term, x = self.terms[i], self.terms[i].points[0]
        module, parameters = self.unknowns.copy, self.unknowns.split(self.unknowns.start())
        field = Field(module, parameters)
        try:
            value = torch.as_tensor(term.function(field, x))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the function of term {i} must work for one point x {tuple(x.shape)}, got "
                f"{in_one_line(error)}: index x as x[0], x[1], …, not as a table of points"
            ) from error
        if value.dim() > 1 or (
            value.numel() > max(field.sizes()[1], len(x)) and value.numel() == len(term.points)
        ):
            raise InputError(
                f"a term's residual must be a number or a short vector for one point, got shape "
                f"{tuple(value.shape)} from term {i}, which has {len(term.points)} points: compute "
                "what belongs to a point from x, instead of taking in a table (N, 1) or (N,)"
            )
        return value.numel()


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
    points = points.detach().to(device, torch.float64)
    return replace(term, points=points, weight=weight)
