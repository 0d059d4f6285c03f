"""Networks of the experiments: plain torch modules, and `create`, which makes them quadratic.

Every file here is a network that knows nothing of quadratic neurons; only `create` converts, so
that a baseline and its quadratic network differ by one argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from quadric.errors import InputError
from quadric.models.fitting import Fit, fit
from quadric.models.registry import ENTRIES, entry

__all__ = ["Fit", "build", "create", "fit", "input_shape", "names", "options"]

# What `quadric.convert_` takes to choose layers: a regex, names or suffixes, or a predicate.
Selection: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool]
Rank: TypeAlias = int | Mapping[str, int] | Callable[[str], int]


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
        >>> options("mlp")
        {'in_features': 8, 'out_features': 1, 'hidden': (64, 64), 'activation': 'relu'}
    """
    return entry(name).options


def input_shape(name: str, **options: Any) -> tuple[int, ...]:
    """Shape of one input, without the batch, of the network built with these options.

    Examples:
        >>> input_shape("resnet20"), input_shape("resnet20", in_channels=1)
        ((3, 32, 32), (1, 32, 32))
    """
    found = entry(name)
    _refuse_unknown(name, options, found.options)
    return found.input_shape(options)


def build(name: str, **options: Any) -> nn.Module:
    """Builds a plain network.

    Args:
        name: one of `names()`.
        **options: the network's own options, listed by `options(name)`.

    Examples:
        >>> build("mlp", in_features=3, hidden=(5,))
        Sequential(
          (hidden1): Linear(in_features=3, out_features=5, bias=True)
          (activation1): ReLU()
          (head): Linear(in_features=5, out_features=1, bias=True)
        )
    """
    found = entry(name)
    _refuse_unknown(name, options, found.options)
    return found.factory(**options)


def create(
    name: str,
    neuron: str = "linear",
    rank: Rank | None = None,
    include: Selection | None = None,
    exclude: Selection | None = None,
    layers: str | None = None,
    *,
    init: str | None = None,
    head: bool = False,
    **options: Any,
) -> nn.Module:
    """Builds a network and converts its layers to a neuron.

    In the networks for pictures every convolution is converted, the stem and the 1x1 shortcuts
    included; the classifier stays linear.

    Args:
        name: one of `names()`.
        neuron: a name of `quadric.neurons()`.
        rank: rank of the neurons; None for the neuron's own default.
        include: layers to convert, as in `quadric.convert_`.
        exclude: layers to leave linear, as in `quadric.convert_`.
        layers: "first:n" converts only the first n convolutions, 1x1 shortcuts not counted; "all"
            or None all of them. Has no effect on linear networks.
        init: "linear", exactly the linear network, or "published", the start of the neuron's
            authors, which draws new weights, as in `quadric.convert_`. None for the published one,
            but with the network's own weights where it is a linear layer (eigen, shared, fan, ...):
            all these networks then start from the same weights.
        head: converts the classifier too.
        **options: the network's own options, listed by `options(name)`, and the neuron's.

    With neuron="linear" nothing is converted, and what chooses layers is not read.

    Examples:
        >>> sum(p.numel() for p in create("resnet20").parameters())
        269722
    """
    found = entry(name)
    own = {key: value for key, value in options.items() if key in found.options}
    other = {key: value for key, value in options.items() if key not in found.options}
    first = _first(layers)
    if neuron == "linear":
        _refuse_unknown(name, other, found.options)
        if rank is not None:
            raise InputError(
                f"neuron 'linear' has no rank, got rank={rank!r}: leave rank out, "
                "or choose another neuron"
            )
        return found.factory(**own)
    # Imported here: the networks themselves stand below the converter.
    from quadric.conversion.convert import convert_
    from quadric.zoo import neurons as registry

    neurons = registry()
    if neuron not in neurons:
        raise InputError(f"unknown neuron {neuron!r}: choose from {', '.join(neurons)}")
    _refuse_unknown(name, other, found.options, neuron, neurons[neuron].options)
    if init is None:
        init = "linear" if _starts_linear(neuron, other) else "published"
    model = found.factory(**own)
    convert_(
        model,
        neuron=neuron,
        rank=rank,
        include=include,
        exclude=exclude,
        first=first,
        head=head,
        init=init,
        **other,
    )
    return model


def _starts_linear(neuron: str, neuron_options: Mapping[str, Any]) -> bool:
    """Whether a neuron's published start is a linear layer, seen on a small one."""
    from quadric.zoo import get_neuron, make_layer

    if not get_neuron(neuron).can_be_linear:  # pure has no linear part to compare with
        return False
    # Neither the caller's random numbers nor a device chosen by `with torch.device` take part.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        layer: Any = make_layer(nn.Linear, 3, 12, neuron=neuron, **neuron_options)
        x = torch.randn(4, 3)
        return torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias))


def _first(layers: str | None) -> int | None:
    """Reads the option `layers`: None for all layers, or the n of "first:n"."""
    if layers is None or layers == "all":
        return None
    kind, _, count = str(layers).partition(":")
    if kind != "first" or not count.isdecimal() or int(count) < 1:
        raise InputError(
            f"layers must be 'all' or 'first:n' with n >= 1, such as 'first:3', got {layers!r}"
        )
    return int(count)


def _refuse_unknown(
    name: str,
    given: Mapping[str, Any],
    valid: Mapping[str, Any],
    neuron: str | None = None,
    neuron_options: Mapping[str, Any] | None = None,
) -> None:
    neuron_options = neuron_options or {}
    unknown = [key for key in given if key not in valid and key not in neuron_options]
    if not unknown:
        return
    message = f"unknown option {unknown[0]!r} for model {name!r}: it has {', '.join(valid)}"
    if neuron is not None:
        has = ", ".join(neuron_options) or "no options of its own"
        message += f"; neuron {neuron!r} has {has}"
    raise InputError(message)
