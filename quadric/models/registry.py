"""The networks by name: how each is built, with which options, and for which input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from quadric.errors import InputError
from quadric.models.digits_cnn import digits_cnn
from quadric.models.mlp import mlp
from quadric.models.resnet_cifar import CifarResNet
from quadric.models.resnet_imagenet import BLOCKS, ImageNetResNet

CIFAR_DEPTHS = (8, 14, 20, 32, 44, 56, 110)


@dataclass(frozen=True)
class Entry:
    """One network.

    Attributes:
        factory: builds it from keyword options.
        size: shape of one input without its channels; empty for a table.
        channels_option: the option that says how many channels (or columns) the input has.
    """

    factory: Callable[..., nn.Module]
    size: tuple[int, ...]
    channels_option: str = "in_channels"

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def input_shape(self, options: Mapping[str, Any] | None = None) -> tuple[int, ...]:
        """Shape of one input, without the batch, of the network built with these options."""
        channels = {**self.options, **(options or {})}[self.channels_option]
        return (channels, *self.size)


ENTRIES: dict[str, Entry] = {
    # for 32x32 pictures, 16 to 64 channels
    **{f"resnet{n}": Entry(partial(CifarResNet, n), (32, 32)) for n in CIFAR_DEPTHS},
    # for 224x224 pictures, torchvision's names
    **{f"resnet{n}": Entry(partial(ImageNetResNet, n), (224, 224)) for n in BLOCKS},
    "digits_cnn": Entry(digits_cnn, (8, 8)),
    "mlp": Entry(mlp, (), "in_features"),
}


def entry(name: str) -> Entry:
    """Returns the entry of a name, or raises an error that lists the names."""
    if name not in ENTRIES:
        raise InputError(f"unknown model {name!r}: choose from {', '.join(ENTRIES)}")
    return ENTRIES[name]
