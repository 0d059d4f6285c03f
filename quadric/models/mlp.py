"""Multilayer perceptron: linear layers with an activation between them, and a linear head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from quadric.errors import InputTypeError
from quadric.models.activations import make_activation
from quadric.support.checks import check_size


def mlp(
    in_features: int = 8,
    out_features: int = 1,
    hidden: Sequence[int] = (64, 64),
    activation: str | None = "relu",
    norm: bool = False,
) -> nn.Sequential:
    """Builds a multilayer perceptron; `norm` puts a BatchNorm behind each hidden layer.

    Examples:
        >>> [name for name, _ in mlp(3, 1, hidden=(4, 4)).named_children()]
        ['hidden1', 'activation1', 'hidden2', 'activation2', 'head']
    """
    if isinstance(hidden, (str, bytes)) or not isinstance(hidden, Sequence):
        raise InputTypeError(f"hidden must be a sequence of integers, got {hidden!r}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = check_size("in_features", in_features)
    for i, width in enumerate(hidden, start=1):
        layers[f"hidden{i}"] = nn.Linear(before, check_size("hidden", width))
        if norm:
            layers[f"norm{i}"] = nn.BatchNorm1d(width)
        layers[f"activation{i}"] = make_activation(activation)
        before = width
    layers["head"] = nn.Linear(before, check_size("out_features", out_features))
    return nn.Sequential(layers)
