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


class Hermite(nn.Module):
    """A polynomial of degree 2 with a BatchNorm for each degree (HerPN, Park et al. 2022).

    It takes the place of a BatchNorm and its activation. Deep networks of plain squares hardly
    train; with this one they do.

    Args:
        channels: of the input.
        norm: the BatchNorm for inputs of this shape.

    Examples:
        >>> Hermite(4)(torch.randn(8, 4, 5, 5)).shape
        torch.Size([8, 4, 5, 5])
    """

    def __init__(self, channels: int, norm: Callable[..., nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(channels, affine=False) for _ in range(2)])
        # ReLU in Hermite polynomials.
        start = torch.tensor([(2 * torch.pi) ** -0.5, 0.5, 0.5 * torch.pi**-0.5])
        self.weights = nn.Parameter(start[:, None].repeat(1, channels))

    def forward(self, input: Tensor) -> Tensor:
        """The polynomial of each number."""
        degrees = input, (input * input - 1) * 2**-0.5
        shape = (1, -1, *(1,) * (input.dim() - 2))
        out = self.weights[0].view(shape)
        for weight, norm, degree in zip(self.weights[1:], self.norms, degrees, strict=True):
            out = out + weight.view(shape) * norm(degree)
        return out


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
