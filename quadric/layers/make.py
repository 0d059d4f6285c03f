"""make_layer: one layer of any neuron, from a torch layer or from its arguments."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn

from quadric.errors import InputTypeError
from quadric.layers import conv, linear
from quadric.layers.layer import QuadraticLayer
from quadric.layers.neuron import get_neuron

# The class of the eigen neuron, which has its arguments by name, and that of any neuron.
_CLASSES: dict[type[nn.Module], tuple[type[QuadraticLayer], type[QuadraticLayer]]] = {
    nn.Linear: (linear.QuadraticLinear, linear.NeuronLinear),
    nn.Conv1d: (conv.QuadraticConv1d, conv.NeuronConv1d),
    nn.Conv2d: (conv.QuadraticConv2d, conv.NeuronConv2d),
    nn.Conv3d: (conv.QuadraticConv3d, conv.NeuronConv3d),
    nn.ConvTranspose1d: (conv.QuadraticConvTranspose1d, conv.NeuronConvTranspose1d),
    nn.ConvTranspose2d: (conv.QuadraticConvTranspose2d, conv.NeuronConvTranspose2d),
    nn.ConvTranspose3d: (conv.QuadraticConvTranspose3d, conv.NeuronConvTranspose3d),
}


def layer_kind(module: nn.Module) -> type[nn.Module] | None:
    """The torch class that a layer of neurons can stand in for, or None."""
    return next((kind for kind in _CLASSES if isinstance(module, kind)), None)


def brings_activation(layer: nn.Module) -> bool:
    """Whether a layer has an activation of its own, so that a network puts none behind it."""
    return isinstance(layer, QuadraticLayer) and layer.rule.replaces_activation


def make_layer(spec: Any, *args: Any, neuron: str = "eigen", **options: Any) -> nn.Module:
    """One layer of any registered neuron.

    Args:
        spec: a torch layer (nn.Linear, a convolution or a transposed one), whose geometry is kept,
            and whose parameters too where the neuron can represent a linear layer; or such a class,
            followed by its arguments; or a `functools.partial` of one.
        args: the arguments of a layer class. Behind a layer or a partial, the neuron's name may
            stand here.
        neuron: the registry name.
        options: the neuron's options (`rank`, …), `init` for its start ("published", "linear"), and
            the keyword arguments of a layer class.

    Returns:
        The new layer. For neuron="linear" the torch layer itself.

    Examples:
        >>> make_layer(nn.Linear(3, 4), neuron="eigen", rank=1).neuron_ranks
        (1, 1)
        >>> make_layer(nn.Conv2d, 3, 8, 3, padding=1, neuron="fan").weight3.shape
        torch.Size([8, 3, 3, 3])
    """
    partial = isinstance(spec, functools.partial)
    if args and (partial or isinstance(spec, nn.Module)):
        if len(args) != 1:
            raise InputTypeError(
                f"after a layer only the neuron's name may follow, got {args!r}: give options by "
                "keyword"
            )
        neuron, args = args[0], ()
    if partial:
        spec, args, options = spec.func, spec.args, {**spec.keywords, **options}
    kind = layer_kind(spec) if isinstance(spec, nn.Module) else spec
    if not (isinstance(kind, type) and kind in _CLASSES):
        names = ", ".join(f"nn.{kind.__name__}" for kind in _CLASSES)
        raise InputTypeError(
            f"a layer of neurons can stand in for {names}, got {spec!r}: give one of these"
        )
    row, init = get_neuron(neuron), options.pop("init", None)
    eigen, general = _CLASSES[kind]
    if isinstance(spec, nn.Module):
        row.check_start(init)
        if neuron == "linear":
            row.with_options(**options)
            return spec
        return (eigen if neuron == "eigen" else general).taken_over(spec, neuron, init, **options)
    torchs = inspect.signature(kind).parameters
    own = row.with_options(**{k: v for k, v in options.items() if k not in torchs}).options()
    start = row.check_start(init)
    keywords = {k: v for k, v in options.items() if k in torchs}
    if neuron == "linear":
        return kind(*args, **keywords)
    if neuron == "eigen":
        if start == "linear":
            own["eigenvalue_init"] = "zeros"
        return eigen(*args, **keywords, **own)
    return general(*args, **keywords, **own, neuron=neuron, init=start)
