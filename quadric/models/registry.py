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
from quadric.models.resnet_cifar import resnet_cifar
from quadric.models.resnet_imagenet import resnet_imagenet
from quadric.models.transformer import ATTENTION, transformer

SENTENCE = 32
"""Tokens of the sentences, source and target, for which a Transformer's cost is counted."""


@dataclass(frozen=True)
class Entry:
    """One network.

    Attributes:
        name: what `create` and `build` take.
        summary: one line for tables.
        factory: builds it from keyword options.
        size: shape of one input without its channels; empty for a table.
        channels_option: the option that says how many channels (or columns) the input has; None
            for inputs of token ids.
        include: the layers that `create` converts unless others are named; None for all.
    """

    name: str
    summary: str
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


def _entries() -> dict[str, Entry]:
    entries = [
        Entry(
            f"resnet{depth}",
            f"{depth} layers for 32x32 pictures, 16 to 64 channels (He et al. 2016)",
            partial(resnet_cifar, depth),
            (32, 32),
        )
        for depth in (8, 14, 20, 32, 44, 56, 110)
    ]
    entries += [
        Entry(
            f"resnet{depth}",
            f"{depth} layers for 224x224 pictures, torchvision's names (He et al. 2016)",
            partial(resnet_imagenet, depth),
            (224, 224),
        )
        for depth in (18, 34)
    ]
    entries.append(Entry("digits_cnn", "three convolutions for the 8x8 digits", digits_cnn, (8, 8)))
    entries.append(Entry("mlp", "multilayer perceptron for tables", mlp, (), "in_features"))
    paper = "encoder-decoder for translation, 3+3 layers, width 512 (after Vaswani et al. 2017)"
    small = "the same for two CPU cores, 4+4 layers, width 128"
    tiny = partial(
        transformer, vocabulary=8000, depth=4, model_width=128, feedforward_width=256, heads=4
    )
    for name, summary, factory in (
        ("transformer", paper, transformer),
        (
            "transformer_shrunk",
            "the same with narrower feed-forward layers, 20.3 % smaller",
            partial(transformer, feedforward_width=500),
        ),
        ("transformer_tiny", small, tiny),
        (
            "transformer_tiny_shrunk",
            "the same with narrower feed-forward layers, 20.4 % smaller",
            partial(tiny, feedforward_width=122),
        ),
    ):
        entries.append(Entry(name, summary, factory, (SENTENCE,), None, ATTENTION))
    return {entry.name: entry for entry in entries}


ENTRIES = _entries()


def entry(name: str) -> Entry:
    """Returns the entry of a name, or raises an error that lists the names."""
    if name not in ENTRIES:
        raise InputError(f"unknown model {name!r}: choose from {', '.join(ENTRIES)}")
    return ENTRIES[name]
