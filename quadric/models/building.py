"""Building a network by its name and converting it: `create`."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
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
from quadric.models.registry import checked_entry, example_inputs
from quadric.models.trained import find
from quadric.saving import load_

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


def create(
    name: str,
    neuron: str = "linear",
    rank: Rank | None = None,
    include: Selection | None = None,
    exclude: Selection | None = None,
    first: int | None = None,
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
        first: convert only this many layers, the first ones, 1x1 shortcuts not counted.
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
    entry = checked_entry(name, options, neuron)
    own = {key: options.pop(key) for key in list(options) if key in entry.options}
    with contextlib.nullcontext() if seed is None else drawing(seed):
        if own:  # the defaults fit anywhere
            _check_memory(name, entry.factory, own)
        model = entry.factory(**own)
        chosen: dict[str, Any] = {"include": include, "exclude": exclude, "first": first}
        chosen |= {"init": init, "head": head or None}
        chosen = {key: value for key, value in chosen.items() if value is not None} | options
        if pretrained is not None:
            if chosen:
                raise InputError(
                    f"pretrained={pretrained!r} decides which layers are quadratic, and how, got "
                    f"{', '.join(chosen)}: leave out one or the other"
                )
            load_(model, find(pretrained, name, neuron, rank).file)
            return model
        make_quadratic_(model, neuron, rank, **{"include": entry.include, **chosen})
        if init != "linear" and any(map(brings_activation, model.modules())):
            _drop_activations_(model, example_inputs(name, **own))
    return model


def make_quadratic_(
    model: nn.Module,
    neuron: str,
    rank: Rank | None = None,
    *,
    init: str | None = None,
    **arguments: Any,
) -> None:
    """Converts a network that was just built, in place; the others are those of `convert_`."""
    if neuron == "linear":
        if rank is not None:
            raise InputError(
                f"neuron 'linear' has no rank, got rank={rank!r}: leave rank out, "
                "or choose another neuron"
            )
        return
    if init is None:
        known = get_neuron(neuron).defaults()
        own = {key: value for key, value in arguments.items() if key in known}
        init = "linear" if _starts_linear(neuron, own) else "published"
    convert_(model, neuron, rank, init=init, **arguments)


def _drop_activations_(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Takes out each activation that follows a layer with an activation of its own."""
    activations = {type(make()) for make in ACTIVATIONS.values()} - {nn.Identity}
    superfluous: list[str] = []
    last = False

    def watch(name: str, module: nn.Module, *_: Any) -> None:
        nonlocal last
        if type(module) in activations:
            superfluous.extend([name] if last else [])
        elif layer_kind(module) is not None or isinstance(module, QuadraticLayer):
            last = brings_activation(module)

    twin = copy.deepcopy(model).to("meta").eval()
    for name, module in twin.named_modules():
        module.register_forward_hook(partial(watch, name))
    with torch.no_grad():
        twin(*(x.to("meta") for x in inputs))
    for name in superfluous:
        model.set_submodule(name, nn.Identity())


def _starts_linear(neuron: str, neuron_options: Mapping[str, Any]) -> bool:
    """Whether a neuron's published start is a linear layer, seen on a small one."""
    if not get_neuron(neuron).can_be_linear:  # pure has no linear part to compare with
        return False
    # A device chosen by `with torch.device` takes no part.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        layer: Any = make_layer(nn.Linear, 3, 12, neuron=neuron, **neuron_options)
        x = torch.randn(4, 3)
        return torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias))


def _check_memory(name: str, factory: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    """Refuses a network that the machine cannot hold, before it tries."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            sizes = [p.numel() * p.element_size() for p in factory(**options).parameters()]
    except (RuntimeError, NotImplementedError, OverflowError, MemoryError):
        sizes = [sys.maxsize]  # larger than a tensor can be
    size, limit = sum(sizes), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > limit:
        raise InputError(
            f"the network {name!r} must fit into memory, got {size / 2**30:,.0f} GB of parameters "
            f"for {limit / 2**30:,.0f} GB: make it narrower, or take fewer layers"
        )
