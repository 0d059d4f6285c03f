"""Outputs of a network and their derivative by every parameter, row by row.

A network is a list of steps. Linear maps, z + S z^2, products of two maps and elementwise
activations have derivatives written by hand: each row's gradient of a weight is the outer product
of what comes in and what comes back. Any other module is one step that `torch.func` differentiates,
so that a network of which nothing is known is a list of one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from quadric.layers import NeuronLinear
from quadric.layers.gates import Bilinear
from quadric.models.activations import ACTIVATIONS
from quadric.ops.blocks import Blocks
from quadric.solve.unknowns import Tensors, Unknowns

Rows = dict[str, Tensor]
"""Where the derivatives go: parameter name to a view (N, outputs, *shape) of J."""

_ELEMENTWISE = {type(make()) for make in ACTIVATIONS.values()}


class NetworkStep(Protocol):
    """A part of a network."""

    def forward(self, parameters: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        """The output, and what `backward` needs."""

    def backward(self, parameters: Tensors, kept: Any, g: Tensor, rows: Rows, wanted: bool) -> Any:
        """Fills `rows` from g (N, outputs, *shape of the output); returns g at the input."""


class ActivationStep:
    """An elementwise function."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, parameters: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            out = self.module(leaf)
        return out.detach(), (out, leaf)

    def backward(self, parameters: Tensors, kept: Any, g: Tensor, rows: Rows, wanted: bool) -> Any:
        out, leaf = kept
        (slope,) = torch.autograd.grad(out, leaf, torch.ones_like(out))
        return g * slope.unsqueeze(1)


