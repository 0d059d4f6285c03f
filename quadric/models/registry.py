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
from quadric.models.digits_cnn import digits_cnn
from quadric.models.mlp import mlp
from quadric.models.resnet_cifar import CifarResNet
from quadric.models.resnet_imagenet import BLOCKS, ImageNetResNet
from quadric.models.transformer import ATTENTION, transformer

CIFAR_DEPTHS = (8, 14, 20, 32, 44, 56, 110)
SENTENCE = 32
"""Tokens of the sentences, source and target, for which a Transformer's cost is counted."""


@dataclass(frozen=True)
class Entry:
    """One network.

    Attributes:
        factory: builds it from keyword options.
        size: shape of one input without its channels; empty for a table.
        channels_option: the option that says how many channels (or columns) the input has; None
            for inputs of token ids.
        include: the layers that `create` converts unless others are named; None for all.
    """

    factory: Callable[..., nn.Module]
    size: tuple[int, ...]
    channels_option: str | None = "in_channels"
    include: list[str] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def input_shape(self, options: Mapping[str, Any] | None = None) -> tuple[int, ...]:
        """Shape of one input, without the batch, of the network built with these options."""
        if self.channels_option is None:
            return self.size
        channels = {**self.options, **(options or {})}[self.channels_option]
        return (channels, *self.size)

    def example_inputs(self, options: Mapping[str, Any] | None = None) -> tuple[Tensor, ...]:
        """Inputs of one sample for the network built with these options."""
        shape = (1, *self.input_shape(options))
        if self.channels_option is None:  # a source and a target sentence, without padding
            return (torch.ones(shape, dtype=torch.int64),) * 2
        return (torch.zeros(shape),)


_TINY = partial(
    transformer, vocabulary=8000, depth=4, model_width=128, feedforward_width=256, heads=4
)
_TRANSFORMERS: dict[str, Callable[..., nn.Module]] = {
    # 3+3 layers, width 512 (after Vaswani et al. 2017)
    "transformer": transformer,
    # with narrower feed-forward layers, 20.3 % smaller
    "transformer_shrunk": partial(transformer, feedforward_width=500),
    # for two CPU cores: 4+4 layers, width 128
    "transformer_tiny": _TINY,
    # 20.4 % smaller
    "transformer_tiny_shrunk": partial(_TINY, feedforward_width=122),
}

ENTRIES: dict[str, Entry] = {
    # for 32x32 pictures, 16 to 64 channels
    **{f"resnet{n}": Entry(partial(CifarResNet, n), (32, 32)) for n in CIFAR_DEPTHS},
    # for 224x224 pictures, torchvision's names
    **{f"resnet{n}": Entry(partial(ImageNetResNet, n), (224, 224)) for n in BLOCKS},
    "digits_cnn": Entry(digits_cnn, (8, 8)),
    "mlp": Entry(mlp, (), "in_features"),
    **{n: Entry(make, (SENTENCE,), None, ATTENTION) for n, make in _TRANSFORMERS.items()},
}


def entry(name: str) -> Entry:
    """Returns the entry of a name, or raises an error that lists the names."""
    if name not in ENTRIES:
        raise InputError(f"unknown model {name!r}: choose from {', '.join(ENTRIES)}")
    return ENTRIES[name]
