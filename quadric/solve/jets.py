"""Value and derivatives of a network at many points at once, and their own derivatives by weights.

A jet is a stack (components, N, …): the value at each point, then the slopes, then the second
derivatives that an equation asks for. The network's own forward runs on jets, as torch lets any
class that has `__torch_function__`. Each linear map notes what comes in; one backward pass gives
what comes back, and a point's derivative by a weight is the product of the two, summed over the
components. What has no rule here raises: `torch.func` then does the work (`terms.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from quadric.layers import NeuronLinear
from quadric.layers.gates import Bilinear
from quadric.layers.products import QRes
from quadric.solve.unknowns import Tensors, Unknowns

_LINEAR = set(
    "getitem reshape view flatten unflatten squeeze unsqueeze cat concat concatenate stack hstack "
    "chunk split unbind sum mean neg transpose movedim permute contiguous clone expand".split()
)
_ELEMENTWISE = set(
    "tanh sin cos exp sigmoid silu gelu mish softplus elu selu celu relu relu6 leaky_relu square "
    "pow sqrt log log1p erf atan sinh cosh reciprocal logsigmoid softsign tanhshrink abs".split()
)

_FLAT = {"relu", "relu6", "leaky_relu", "abs"}


@dataclass(frozen=True)
class Orders:
    """Which derivatives a jet holds: by `slopes`, by `pairs`, of so many columns."""

    slopes: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    columns: int = 0

    @staticmethod
    def all(columns: int) -> Orders:
        """All up to the second."""
        every = range(columns)
        return Orders(tuple(every), tuple((i, j) for i in every for j in every if i <= j), columns)

    @property
    def count(self) -> int:
        """The components of a jet."""
        return 1 + len(self.slopes) + len(self.pairs)

    def places(self) -> tuple[list[int], list[int]]:
        """The components of both slopes of each pair."""
        place = {column: 1 + k for k, column in enumerate(self.slopes)}
        return [place[i] for i, _ in self.pairs], [place[j] for _, j in self.pairs]

    def needed(self, used: Tensor) -> Orders:
        """These without the components that are not used; a pair needs its slopes."""
        first = 1 + len(self.slopes)
        pairs = tuple(p for p, on in zip(self.pairs, used[first:].tolist(), strict=True) if on)
        kept = {column for pair in pairs for column in pair}
        slopes = zip(self.slopes, used[1:first].tolist(), strict=True)
        return Orders(tuple(c for c, on in slopes if on or c in kept), pairs, self.columns)

    def taylor(self, jet: Tensor, away: Tensor) -> Tensor:
        """The polynomial with these derivatives, `away` (…, columns) from its point.

        `jet` is (components, …, outputs).
        """
        parts = [torch.ones_like(away[..., :1])]
        if self.slopes:
            parts.append(away[..., self.slopes])
        if self.pairs:
            i, j = zip(*self.pairs, strict=True)
            parts.append(away[..., i] * away[..., j] * self._halves(away))
        basis = torch.cat(parts, -1)
        return (basis.movedim(-1, 0).unsqueeze(-1) * jet).sum(0)

    def _halves(self, like: Tensor) -> Tensor:
        return like.new_tensor([0.5 if i == j else 1.0 for i, j in self.pairs])


@dataclass
class _Tape:
    """What a pass notes: the maps' inputs and outputs, and parameters used on their own."""

    orders: Orders
    names: dict[int, str]
    keep: bool
    maps: list[tuple[Any, Tensor, Tensor]] = field(default_factory=list)
    alone: list[tuple[str, Tensor]] = field(default_factory=list)
    flat: str = ""

    def note(self, what: Any, x: Tensor, out: Tensor) -> None:
        if self.keep:
            self.maps.append((what, x, out if out.requires_grad else out.requires_grad_()))

    def constant(self, value: Any, like: Tensor) -> Any:
        """A number or tensor; a trained parameter as one of its own for each point."""
        name = self.names.get(id(value))
        if name is None or not self.keep:
            return value
        if value.dim() > like.dim() - 2:
            raise NoRuleError("a parameter of more numbers than a point has")
        middle = [1] * (like.dim() - 2 - value.dim())
        shape = (like.shape[1], *middle, *value.shape)
        leaf = value.detach().expand(shape).clone().requires_grad_()
        self.alone.append((name, leaf))
        return leaf


