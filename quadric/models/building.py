"""Building a network by its name, and converting it: the one place where networks are made."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quadric.conversion.convert import convert_
from quadric.conversion.selection import Rank, Selection
from quadric.errors import InputError
from quadric.layers import QuadraticLayer, brings_activation, get_neuron, layer_kind, make_layer
from quadric.models.activations import ACTIVATIONS
from quadric.models.registry import ENTRIES, Entry, entry
from quadric.models.trained import fill_, find

# Layers draw from torch's global generator, which threads share.
_DRAWING = threading.Lock()


@contextlib.contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Lets layers draw their weights, and leaves torch's global generator as it was.

    Threads that draw wait for each other.
    """
    with _DRAWING, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield


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
    return _checked(name, options).input_shape(options)


def example_inputs(name: str, **options: Any) -> tuple[Tensor, ...]:
    """Inputs of one sample for the network built with these options, as `cost` takes them.

    Examples:
        >>> [tuple(x.shape) for x in example_inputs("resnet20")]
        [(1, 3, 32, 32)]
        >>> [tuple(x.shape) for x in example_inputs("transformer")]
        [(1, 32), (1, 32)]
    """
    return _checked(name, options).example_inputs(options)


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
    return _checked(name, options).factory(**options)


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
    seed: int | None = None,
    pretrained: str | None = None,
    **options: Any,
) -> nn.Module:
    """Builds a network and converts its layers to a neuron.

    In the networks for pictures every convolution is converted, the stem and the 1x1 shortcuts
    included; the classifier stays linear. In a Transformer the attention projections are converted,
    where the paper has its neurons. With neuron="linear" nothing is converted, and what chooses
    layers is not read. After a layer that brings its own activation (glu) the network has none,
    unless the neuron's option `keep_activation` is True or `init` is "linear".

    Args:
        name: one of `names()`.
        neuron: a name of `quadric.neurons()`.
        rank: rank of the neurons; None for the neuron's own default.
        include: layers to convert, as in `quadric.convert_`; in a Transformer `".*"` for all of
            them, `["inner", "outer"]` for the feed-forward layers.
        exclude: layers to leave linear, as in `quadric.convert_`.
        layers: "first:n" converts only the first n convolutions, 1x1 shortcuts not counted; "all"
            or None converts all of them.
        init: "linear", exactly the linear network, or "published", the start of the neuron's
            authors, which draws new weights, as in `quadric.convert_`. None for the published one,
            but with the network's own weights where it is a linear layer (eigen, shared, fan, ...):
            all these networks then start from the same weights.
        head: converts the classifier too.
        seed: draws the weights from this seed and leaves torch's global generator as it was; None
            draws them from the global generator.
        pretrained: trained weights that come with the package, such as "digits"; an unknown name
            is told those there are. The weights decide which layers are converted, and the rank
            where none is given.
        **options: the network's own options, listed by `options(name)`, and the neuron's.

    Returns:
        The network.

    Raises:
        InputError: if a name, an option or a choice of layers does not fit.

    Examples:
        >>> sum(p.numel() for p in create("resnet20").parameters())
        269722
        >>> create("mlp", neuron="eigen", rank=3, hidden=(8,)).hidden1
        QuadraticLinear(in_features=8, out_features=8, bias=True, rank=3, num_neurons=2)
    """
    found = _checked(name, options, neuron)
    own = {key: options.pop(key) for key in list(options) if key in found.options}
    with contextlib.nullcontext() if seed is None else drawing(seed):
        model = found.factory(**own)
        if pretrained is not None:
            chosen: dict[str, Any] = {"include": include, "exclude": exclude, "layers": layers}
            chosen |= {"init": init, "head": head or None, **options}
            _refuse_choices(pretrained, [k for k, value in chosen.items() if value is not None])
            fill_(model, find(pretrained, name, neuron, rank))
            return model
        make_quadratic_(
            model,
            neuron,
            rank,
            found.include if include is None else include,
            exclude,
            layers,
            init=init,
            head=head,
            **options,
        )
        if init != "linear" and any(map(brings_activation, model.modules())):
            _drop_activations_(model, found.example_inputs(own))
    return model


def _refuse_choices(pretrained: str, names: Sequence[str]) -> None:
    if names:
        raise InputError(
            f"pretrained={pretrained!r} decides which layers are quadratic, and how, got "
            f"{', '.join(names)}: leave out one or the other"
        )


def make_quadratic_(
    model: nn.Module,
    neuron: str,
    rank: Rank | None = None,
    include: Selection | None = None,
    exclude: Selection | None = None,
    layers: str | None = None,
    *,
    init: str | None = None,
    head: bool = False,
    example_inputs: Sequence[Tensor] | None = None,
    **options: Any,
) -> None:
    """Converts a network that was just built, in place; the arguments are those of `create`."""
    first = first_layers(layers)
    if neuron == "linear":
        if rank is not None:
            raise InputError(
                f"neuron 'linear' has no rank, got rank={rank!r}: leave rank out, "
                "or choose another neuron"
            )
        return
    convert_(
        model,
        neuron=neuron,
        rank=rank,
        include=include,
        exclude=exclude,
        first=first,
        head=head,
        init=init or ("linear" if _starts_linear(neuron, options) else "published"),
        example_inputs=example_inputs,
        **options,
    )


def _drop_activations_(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Takes out each activation that only ever follows layers with an activation of their own."""
    activations = {type(make()) for make in ACTIVATIONS.values()} - {nn.Identity}
    follows: dict[str, bool] = {}
    last = False

    def watch(name: str, module: nn.Module, *_: Any) -> None:
        nonlocal last
        if type(module) in activations:
            follows[name] = follows.get(name, True) and last
        elif layer_kind(module) is not None or isinstance(module, QuadraticLayer):
            last = brings_activation(module)

    twin = copy.deepcopy(model).to("meta").eval()
    for name, module in twin.named_modules():
        module.register_forward_hook(partial(watch, name))
    with torch.no_grad():
        twin(*(x.to("meta") for x in inputs))
    for name in follows:
        if follows[name]:
            model.set_submodule(name, nn.Identity())


def first_layers(layers: str | None) -> int | None:
    """Reads the option `layers`: None for all layers, or the n of "first:n"."""
    if layers is None or layers == "all":
        return None
    kind, _, count = str(layers).partition(":")
    if kind != "first" or not count.isdecimal() or int(count) < 1:
        raise InputError(
            f"layers must be 'all' or 'first:n' with n >= 1, such as 'first:3', got {layers!r}"
        )
    return int(count)


def _starts_linear(neuron: str, neuron_options: Mapping[str, Any]) -> bool:
    """Whether a neuron's published start is a linear layer, seen on a small one."""
    if not get_neuron(neuron).can_be_linear:  # pure has no linear part to compare with
        return False
    # A device chosen by `with torch.device` takes no part.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        layer: Any = make_layer(nn.Linear, 3, 12, neuron=neuron, **neuron_options)
        x = torch.randn(4, 3)
        return torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias))


def _checked(name: str, given: Mapping[str, Any], neuron: str = "linear") -> Entry:
    """The entry of a network, after a check that all options are its own or the neuron's."""
    found, theirs = entry(name), get_neuron(neuron).options
    unknown = [key for key in given if key not in found.options and key not in theirs]
    if unknown:
        message = f"unknown option {unknown[0]!r} for model {name!r}: it has "
        message += ", ".join(found.options)
        if neuron != "linear":
            has = ", ".join(theirs) or "no options of its own"
            message += f"; neuron {neuron!r} has {has}"
        raise InputError(message)
    return found
