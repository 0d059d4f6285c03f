"""Several networks of one shape as one: every parameter has a first dimension over the networks.

A stack of one is how a single network trains, so a batched fit computes what its single fits
compute. Linear, eigen and shared layers are batched matrix products with gradients written by hand,
because at these sizes automatic differentiation takes as long as the mathematics. With z = xW' + b
and a mixing matrix M that holds the eigenvalues, an eigen layer is y += z^2 M over its y channels
and a shared layer is z + z^2 M. All other neurons run their own layer through `torch.func.vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from quadric.nn import QuadraticLinear
from quadric.ops.blocks import eigen_blocks, shared_blocks
from quadric.zoo import NeuronLinear

Tensors = dict[str, Tensor]
OutputGradient = Callable[[Tensor], Tensor]


class Stack(Protocol):
    """What runs a stack of networks; parameters are given by name, each (B, *shape)."""

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        """From inputs (B, N, columns) to outputs (B, N, outputs), without gradients."""
        ...

    def backward(
        self, parameters: Tensors, gradients: Tensors, x: Tensor, output_gradient: OutputGradient
    ) -> None:
        """Runs forward, asks for the gradient at the output, and fills those of the parameters."""
        ...


def make_stack(network: nn.Sequential) -> Stack:
    """What runs networks of this shape; only the structure of `network` is used."""
    steps = [_step(name, layer) for name, layer in network.named_children()]
    known = [step for step in steps if step is not None]
    return ProductStack(known) if len(known) == len(steps) else AnyStack(network)


def stack_parameters(networks: Sequence[nn.Module]) -> Tensors:
    """Copies of the parameters of all networks, by name, one network a row."""
    states = [dict(network.named_parameters()) for network in networks]
    return {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}


class AnyStack:
    """Networks of any layers, by their own code and automatic differentiation."""

    def __init__(self, network: nn.Sequential) -> None:
        self.skeleton = copy.deepcopy(network).to("meta")
        self.batched = vmap(self._one)

    def _one(self, parameters: Tensors, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.skeleton, parameters, (x,))
        return out

    def _run(self, parameters: Tensors, x: Tensor) -> Tensor:
        if len(x) == 1:  # without vmap the layers take their own faster path
            one = {name: parameter.squeeze(0) for name, parameter in parameters.items()}
            return self._one(one, x.squeeze(0)).unsqueeze(0)
        out: Tensor = self.batched(parameters, x)
        return out

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._run(parameters, x)

    def backward(
        self, parameters: Tensors, gradients: Tensors, x: Tensor, output_gradient: OutputGradient
    ) -> None:
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
            out = self._run(leaves, x)
        found = torch.autograd.grad(out, list(leaves.values()), output_gradient(out.detach()))
        for target, gradient in zip(gradients.values(), found, strict=True):
            target.copy_(gradient)


class ProductStack:
    """Networks of linear, eigen and shared layers: batched matrix products."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step.forward(parameters, x)
        return x

    def backward(
        self, parameters: Tensors, gradients: Tensors, x: Tensor, output_gradient: OutputGradient
    ) -> None:
        g = output_gradient(self.forward(parameters, x))
        for i in reversed(range(len(self.steps))):
            g = self.steps[i].backward(parameters, gradients, g, i > 0)


class Step(Protocol):
    """A layer or activation: `backward` follows its `forward` and uses what that kept."""

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor: ...

    def backward(
        self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool
    ) -> Tensor: ...


def _step(name: str, layer: nn.Module) -> Step | None:
    """One layer or activation of a stack; None for one without batched form."""
    if type(layer) in _ACTIVATIONS:
        return Activation(*_ACTIVATIONS[type(layer)])
    if type(layer) is nn.Linear:
        return Linear(name)
    if type(layer) is QuadraticLinear and not layer.normalize:
        return Eigen(name, layer.rank, layer.out_features)
    if isinstance(layer, NeuronLinear) and layer.neuron == "shared" and layer.rank is not None:
        return Shared(name, layer.rank, layer.out_features)
    return None


