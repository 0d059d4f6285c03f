"""The networks by name: how each is built, with which options, and for which input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers import get_neuron
from quadric.models.cnn5 import cnn5
from quadric.models.digits_cnn import digits_cnn
from quadric.models.mlp import mlp
from quadric.models.resnet import BLOCKS, CifarResNet, ImageNetResNet
from quadric.models.transformer import ATTENTION, Transformer

CIFAR_DEPTHS = (8, 14, 20, 32, 44, 56, 110)
SENTENCE = 32
"""Tokens of the sentences, source and target, for which a Transformer's cost is counted."""


@dataclass(frozen=True)
class Entry:
    """One network."""

    factory: Callable[..., nn.Module]  # builds it from keyword options
    size: tuple[int, ...]  # shape of one input without its channels; empty for a table
    # The option that says how many channels (or columns) the input has; None for inputs of token
    # ids.
    channels_option: str | None = "in_channels"
    # The layers that `create` converts unless others are named; None for all.
    include: list[str] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}


_TINY = partial(
    Transformer, vocabulary=8000, depth=4, model_width=128, feedforward_width=256, heads=4
)
_TRANSFORMERS: dict[str, Callable[..., nn.Module]] = {
    # 3+3 layers, width 512 (after Vaswani et al. 2017)
    "transformer": Transformer,
    # with narrower feed-forward layers, 20.3 % smaller
    "transformer_shrunk": partial(Transformer, feedforward_width=500),
    # for two CPU cores: 4+4 layers, width 128
    "transformer_tiny": _TINY,
    # 20.4 % smaller
    "transformer_tiny_shrunk": partial(_TINY, feedforward_width=122),
}

ENTRIES: dict[str, Entry] = {
    **{f"resnet{n}": Entry(partial(CifarResNet, n), (32, 32)) for n in CIFAR_DEPTHS},
    **{f"resnet{n}": Entry(partial(ImageNetResNet, n), (224, 224)) for n in BLOCKS},
    "cnn5": Entry(cnn5, (32, 32)),
    "digits_cnn": Entry(digits_cnn, (8, 8)),
    "mlp": Entry(mlp, (), "in_features"),
    **{n: Entry(make, (SENTENCE,), None, ATTENTION) for n, make in _TRANSFORMERS.items()},
}


def checked_entry(name: str, given: Mapping[str, Any], neuron: str = "linear") -> Entry:
    """The entry of a network, after a check that all options are its own or the neuron's."""
    if name not in ENTRIES:
        raise InputError(f"unknown model {name!r}: choose from {', '.join(ENTRIES)}")
    entry, theirs = ENTRIES[name], get_neuron(neuron).defaults()
    unknown = [key for key in given if key not in entry.options and key not in theirs]
    if unknown:
        message = f"unknown option {unknown[0]!r} for model {name!r}: it has "
        message += ", ".join(entry.options)
        if neuron != "linear":
            has = ", ".join(theirs) or "no options of its own"
            message += f"; neuron {neuron!r} has {has}"
        raise InputError(message)
    return entry


def names() -> list[str]:
    """Lists the networks.

    Examples:
        >>> names()[:3]
        ['resnet8', 'resnet14', 'resnet20']
    """
    return list(ENTRIES)


def options(name: str) -> dict[str, Any]:
    """The options of a network with their defaults.

    Examples:
        >>> list(options("mlp").values())
        [8, 1, (64, 64), 'relu', False]
    """
    return checked_entry(name, {}).options


def input_shape(name: str, **options: Any) -> tuple[int, ...]:
    """Shape of one input, without the batch, of the network built with these options.

    Examples:
        >>> input_shape("resnet20"), input_shape("resnet20", in_channels=1)
        ((3, 32, 32), (1, 32, 32))
    """
    entry = checked_entry(name, options)
    if entry.channels_option is None:
        return entry.size
    return ({**entry.options, **options}[entry.channels_option], *entry.size)


def example_inputs(name: str, **options: Any) -> tuple[Tensor, ...]:
    """Inputs of one sample for the network built with these options, as `cost` takes them.

    Examples:
        >>> [tuple(x.shape) for x in example_inputs("resnet20")]
        [(1, 3, 32, 32)]
        >>> [tuple(x.shape) for x in example_inputs("transformer")]
        [(1, 32), (1, 32)]
    """
    shape = (1, *input_shape(name, **options))
    if ENTRIES[name].channels_option is None:  # a source and a target sentence, without padding
        return (torch.ones(shape, dtype=torch.int64),) * 2
    return (torch.zeros(shape),)


def build(name: str, **options: Any) -> nn.Module:
    """Builds a plain network.

    Args:
        name: one of `names()`.
        **options: the network's own options, listed by `options(name)`.

    Returns:
        The network, with weights drawn from torch's global generator.

    Raises:
        InputError: if there is no such network or option.

    Examples:
        >>> build("mlp", in_features=3, hidden=(5,))
        Sequential(
          (hidden1): Linear(in_features=3, out_features=5, bias=True)
          (activation1): ReLU()
          (head): Linear(in_features=5, out_features=1, bias=True)
        )
    """
    return checked_entry(name, options).factory(**options)
