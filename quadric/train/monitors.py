"""Looking into a network: its largest activation, and the layer where numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from quadric.layers import QuadraticLayer
from quadric.support.modules import watched


class LargestActivation:
    """The largest magnitude that each linear, convolution or quadratic layer put out.

    Attributes:
        by_layer: a scalar tensor a layer, on the device of the network: reading one waits for it,
            so that they are read once, at the end. Zero for a layer that was not called.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layers = {
            name: module
            for name, module in network.named_modules()
            if isinstance(module, QuadraticLayer | nn.Linear | _ConvNd)
        }
        self.by_layer = {name: torch.zeros(()) for name in self.layers}

    def watching(self) -> AbstractContextManager[None]:
        """Watches the layers as long as the context lasts."""
        return watched(self.layers.items(), self._see)

    def _see(self, name: str, layer: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.numel():
            low, high = torch.aminmax(output.detach())
            largest = torch.maximum(-low, high)
            before = self.by_layer[name].to(largest)
            self.by_layer[name] = torch.maximum(before, largest)

    def largest(self) -> tuple[float, str] | None:
        """The largest of all and its layer; NaN counts as largest. None if there is no layer."""
        values = {name: float(value) for name, value in self.by_layer.items()}
        if not values:
            return None
        name = max(values, key=lambda name: (values[name] != values[name], values[name]))
        return values[name], name


def first_not_finite(
    network: nn.Module, inputs: Any, run: Callable[[nn.Module, Any], Any] = lambda f, x: f(x)
) -> str:
    """Says which layer is the first to put out a number that is not finite.

    The network runs once more on these inputs, as it stands, and is left as it was.
    """
    several = inputs if isinstance(inputs, tuple | list) else [inputs]
    if not all(bool(tensor.isfinite().all()) for tensor in several):
        return "the input"
    broken = [name for name, value in network.named_parameters() if not value.isfinite().all()]
    bad: list[tuple[str, nn.Module]] = []

    def check(name: str, layer: nn.Module, args: Any, output: Any) -> None:
        if not bad and isinstance(output, Tensor) and not output.isfinite().all():
            bad.append((name, layer))

    leaves = [
        (name, module)
        for name, module in network.named_modules()
        if isinstance(module, QuadraticLayer) or not any(module.children())
    ]
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    with torch.no_grad(), watched(leaves, check):
        run(network, inputs)
        for buffer, value in buffers:
            buffer.copy_(value)
    if not bad:
        return "the loss"
    name, layer = bad[0]
    text = f"layer {name!r} ({type(layer).__name__})"
    if any(parameter.rpartition(".")[0] == name for parameter in broken):
        text += ", whose parameters are not finite"
    return text