_aten = torch.ops.aten
# Forward, backward, and whether backward takes the activation's output (or its input).
_ACTIVATIONS: dict[type[nn.Module], tuple[Any, Any, bool]] = {
    nn.SiLU: (torch.nn.functional.silu, _aten.silu_backward.default, False),
    nn.ReLU: (torch.relu, lambda g, z: _aten.threshold_backward.default(g, z, 0), False),
    nn.Tanh: (torch.tanh, _aten.tanh_backward.default, True),
    nn.Sigmoid: (torch.sigmoid, _aten.sigmoid_backward.default, True),
    nn.Identity: (lambda z: z, lambda g, z: g, False),
}


class Activation:
    """An activation function."""

    def __init__(self, forward: Any, backward: Any, by_output: bool) -> None:
        self._forward, self._backward, self._by_output = forward, backward, by_output

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        out: Tensor = self._forward(x)
        self._kept = out if self._by_output else x
        return out

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        back: Tensor = self._backward(g, self._kept)
        return back


class Linear:
    """z = xW' + b."""

    def __init__(self, name: str) -> None:
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"
        self.eigenvalues = f"{name}.eigenvalues"

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        self._x = x
        bias = parameters[self.bias].unsqueeze(1)
        return torch.baddbmm(bias, x, parameters[self.weight].transpose(1, 2))

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        torch.bmm(g.transpose(1, 2), self._x, out=gradients[self.weight])
        torch.sum(g, 1, out=gradients[self.bias])
        return torch.bmm(g, parameters[self.weight]) if wanted else g


class Mixed(Linear):
    """Abstract: a linear layer with squares, mixed by a matrix that holds the eigenvalues."""

    def __init__(self, name: str, positions: list[int], rows: int, columns: int) -> None:
        super().__init__(name)
        self.positions = torch.tensor(positions, dtype=torch.int64)
        self.shape = (rows, columns)
        self._matrix = torch.empty(0)

    def mixing(self, parameters: Tensors) -> Tensor:
        """The matrices (B, *shape): eigenvalues at their positions, zeros elsewhere."""
        values = parameters[self.eigenvalues]
        rows, columns = self.shape
        if len(self._matrix) != len(values):
            self._matrix = values.new_zeros(len(values), rows * columns)
            self.positions = self.positions.to(values.device)
        self._matrix.index_copy_(1, self.positions, values)
        return self._matrix.view(-1, rows, columns)

    def fill(self, gradients: Tensors, matrix_gradient: Tensor) -> None:
        """Takes the eigenvalues' gradients from those of the matrices."""
        flat = matrix_gradient.flatten(1)
        torch.index_select(flat, 1, self.positions, out=gradients[self.eigenvalues])


class Eigen(Mixed):
    """y += z^2 M in place, y being the first channel of each neuron.

    M has no entry in the rows of the y channels: it does not matter that backward finds them
    overwritten.
    """

    def __init__(self, name: str, rank: int, channels: int) -> None:
        blocks = eigen_blocks(channels, rank)
        neurons = len(blocks.sizes)
        positions = [f * neurons + y // blocks.size for y, f in blocks.entries()]
        super().__init__(name, positions, channels, neurons)
        self.every = rank + 1

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        z = super().forward(parameters, x)
        z[..., :: self.every] += torch.bmm(z * z, self.mixing(parameters))
        self._z = z
        return z

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        z = self._z
        g_y = g[..., :: self.every].contiguous()
        self.fill(gradients, torch.bmm((z * z).transpose(1, 2), g_y))
        back = torch.bmm(g_y, self._matrix.view(-1, *self.shape).transpose(1, 2))
        return super().backward(parameters, gradients, g.addcmul(z, back, value=2), wanted)


class Shared(Mixed):
    """z + z^2 M."""

    def __init__(self, name: str, rank: int, channels: int) -> None:
        # Eigenvalue (i, j) multiplies z_j^2 in output i: row j, column i of M.
        positions = [j * channels + i for i, j in shared_blocks(channels, rank).entries()]
        super().__init__(name, positions, channels, channels)

    def forward(self, parameters: Tensors, x: Tensor) -> Tensor:
        z = super().forward(parameters, x)
        self._z, self._squares = z, z * z
        return torch.baddbmm(z, self._squares, self.mixing(parameters))

    def backward(self, parameters: Tensors, gradients: Tensors, g: Tensor, wanted: bool) -> Tensor:
        self.fill(gradients, torch.bmm(self._squares.transpose(1, 2), g))
        back = torch.bmm(g, self._matrix.view(-1, *self.shape).transpose(1, 2))
        return super().backward(parameters, gradients, g.addcmul(self._z, back, value=2), wanted)
