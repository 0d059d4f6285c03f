"""Activation functions by name, for the networks of this package.

`None` and `"none"` mean no activation at all: the network is then linear in its input until its
layers are converted, and a polynomial afterwards. Activations with parameters of their own
(PReLU) are left out, so that the parameter count of a network never depends on its activation.

None of them works in place. After a batch normalization an in-place activation saves no memory
(the normalization keeps its input for the backward pass, the activation its output), and a hook on
the normalization would see values that were overwritten later.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError


class Sin(nn.Module):
    """The sine of each number, for functions that oscillate."""

    def forward(self, input: Tensor) -> Tensor:
        """The sine."""
        return torch.sin(input)


class Square(nn.Module):
    """The square of each number: an activation that encryption can compute.

    Examples:
        >>> Square()(torch.tensor([-3.0, 2.0]))
        tensor([9., 4.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """The squares."""
        return input * input


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "sin": Sin,
    "square": Square,
}


def make_activation(activation: str | None) -> nn.Module:
    """Makes an activation module.

    Examples:
        >>> make_activation("silu")
        SiLU()
        >>> make_activation(None)
        Identity()
    """
    name = "none" if activation is None else activation
    if name not in ACTIVATIONS:
        kind = InputError if isinstance(name, str) else InputTypeError
        known = ", ".join(sorted(ACTIVATIONS))
        raise kind(f"activation must be None or one of {known}, got {activation!r}: choose one")
    return ACTIVATIONS[name]()