class LinearStep:
    """z = Wx + b, or with blocks z + S z^2, where S holds the eigenvalues times their scale."""

    def __init__(self, prefix: str, blocks: Blocks | None, scale: float = 1.0) -> None:
        self.weight, self.bias = f"{prefix}weight", f"{prefix}bias"
        self.eigenvalues, self.blocks = f"{prefix}eigenvalues", blocks
        self.places = None if blocks is None else blocks.places()
        self.scale = scale

    def forward(self, parameters: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        z = F.linear(x, parameters[self.weight], parameters.get(self.bias))
        if self.blocks is None:
            return z, (x, None, None, None)
        squares = z * z
        matrix = self.blocks.matrix(self.scale * parameters[self.eigenvalues])
        return torch.addmm(z, squares, matrix.T), (x, z, squares, matrix)

    def backward(self, parameters: Tensors, kept: Any, g: Tensor, rows: Rows, wanted: bool) -> Any:
        x, z, squares, matrix = kept
        if self.places is not None:
            if self.eigenvalues in rows:
                outputs, features = (places.to(g.device) for places in self.places)
                seen = self.scale * squares[:, None, features]
                torch.mul(g[..., outputs], seen, out=rows[self.eigenvalues])
            g = g + 2 * z.unsqueeze(1) * (g @ matrix)
        return _map_back(parameters, self.weight, self.bias, x, g, rows, wanted)


class Product:
    """(w1'x + b1) act(w2'x + b2): bilinear and the gated units."""

    def __init__(self, prefix: str, rule: Bilinear) -> None:
        self.names = [(f"{prefix}weight{i}", f"{prefix}bias{i}") for i in ("", "2")]
        self.gate = rule.gate

    def forward(self, parameters: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        (weight, bias), (weight2, bias2) = self.names
        factor = F.linear(x, parameters[weight], parameters.get(bias))
        inner = F.linear(x, parameters[weight2], parameters.get(bias2))
        if bias2 not in parameters:
            inner = inner + self.gate.offset
        with torch.enable_grad():
            leaf = inner.detach().requires_grad_()
            gate = self.gate.function(leaf)
        return factor * gate.detach(), (x, factor, gate, leaf)

    def backward(self, parameters: Tensors, kept: Any, g: Tensor, rows: Rows, wanted: bool) -> Any:
        x, factor, gate, leaf = kept
        (slope,) = torch.autograd.grad(gate, leaf, torch.ones_like(leaf), retain_graph=True)
        sides = (g * gate.detach().unsqueeze(1), g * (factor * slope).unsqueeze(1))
        backs = [
            _map_back(parameters, weight, bias, x, side, rows, wanted)
            for (weight, bias), side in zip(self.names, sides, strict=True)
        ]
        return backs[0] + backs[1] if wanted else None


class AnyModule:
    """A module of which nothing is known but that it treats each row on its own."""

    def __init__(self, prefix: str, module: nn.Module) -> None:
        self.module = module
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.names = {name: prefix + name for name in own}

    def _call(self, own: Tensors, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module, own, (x.unsqueeze(0),))
        return out.squeeze(0)

    def forward(self, parameters: Tensors, x: Tensor) -> tuple[Tensor, Any]:
        own = {name: parameters[full] for name, full in self.names.items()}
        out = functional_call(self.module, own, (x,))
        return out.detach(), x

    def backward(self, parameters: Tensors, kept: Any, g: Tensor, rows: Rows, wanted: bool) -> Any:
        own = {name: parameters[full] for name, full in self.names.items()}
        trained = {name: own.pop(name) for name, full in self.names.items() if full in rows}

        def by_parameters(x: Tensor, seeds: Tensor) -> Any:
            back = vjp(lambda p: self._call({**own, **p}, x), trained)[1]
            return vmap(back)(seeds)[0]

        def by_both(x: Tensor, seeds: Tensor) -> Any:
            back = vjp(lambda p, x: self._call({**own, **p}, x), trained, x)[1]
            return vmap(back)(seeds)

        if wanted:
            found, back = vmap(by_both)(kept, g)
        else:
            found, back = vmap(by_parameters)(kept, g), None
        for name, gradient in found.items():
            rows[self.names[name]].copy_(gradient)
        return back


def _map_back(
    parameters: Tensors, weight: str, bias: str, x: Tensor, g: Tensor, rows: Rows, wanted: bool
) -> Any:
    """The derivatives of z = Wx + b, given those by z."""
    if weight in rows:
        torch.mul(g.unsqueeze(-1), x[:, None, None, :], out=rows[weight])
    if bias in rows:
        rows[bias].copy_(g)
    return g @ parameters[weight] if wanted else None


def _hooked(module: nn.Module) -> bool:
    """Whether something is done besides the module's own forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in hooks)


def _flat(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested Sequentials, in the order of their calls."""
    if type(module) is nn.Sequential and not _hooked(module):
        for name, child in module.named_children():
            yield from _flat(f"{prefix}{name}.", child)
    else:
        yield prefix, module


def _step(prefix: str, module: nn.Module) -> NetworkStep | None:
    """The step of one module; None if it does nothing."""
    if _hooked(module):
        return AnyModule(prefix, module)
    idle = isinstance(module, nn.Dropout) and (not module.training or module.p == 0)
    if type(module) is nn.Identity or idle:
        return None
    if type(module) in _ELEMENTWISE:
        return ActivationStep(module)
    if type(module) is nn.Linear:
        return LinearStep(prefix, None)
    if isinstance(module, NeuronLinear):
        if module.blocks is not None and not module.normalize:
            scale = module.eigenvalue_scale
            return LinearStep(prefix, module.blocks, 1.0 if scale is None else float(scale))
        if isinstance(module.rule, Bilinear):
            return Product(prefix, module.rule)
    return AnyModule(prefix, module)


def steps_of(unknowns: Unknowns, dim: int = 2) -> list[NetworkStep]:
    """The network as steps; `dim` is the number of dimensions of its inputs."""
    model = unknowns.copy
    modules = list(_flat("", model))
    # A parameter or module that is used twice has several places in the chain.
    together = sum(1 for _, module in modules for _ in module.parameters())
    if dim != 2 or together != sum(1 for _ in model.parameters()):
        return [AnyModule("", model)]
    return [step for step in (_step(*each) for each in modules) if step is not None]


def is_written(steps: Sequence[NetworkStep]) -> bool:
    """Whether all derivatives are written by hand."""
    return not any(isinstance(step, AnyModule) for step in steps)


@torch.no_grad()
def outputs_of(steps: Sequence[NetworkStep], parameters: Tensors, x: Tensor) -> Tensor:
    """The outputs (N, outputs)."""
    out = x
    for step in steps:
        out = step.forward(parameters, out)[0]
    return out.reshape(len(x), -1)


@torch.no_grad()
def jacobian(
    steps: Sequence[NetworkStep], unknowns: Unknowns, vector: Tensor, x: Tensor, into: Tensor
) -> Tensor:
    """Fills J (N, outputs, unknowns) and returns the outputs (N, outputs)."""
    parameters = unknowns.split(vector)
    kept, out = [], x
    for step in steps:
        out, own = step.forward(parameters, out)
        kept.append(own)
    shape, outputs = out.shape, out.reshape(len(x), -1)
    count = outputs.shape[1]
    rows = {
        name: into[:, :, a:b].view(len(x), count, *size)
        for name, (a, b, size) in unknowns.parts.items()
    }
    eye = torch.eye(count, dtype=out.dtype, device=out.device)
    g: Any = eye.reshape(1, count, *shape[1:]).expand(len(x), count, *shape[1:])
    for i in reversed(range(len(steps))):
        g = steps[i].backward(parameters, kept[i], g, rows, i > 0)
    return outputs
