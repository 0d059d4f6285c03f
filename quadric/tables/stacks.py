"""Several networks of one shape as one: every parameter has a first dimension over the networks.

A single network trains as a stack of one, so a batched fit computes what its single fits compute.
Linear, eigen, shared and square layers are batched matrix products with gradients written by hand,
because at these sizes automatic differentiation takes as long as the mathematics. All other neurons
run their own layer through `torch.func.vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from quadric.layers import QuadraticLayer
from quadric.models.activations import Sin
from quadric.ops.blocks import Blocks

Tensors = dict[str, Tensor]
OutputGradient = Callable[[Tensor], Tensor]
Slope = Callable[[], Tensor]


def make_stack(network: nn.Sequential) -> ProductStack | AnyStack:
    """Makes what runs networks of this shape; parameters are given by name, each (B, *shape)."""
    steps = [_step(name, layer) for name, layer in network.named_children()]
    known = [step for step in steps if step is not None]
    return ProductStack(known) if len(known) == len(steps) else AnyStack(network)


def stack_parameters(networks: Sequence[nn.Module]) -> Tensors:
    """Copies the parameters of all networks, by name, one row per network."""
    states = [dict(network.named_parameters()) for network in networks]
    return {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}


class AnyStack:
    """Networks of any layers, by their own code and automatic differentiation."""

    def __init__(self, network: nn.Sequential) -> None:
        self.skeleton = copy.deepcopy(network).to("meta")

    def _one(self, parameters: Tensors, x: Tensor) -> Tensor:
        return functional_call(self.skeleton, parameters, (x,))

    def _run(self, parameters: Tensors, x: Tensor) -> Tensor:
        if len(x) == 1:  # without vmap the layers take their own faster path
            one = {name: parameter.squeeze(0) for name, parameter in parameters.items()}
            return self._one(one, x.squeeze(0)).unsqueeze(0)
        return vmap(self._one)(parameters, x)

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        """From inputs (B, N, columns) to outputs (B, N, outputs), without gradients."""
        with torch.no_grad():
            return self._run(parameters, x)

    def backward(
        self, parameters: Tensors, gradients: Tensors, x: Tensor, output_gradient: OutputGradient
    ) -> None:
        """Runs forward, asks for the gradient at the output, and fills those of the parameters."""
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
            out = self._run(leaves, x)
        found = torch.autograd.grad(out, list(leaves.values()), output_gradient(out.detach()))
        for target, gradient in zip(gradients.values(), found, strict=True):
            target.copy_(gradient)


class ProductStack:
    """Networks of layers that are batched matrix products."""

    def __init__(self, steps: Sequence[Activation | Layer]) -> None:
        self.steps = steps

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        """From inputs (B, N, columns) to outputs (B, N, outputs), without gradients."""
        for step in self.steps:
            x = step.forward(parameters, x)
        return x

    def backward(
        self, parameters: Tensors, gradients: Tensors, x: Tensor, output_gradient: OutputGradient
    ) -> None:
        """Runs forward, asks for the gradient at the output, and fills those of the parameters."""
        g = output_gradient(self.forward(parameters, x))
        for i in reversed(range(len(self.steps))):
            g = self.steps[i].backward(parameters, gradients, g, i > 0)


def _step(name: str, layer: nn.Module) -> Activation | Layer | None:
    """One layer or activation of a stack; None if it has no batched form."""
    if type(layer) in _ACTIVATIONS:
        return Activation(_ACTIVATIONS[type(layer)])
    if type(layer) is nn.Linear:
        return Layer(name, None)
    if isinstance(layer, QuadraticLayer) and not getattr(layer, "normalize", False):
        return None if layer.blocks is None else Layer(name, layer.blocks)
    return None


def _silu(x: Tensor) -> tuple[Tensor, Slope]:
    gate = x.sigmoid()
    out = x * gate
    # gate + x gate (1 - gate), as out + gate (1 - out).
    return out, lambda: torch.lerp(out, out.new_ones(()), gate)


def _relu(x: Tensor) -> tuple[Tensor, Slope]:
    return torch.relu(x), lambda: x > 0


def _tanh(x: Tensor) -> tuple[Tensor, Slope]:
    out = torch.tanh(x)
    return out, lambda: 1 - out.square()


def _sigmoid(x: Tensor) -> tuple[Tensor, Slope]:
    out = torch.sigmoid(x)
    return out, lambda: out * (1 - out)


# What gives the output, and what then gives the derivative.
_ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], tuple[Tensor, Slope]]] = {
    nn.SiLU: _silu,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    Sin: lambda x: (torch.sin(x), lambda: torch.cos(x)),
    nn.Identity: lambda x: (x, lambda: torch.ones_like(x)),
}


class Activation:
    """An activation function."""

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, Slope]]) -> None:
        self.function = function

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        """From the input to the output; keeps what `backward` uses."""
        out, self.slope = self.function(x)
        return out

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        """From the gradient at the output to that at the input."""
        return self.slope() * g


class Layer:
    """z = xW' + b, or with blocks z + z^2 M, where M holds the eigenvalues.

    M has a row for each channel. It has a column for each channel that squares are added to: the
    first channel of each block if the blocks are stars (eigen), or else all of them.
    """

    def __init__(self, name: str, blocks: Blocks | None) -> None:
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"
        self.eigenvalues = f"{name}.eigenvalues"
        self.blocks = blocks
        if blocks is not None:
            self.every = blocks.size if blocks.shape == "star" else 1
            self.columns = -(-blocks.channels // self.every)
            self.positions = torch.tensor(
                [f * self.columns + y // self.every for y, f in blocks.entries()],
                dtype=torch.int64,
            )
            self._flat = torch.empty(0)

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        """From the input to the output; keeps what `backward` uses."""
        self._x = x
        bias = parameters[self.bias].unsqueeze(1)
        z = torch.baddbmm(bias, x, parameters[self.weight].transpose(1, 2))
        if self.blocks is None:
            return z
        self._z, self._squares = z, z * z
        self._matrix = self._mixing(parameters[self.eigenvalues])
        if self.every == 1:
            return torch.baddbmm(z, self._squares, self._matrix)
        # In place: the rows of the y channels in M are zero, so backward does not use their z.
        z[..., :: self.every] += torch.bmm(self._squares, self._matrix)
        return z

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        """From the gradient at the output to that at the input, which is right only if wanted."""
        if self.blocks is not None:
            g_y = g[..., :: self.every].contiguous()
            found = torch.bmm(self._squares.transpose(1, 2), g_y).flatten(1)
            gradients[self.eigenvalues].copy_(found.index_select(1, self.positions))
            g = g.addcmul(self._z, torch.bmm(g_y, self._matrix.transpose(1, 2)), value=2)
        torch.bmm(g.transpose(1, 2), self._x, out=gradients[self.weight])
        torch.sum(g, 1, out=gradients[self.bias])
        return torch.bmm(g, parameters[self.weight]) if wanted else g

    def _mixing(self, eigenvalues: Tensor) -> Tensor:
        """M of each network; its zeros are written once."""
        if len(self._flat) != len(eigenvalues):
            size = self.blocks.channels * self.columns if self.blocks is not None else 0
            self._flat = eigenvalues.new_zeros(len(eigenvalues), size)
            self.positions = self.positions.to(eigenvalues.device)
        self._flat.index_copy_(1, self.positions, eigenvalues)
        return self._flat.view(len(eigenvalues), -1, self.columns)