class NoRuleError(Exception):
    """A network does something of which jets know nothing."""


class Jet:
    """A stack of values and derivatives that takes the place of a tensor (N, …)."""

    def __init__(self, stack: Tensor, tape: _Tape) -> None:
        self.stack, self.tape = stack, tape

    @property
    def shape(self) -> torch.Size:
        """That of the values."""
        return self.stack.shape[1:]

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device"):
            return getattr(self.stack, name)
        if name in ("dim", "size", "ndim", "numel"):
            return getattr(self.stack[0], name)
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(name)
        return lambda *args, **options: _apply(name, getattr(Tensor, name), (self, *args), options)

    @classmethod
    def __torch_function__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's door to classes that are no tensors."""
        return _apply(func.__name__.strip("_"), func, args, dict(kwargs or {}))

    def __getitem__(self, index: Any) -> Any:
        return _apply("getitem", Tensor.__getitem__, (self, index), {})

    def __pow__(self, power: float) -> Any:
        return _apply("pow", torch.pow, (self, power), {})

    def __neg__(self) -> Any:
        return self * -1.0

    def __add__(self, other: Any) -> Any:
        return _add(self, other)

    def __mul__(self, other: Any) -> Any:
        return _multiply(self, other)

    def __sub__(self, other: Any) -> Any:
        return _add(self, other * -1.0)

    def __rsub__(self, other: Any) -> Any:
        return _add(self * -1.0, other)

    def __truediv__(self, other: Any) -> Any:
        return _multiply(self, other**-1)

    def __rtruediv__(self, other: Any) -> Any:
        return _multiply(self**-1, other)

    __radd__, __rmul__ = __add__, __mul__


