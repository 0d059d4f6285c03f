"""The networks of the estimators: hidden layers of one neuron, a linear layer at the end.

They are plain `nn.Sequential` models of `quadric.make_layer` layers. The last layer stays linear:
its output is a target or a logit and has nothing to mix.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from quadric.errors import InputError
from quadric.layers import brings_activation, get_neuron, make_layer

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "identity": nn.Identity,
}

# Layers draw from torch's global generator, which threads share.
_DRAWING = threading.Lock()


def build_network(
    inputs: int,
    outputs: int,
    hidden: Sequence[int],
    *,
    neuron: str = "eigen",
    rank: int | None = None,
    neuron_options: Mapping[str, Any] | None = None,
    activation: str = "silu",
    dtype: torch.dtype = torch.float32,
    seed: int | None = None,
    device: str = "cpu",
) -> nn.Sequential:
    """Builds a network; the global random state is left as it was."""
    options = {**(neuron_options or {}), **({} if rank is None else {"rank": rank})}
    with _DRAWING, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        layers: list[nn.Module] = []
        before = inputs
        for width in hidden:
            layer = make_layer(
                nn.Linear, before, width, neuron=neuron, dtype=dtype, device=device, **options
            )
            make = nn.Identity if brings_activation(layer) else ACTIVATIONS[activation]
            layers += [layer, make()]
            before = width
        layers.append(nn.Linear(before, outputs, dtype=dtype, device=device))
    return nn.Sequential(*layers)


def form(networks: Sequence[nn.Sequential]) -> str:
    """Number, widths, neurons and activations of networks, in words."""
    network = networks[0]
    layers = [layer for layer in network if hasattr(layer, "out_features")]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    text = "-".join(map(str, widths)) + (f" ({len(networks)} members)" if networks[1:] else "")
    if len(layers) == 1:
        return text
    names = {kind: name for name, make in ACTIVATIONS.items() for kind in [type(make())]}
    neuron, rank = getattr(layers[0], "neuron", "linear"), getattr(layers[0], "rank", None)
    label = neuron if rank is None else f"{neuron}[{rank}]"
    return f"{text} of {label} neurons with {names[type(network[1])]}"


def count_parameters(
    inputs: int,
    outputs: int,
    hidden: Sequence[int],
    neuron: str = "linear",
    rank: int | None = None,
) -> int:
    """How many parameters the network has, counted without storage."""
    network = build_network(inputs, outputs, hidden, neuron=neuron, rank=rank, device="meta")
    return sum(parameter.numel() for parameter in network.parameters())


def fit_widths(
    inputs: int, outputs: int, hidden: Sequence[int], neuron: str, rank: int | None = None
) -> tuple[int, ...]:
    """The widest hidden layers with which a network has no more parameters than the linear one.

    All widths shrink by the same factor; then single layers grow again where there is room.
    """
    get_neuron(neuron)
    budget = count_parameters(inputs, outputs, hidden)

    def fits(widths: Sequence[int]) -> bool:
        return count_parameters(inputs, outputs, widths, neuron, rank) <= budget

    if not hidden or fits(hidden):
        return tuple(hidden)
    largest = max(hidden)

    def shrunk(width: int) -> list[int]:
        """All widths by the factor that gives the widest layer this width."""
        return [max(1, before * width // largest) for before in hidden]

    # Counts grow with the width: bisection finds how many widths fit.
    width = bisect.bisect_left(range(1, largest), 1, key=lambda width: not fits(shrunk(width)))
    if width == 0:
        raise InputError(
            f"a {neuron!r} network must fit the {budget:,} parameters of the linear network with "
            f"hidden layers {tuple(hidden)}, but even width 1 does not: give wider layers"
        )
    widths = shrunk(width)
    for i, limit in enumerate(hidden):
        while widths[i] < limit and fits([*widths[:i], widths[i] + 1, *widths[i + 1 :]]):
            widths[i] += 1
    return tuple(widths)
