"""Problems of DeepXDE and PINA as terms: their equations, conditions and constants, our solver.

Their functions take tables: all points and what the network gives there, and differentiate the one
by the other. Here the network's place is taken by its Taylor polynomial at each point, so they run
as they are, and the network runs on jets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, in_one_line
from quadric.solve.jets import JetNetwork, Orders
from quadric.solve.terms import NearWay, Term, Way
from quadric.solve.unknowns import Tensors, Unknowns
from quadric.support.extras import load_extra


@dataclass(frozen=True)
class TableTerm(Term):
    """A term whose function takes all points (N, d) and the outputs there, and gives (N, k).

    `constants` are the tensors that it reads, by their name in the network; `wrap` makes a table
    of points what the function wants.
    """

    name: str = "the equation"
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    wrap: Callable[[Tensor], Tensor] = lambda x: x

    def way(self, unknowns: Unknowns) -> Way:
        return _TableWay(unknowns, self)


class _TableWay(NearWay):
    """Residuals of a function of tables, by torch.autograd."""

    def __init__(self, unknowns: Unknowns, term: TableTerm) -> None:
        super().__init__(JetNetwork(unknowns), term, Orders.all(term.points.shape[1]))
        self.table = term
        parameters = unknowns.split(unknowns.start())
        try:
            jet = self.network(parameters, term.points, self.orders).stack
        except Exception as error:
            raise InputError(
                "the network must be made of linear maps, activations and arithmetic, got "
                f"{in_one_line(error)} in {type(unknowns.model).__name__}: write the terms by hand"
            ) from error
        other = torch.randn_like(jet)
        r, by_jet, _ = self._seeds(parameters, jet)
        self.k = r.shape[1]
        used = by_jet.ne(0) | self._seeds(parameters, other)[1].ne(0)
        # What belongs to one point must not change with the others.
        half = torch.arange(len(r), device=r.device) < len(r) // 2
        mixed = torch.where(half[:, None], other, jet)
        away = (self._seeds(parameters, mixed)[0] - r)[~half]
        if bool(away.abs().gt(1e-9 * r.abs().max()).any()):
            raise InputError(
                f"each residual must belong to one point, got {term.name}, which joins several: "
                "leave it out there and add a Term such as lambda u, x: u(x) - u(x + period)"
            )
        self.orders = self.orders.needed(used.any(-1).any(2).any(0))

    @contextmanager
    def _constants(self, parameters: Tensors) -> Iterator[None]:
        """The constants as they are in this step, for as long as the function needs them."""
        kept = {name: leaf.data for name, leaf in self.table.constants.items()}
        try:
            for name, leaf in self.table.constants.items():
                leaf.data = parameters[name].detach().reshape(leaf.shape)
            yield
        finally:
            for name, leaf in self.table.constants.items():
                leaf.data = kept[name]

    def _values(self, jet: Tensor) -> Tensor:
        points, term = self.table.points, self.table
        x = term.wrap(points.clone()).requires_grad_()
        y = self.orders.taylor(jet, x.as_subclass(Tensor) - points)
        found: Any = term.function(x, y)
        parts = list(found) if isinstance(found, (list, tuple)) else [found]
        for part in parts:
            if part.dim() != 2 or len(part) != len(points):
                raise InputError(
                    f"residuals must be a table of {len(points)} rows, one for each point, got "
                    f"shape {tuple(part.shape)} from {term.name}: (N, 1) with (N,) makes (N, N), "
                    "so index with x[:, 0:1]"
                )
            if part.shape[1] > max(y.shape[1], points.shape[1]):
                raise InputError(
                    f"an equation must give (N, 1), got shape {tuple(part.shape)} from "
                    f"{term.name}: (N, 1) with (N,) makes (N, N), so index with x[:, 0:1]"
                )
        return torch.cat([part.as_subclass(Tensor) for part in parts], 1)

    def _seeds(self, parameters: Tensors, jet: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """Residuals (N, k), their derivatives by the jets (k, …) and by the constants."""
        leaves = self.table.constants
        with self._constants(parameters), torch.enable_grad():
            jet = jet.detach().requires_grad_()
            r = self._values(jet)
            ones = torch.ones(len(r), dtype=r.dtype, device=r.device, requires_grad=True)
            by_jet, by_leaf = [], {name: r.new_zeros(*r.shape, 1) for name in leaves}
            for k in range(r.shape[1]):
                total = (r[:, k] * ones).sum()
                ends = [jet, *leaves.values()]
                found = torch.autograd.grad(total, ends, create_graph=True, allow_unused=True)
                by_jet.append(torch.zeros_like(jet) if found[0] is None else found[0].detach())
                # Linear in the ones: its derivative by them is that of each row.
                for name, g in zip(leaves, found[1:], strict=True):
                    if g is not None:
                        (row,) = torch.autograd.grad(g.sum(), ones, retain_graph=True)
                        by_leaf[name][:, k, 0] = row
        return r.detach(), torch.stack(by_jet), by_leaf

    def residuals(self, parameters: Tensors, x: Tensor) -> Tensor:
        jet = self.network(parameters, x, self.orders).stack
        if not jet.requires_grad:
            with self._constants(parameters), torch.enable_grad():
                return self._values(jet).detach()
        r, by_jet, by_leaf = self._seeds(parameters, jet)
        r = r + (by_jet * (jet - jet.detach())).sum((1, 3)).T
        for name, found in by_leaf.items():
            own = parameters[name].reshape(-1)
            r = r + found @ (own - own.detach())
        return r

    def rows(self, parameters: Tensors, x: Tensor, into: Tensor) -> Tensor:
        with torch.enable_grad():
            out = self.network(parameters, x, self.orders, keep=True)
        r, by_jet, by_leaf = self._seeds(parameters, out.stack)
        self.network.rows(out, by_jet, into)
        for name, found in by_leaf.items():
            a, b, _ = self.unknowns.parts[name]
            into[:, :, a:b] += found
        return r


class _WithConstants(nn.Module):
    """A network and the unknown constants of its equations, to be found together."""

    def __init__(self, network: nn.Module, constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = network
        shared = {name: nn.Parameter(value.detach()) for name, value in constants.items()}
        self.constants = nn.ParameterDict(shared)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out


def _joined(
    network: nn.Module, constants: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """What is fitted, and the constants by their names in it."""
    if not constants:
        return network, {}
    for name, value in constants.items():
        if value.numel() != 1:
            raise InputError(f"an unknown constant must be one number, got {name!r}: split it")
    named = {f"constants.{name}": value for name, value in constants.items()}
    return _WithConstants(network, constants), named


def from_deepxde(model: Any) -> tuple[nn.Module, list[Term]]:
    """The network and the terms of a `deepxde.Model` (PyTorch backend), for `least_squares`.

    Equations, conditions, loss weights and unknown constants are those of the compiled model; the
    fit changes its network and constants in place. Call `dde.config.set_default_float("float64")`
    before building it: with float32, points and data are rounded.

    Args:
        model: a compiled `deepxde.Model` of `dde.data.PDE` or `TimePDE`.

    Returns:
        What `least_squares` takes: a module and its terms.

    Raises:
        InputError: for auxiliary variables, and later for conditions that join several points.

    Examples:
        >>> import quadric
        >>> def solve(model):
        ...     network, terms = quadric.solve.from_deepxde(model)
        ...     return quadric.solve.least_squares(network, terms=terms, regularization=None)
    """
    gradients = load_extra("deepxde", "from_deepxde", "equations").gradients
    data, unknown = model.data, model.external_trainable_variables
    if data.auxiliary_var_fn is not None:
        raise InputError(
            "auxiliary variables have no place here, got some: write the terms by hand"
        )
    network, constants = _joined(model.net, {str(i): value for i, value in enumerate(unknown)})
    ends = list(accumulate(data.num_bcs, initial=0))
    weights = getattr(model, "loss_weights", None) or []
    equations = len(weights) - len(data.bcs)

    def term(name: str, points: Any, function: Any, weights: Sequence[float]) -> Term:
        def weighted(x: Tensor, y: Tensor) -> Any:
            found = function(x, y)
            gradients.clear()
            parts = list(found) if isinstance(found, (list, tuple)) else [found]
            factors = [weight**0.5 for weight in weights] or [1.0] * len(parts)
            return [part * factor for part, factor in zip(parts, factors, strict=True)]

        return TableTerm(weighted, torch.as_tensor(points), 1.0, None, name, constants)

    terms = []
    if data.pde is not None:
        points = data.train_x[ends[-1] :]
        terms = [term("the equation", points, data.pde, weights[:equations] if weights else [])]
    for i, bc in enumerate(data.bcs):
        part = data.train_x[ends[i] : ends[i + 1]]

        def error(x: Tensor, y: Tensor, bc: Any = bc, part: Any = part) -> Any:
            return bc.error(part, x, y, 0, len(part))

        own = [weights[equations + i]] if weights else []
        terms.append(term(f"condition {i} ({type(bc).__name__})", part, error, own))
    return network, terms


def from_pina(problem: Any, network: nn.Module) -> tuple[nn.Module, list[Term]]:
    """The network and the terms of a PINA problem, for `least_squares`.

    The fit changes the network and the problem's unknown parameters in place.

    Args:
        problem: a problem whose domains are discretised.
        network: its model; columns are those of the points.

    Returns:
        What `least_squares` takes: a module and its terms.

    Raises:
        InputError: for a domain without points.

    Examples:
        >>> import quadric
        >>> def solve(problem, network):
        ...     network, terms = quadric.solve.from_pina(problem, network)
        ...     return quadric.solve.least_squares(network, terms=terms, regularization=None)
    """
    labeled = load_extra("pina", "from_pina", "equations").LabelTensor
    unknown = getattr(problem, "unknown_parameters", {})
    module, constants = _joined(network, unknown)
    terms: list[Term] = []
    for name, condition in problem.conditions.items():
        domain = getattr(condition, "domain", None)
        if domain is not None and domain not in problem.discretised_domains:
            raise InputError(
                f"each domain must have points, got none in {domain!r}: call "
                "problem.discretise_domain"
            )
        points = condition.input if domain is None else problem.discretised_domains[domain]

        def residual(x: Any, y: Tensor, condition: Any = condition) -> Any:
            if hasattr(condition, "target"):
                return y - condition.target.as_subclass(Tensor)
            outputs = labeled(y, problem.output_variables)
            return condition.equation.residual(x, outputs, unknown)

        def wrap(x: Tensor, labels: Any = points.labels) -> Any:
            return labeled(x, labels)

        plain = points.detach().as_subclass(Tensor)
        terms.append(TableTerm(residual, plain, 1.0, None, f"condition {name}", constants, wrap))
    return module, terms