def _apply(name: str, func: Any, args: Any, options: dict[str, Any]) -> Any:
    """The rule of one torch function."""
    if name == "linear":
        return _linear(*args, **options)
    if name in ("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "true_divide"):
        if options:
            raise NoRuleError(f"{name} with options")
        a, b = args
        if name == "rsub" or name == "sub":
            a, b = (b, a) if name == "rsub" else (a, b)
            return a - b if isinstance(a, Jet) else b.__rsub__(a)
        if "div" in name:
            return a / b if isinstance(a, Jet) else b.__rtruediv__(a)
        rule = _multiply if "mul" in name else _add
        return rule(a, b) if isinstance(a, Jet) else rule(b, a)
    if name in _ELEMENTWISE:
        return _elementwise(name, func, args[0], args[1:], options)
    if name in _LINEAR:
        return _by_component(func, args, options)
    raise NoRuleError(name)


def _by_component(func: Any, args: Any, options: dict[str, Any]) -> Any:
    """What is linear and keeps each point to itself."""
    first, *rest = args
    many = isinstance(first, (list, tuple))
    jets = list(first) if many else [first]
    tape = next(jet.tape for jet in jets if isinstance(jet, Jet))
    stacks = []
    for jet in jets:
        if isinstance(jet, Jet):
            stacks.append(jet.stack)
        elif id(jet) in tape.names:
            raise NoRuleError("a parameter beside others")
        else:
            stacks.append(torch.cat([jet[None], jet.new_zeros(tape.orders.count - 1, *jet.shape)]))
    out = torch.vmap(lambda *parts: func(parts if many else parts[0], *rest, **options))(*stacks)
    return tuple(Jet(o, tape) for o in out) if isinstance(out, tuple) else Jet(out, tape)


def _linear(x: Jet, weight: Tensor, bias: Tensor | None = None) -> Jet:
    tape = x.tape
    out = F.linear(x.stack, weight)
    if bias is not None:
        out[0] += bias
    names = [None if t is None else tape.names.get(id(t)) for t in (weight, bias)]
    if x.stack.dim() != 3 and any(names):
        raise NoRuleError("linear maps of more than a vector for each point")
    tape.note(tuple(names), x.stack, out)
    return Jet(out, tape)


def _add(x: Jet, other: Any) -> Jet:
    if isinstance(other, Jet):
        return Jet(x.stack + other.stack, x.tape)
    other = x.tape.constant(other, x.stack)
    value = x.stack[0] + other
    rest = x.stack[1:].expand(-1, *value.shape)
    return Jet(torch.cat([value[None], rest]), x.tape)


def _multiply(x: Jet, other: Any) -> Jet:
    if not isinstance(other, Jet):
        return Jet(x.stack * x.tape.constant(other, x.stack), x.tape)
    a, b, orders = x.stack, other.stack, x.tape.orders
    parts = [a[:1] * b[:1], a[:1] * b[1:] + a[1:] * b[:1]]
    if orders.pairs:
        i, j = orders.places()
        first = 1 + len(orders.slopes)
        cross = a[i] * b[j] + a[j] * b[i]
        parts[1:] = [parts[1][: first - 1], parts[1][first - 1 :] + cross]
    return Jet(torch.cat(parts), x.tape)


def _tanh(v: Tensor) -> list[Tensor]:
    t = v.tanh()
    slope = 1 - t * t
    return [t, slope, -2 * t * slope]


def _sin(v: Tensor) -> list[Tensor]:
    s = v.sin()
    return [s, v.cos(), -s]


_WRITTEN: dict[str, Callable[[Tensor], list[Tensor]]] = {"tanh": _tanh, "sin": _sin}


def _derivatives(func: Callable[[Tensor], Tensor], v: Tensor, order: int) -> list[Tensor]:
    """A function of each number, its slope and its second derivative."""
    with torch.enable_grad():
        leaf = v if v.requires_grad else v.detach().requires_grad_()
        out = [func(leaf)]
        for _ in range(order):
            slope = (
                torch.autograd.grad(
                    out[-1], leaf, torch.ones_like(leaf), create_graph=True, allow_unused=True
                )[0]
                if out[-1].requires_grad
                else None
            )
            out.append(torch.zeros_like(leaf) if slope is None else slope)
    return out if v.requires_grad else [each.detach() for each in out]


def _elementwise(name: str, func: Any, x: Jet, rest: Any, options: dict[str, Any]) -> Jet:
    stack, orders = x.stack, x.tape.orders
    if any(isinstance(each, (Jet, Tensor)) for each in rest):
        raise NoRuleError(f"{name} with tensors")
    options.pop("inplace", None)
    order = 2 if orders.pairs else 1 if orders.slopes else 0
    if name in _WRITTEN and order:
        out = _WRITTEN[name](stack[0])
    else:
        out = _derivatives(lambda v: func(v, *rest, **options), stack[0], order)
    parts = [out[0][None]]
    first = 1 + len(orders.slopes)
    if order:
        parts.append(out[1] * stack[1:first])
    if order == 2:
        if name in _FLAT:
            x.tape.flat = name
        i, j = orders.places()
        parts.append(out[1] * stack[first:] + out[2] * (stack[i] * stack[j]))
    return Jet(torch.cat(parts), x.tape)


def _squares(layer: Any, x: Jet, places: tuple[Tensor, Tensor]) -> Jet:
    """The layers z + S z^2."""
    z = F.linear(x, layer.weight, layer.bias)  # type: ignore[arg-type]
    scale = 1.0 if layer.eigenvalue_scale is None else float(layer.eigenvalue_scale)
    squares = _multiply(z, z).stack  # type: ignore[arg-type]
    matrix = squares.new_zeros(squares.shape[-1], squares.shape[-1])
    out = F.linear(squares, matrix.index_put(places, scale * layer.eigenvalues))
    name = x.tape.names.get(id(layer.eigenvalues))
    if name is not None:
        x.tape.note((name, places, scale), squares, out)
    return _add(z, Jet(out, x.tape))  # type: ignore[arg-type]


def _gated(layer: Any, x: Jet) -> Any:
    gate = layer.rule.gate
    inner: Any = F.linear(x, layer.weight2, layer.bias2)  # type: ignore[arg-type]
    if layer.bias2 is None:
        inner = inner + gate.offset
    return gate.function(inner) * F.linear(x, layer.weight, layer.bias)  # type: ignore[arg-type]


def _qres(layer: Any, x: Jet) -> Any:
    a: Any = F.linear(x, layer.weight)  # type: ignore[arg-type]
    b = F.linear(x, layer.weight2)  # type: ignore[arg-type]
    out = a * b + a
    return out if layer.bias is None else out + layer.bias


def _rule(layer: nn.Module) -> Callable[[Jet], Any] | None:
    """The forward of our layers on jets."""
    if not isinstance(layer, NeuronLinear):
        return None
    if layer.blocks is not None and not layer.normalize:
        places = layer.blocks.places(layer.weight.device)
        return lambda x: _squares(layer, x, places)
    if isinstance(layer.rule, Bilinear):
        return partial(_gated, layer)
    return partial(_qres, layer) if type(layer.rule) is QRes else None


class JetNetwork:
    """A network that runs on jets."""

    def __init__(self, unknowns: Unknowns) -> None:
        self.unknowns = unknowns
        self.module = copy.deepcopy(unknowns.copy)
        for layer in self.module.modules():
            rule = _rule(layer)
            if rule is not None:
                layer.forward = rule  # type: ignore[method-assign]

    def __call__(self, parameters: Tensors, x: Tensor, orders: Orders, keep: bool = False) -> Jet:
        """The jet (components, N, outputs); with `keep` it can give rows."""
        names = {id(parameters[name]): name for name in self.unknowns.parts}
        stack = x.new_zeros(orders.count, *x.shape)
        stack[0] = x
        for k, column in enumerate(orders.slopes, 1):
            stack[k, :, column] = 1
        out = functional_call(self.module, parameters, (Jet(stack, _Tape(orders, names, keep)),))
        if not isinstance(out, Jet) or out.shape[:1] != x.shape[:1]:
            raise NoRuleError("an output that is not one row for each point")
        return Jet(out.stack.flatten(2) if out.stack.dim() > 2 else out.stack[..., None], out.tape)

    def rows(self, out: Jet, seeds: Tensor, into: Tensor) -> None:
        """Fills J (N, k, unknowns) with the derivatives of seeds times jet.

        `seeds` is (k, components, N, outputs).
        """
        tape, parts, count = out.tape, self.unknowns.parts, len(seeds)
        ends = [end for _, _, end in tape.maps] + [leaf for _, leaf in tape.alone]
        for k in range(count):
            found = torch.autograd.grad(
                out.stack, ends, seeds[k], retain_graph=k + 1 < count, allow_unused=True
            )
            seen: set[str] = set()

            def put(name: str | None, value: Tensor, k: int = k, seen: set[str] = seen) -> None:
                if name is not None:
                    a, b, _ = parts[name]
                    place, value = into[:, k, a:b], value.reshape(len(into), b - a)
                    (place.add_ if name in seen else place.copy_)(value)
                    seen.add(name)

            for (what, x, _), g in zip(tape.maps, found[: len(tape.maps)], strict=True):
                if g is not None and len(what) == 3:
                    name, (outputs, features), scale = what
                    put(name, scale * (g[..., outputs] * x[..., features]).sum(0))
                elif g is not None:
                    weight, bias = what
                    if weight:
                        put(weight, torch.einsum("cno,cni->noi", g, x.detach()))
                    put(bias, g[0])
            for (name, leaf), g in zip(tape.alone, found[len(tape.maps) :], strict=True):
                if g is not None:
                    put(name, g.reshape(len(leaf), -1))
            for name, (a, b, _) in parts.items():
                if name not in seen:
                    into[:, k, a:b] = 0
