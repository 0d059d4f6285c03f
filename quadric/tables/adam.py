"""Adam on one tensor that holds all parameters of a stack of networks, one row per network.

A small network's step is dominated by the number of operations, not by their size: here a step is
eight of them, for any number of layers and networks. Learning rate and L2 penalty are given element
by element, so that the networks of one stack may differ in them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class FlatAdam:
    """Kingma and Ba 2015, with the L2 penalty in the gradient, as scikit-learn does it.

    Attributes:
        flat: all parameters, (B, parameters of a network).
        average: the running mean of the gradients.
        square: the running mean of their squares.
        parameters: views of `flat`, by name.
        gradients: by name, to be filled before a step.
    """

    def __init__(self, parameters: dict[str, Tensor], lr: Tensor, decay: Tensor) -> None:
        self.shapes = {name: tensor.shape[1:] for name, tensor in parameters.items()}
        self.flat = flatten(parameters)
        self.lr, self.decay = lr, decay
        self.average, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = 0
        self._make_views()

    def _make_views(self) -> None:
        self.parameters = self.views(self.flat)
        self._gradient, self._root = torch.zeros_like(self.flat), torch.empty_like(self.flat)
        self.gradients = self.views(self._gradient)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """A tensor in the flat layout, as parameters by name."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()], 1)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.view(-1, *shape) for (name, shape), piece in named}

    def keep(self, index: Tensor) -> None:
        """Goes on with these networks only."""
        for name in ("flat", "lr", "decay", "average", "square"):
            setattr(self, name, getattr(self, name)[index])
        self._make_views()

    def step(self, rate: float = 1.0) -> None:
        """One step down the gradients, with `rate` times the learning rates."""
        g = self._gradient
        g.addcmul_(self.flat, self.decay)
        self.steps += 1
        self.average.lerp_(g, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        torch.sqrt(self.square, out=self._root)
        self._root.div_(math.sqrt(1 - BETA2**self.steps)).add_(EPSILON)
        torch.mul(self.average, self.lr, out=g)
        self.flat.addcdiv_(g, self._root, value=-rate / (1 - BETA1**self.steps))


def flatten(parameters: dict[str, Tensor]) -> Tensor:
    """The flat layout of parameters, each (B, *shape): one row per network."""
    return torch.cat([tensor.detach().flatten(1) for tensor in parameters.values()], 1)
