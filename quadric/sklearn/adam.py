"""Adam on one flat tensor that holds all parameters of a stack of networks.

A small network's step is dominated by the number of operations, not by their size: here a step is
eight of them, whatever the number of layers and networks. Learning rate and weight decay are given
element by element, so that networks of one stack may differ in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class FlatAdam:
    """Kingma and Ba 2015, with the L2 penalty in the gradient, as scikit-learn does it.

    Args:
        parameters: by name, each (B, *shape); copied.
        lr: learning rates in the flat layout.
        decay: L2 penalties, likewise.

    Attributes:
        flat: all parameters: one after the other, in each the networks one after the other.
        parameters: views of it, by name.
        gradients: by name, to be filled before a step.
    """

    def __init__(self, parameters: dict[str, Tensor], lr: Tensor, decay: Tensor) -> None:
        self.shapes = {name: tensor.shape for name, tensor in parameters.items()}
        self.flat = flatten(list(parameters.values()))
        self.parameters = self.views(self.flat)
        self.lr = lr
        self.decay = decay
        self.average = torch.zeros_like(self.flat)
        self.square = torch.zeros_like(self.flat)
        self.steps = 0
        self._gradient = torch.zeros_like(self.flat)
        self.gradients = self.views(self._gradient)
        self._root = torch.empty_like(self.flat)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """A tensor in the flat layout, as parameters by name."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = zip(self.shapes.items(), flat.split(sizes), strict=True)
        return {name: piece.view(shape) for (name, shape), piece in pieces}

    def step(self) -> None:
        """One step down the gradients."""
        g = self._gradient
        g.addcmul_(self.flat, self.decay)
        self.steps += 1
        self.average.lerp_(g, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        torch.sqrt(self.square, out=self._root)
        self._root.div_(math.sqrt(1 - BETA2**self.steps)).add_(EPSILON)
        torch.mul(self.average, self.lr, out=g)
        self.flat.addcdiv_(g, self._root, value=-1 / (1 - BETA1**self.steps))


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The flat layout: parameter after parameter, in each the networks one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
