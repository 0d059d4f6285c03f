"""make_layer: one layer of any neuron, from a torch layer or from its arguments."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import nn

from quadric.errors import InputError, InputTypeError
from quadric.layers import conv, linear
from quadric.layers.eigen import EigenLayer
from quadric.layers.eigenvalue_init import eigenvalues_
from quadric.layers.layer import check_plain_parameters
from quadric.layers.neuron_layer import (
    NeuronConv1d,
    NeuronConv2d,
    NeuronConv3d,
    NeuronLayer,
    NeuronLinear,
    check_start,
    scaled,
)
from quadric.layers.registry import get_neuron

_KINDS: dict[type[nn.Module], tuple[type[EigenLayer], type[NeuronLayer] | None]] = {
    nn.Linear: (linear.QuadraticLinear, NeuronLinear),
    nn.Conv1d: (conv.QuadraticConv1d, NeuronConv1d),
    nn.Conv2d: (conv.QuadraticConv2d, NeuronConv2d),
    nn.Conv3d: (conv.QuadraticConv3d, NeuronConv3d),
    nn.ConvTranspose1d: (conv.QuadraticConvTranspose1d, None),
    nn.ConvTranspose2d: (conv.QuadraticConvTranspose2d, None),
    nn.ConvTranspose3d: (conv.QuadraticConvTranspose3d, None),
}


def layer_kind(module: nn.Module) -> type[nn.Module] | None:
    """The torch class that a layer of neurons can stand in for, or None."""
    return next((kind for kind in _KINDS if isinstance(module, kind)), None)


def make_layer(spec: Any, *args: Any, neuron: str = "eigen", **options: Any) -> nn.Module:
    """One layer of any registered neuron.

    Args:
        spec: a torch layer (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, for eigen also the
            transposed convolutions), whose geometry is kept, and whose parameters too where the
            neuron can represent a linear layer; or such a class, followed by its arguments; or a
            `functools.partial` of one.
        args: the arguments of a layer class. Behind a layer or a partial, the neuron's name may
            stand here.
        neuron: the neuron's name in the registry.
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
    if isinstance(spec, nn.Module):
        if args:
            neuron = _neuron_argument(args)
        return _from_module(spec, neuron, options)
    if isinstance(spec, functools.partial):
        if args:
            neuron = _neuron_argument(args)
        spec, args, options = spec.func, spec.args, {**spec.keywords, **options}
    if not (isinstance(spec, type) and spec in _KINDS):
        raise _wrong_kind(spec)
    return _from_arguments(spec, args, neuron, options)


def _wrong_kind(spec: Any) -> TypeError:
    names = ", ".join(f"nn.{kind.__name__}" for kind in _KINDS)
    return TypeError(
        f"a layer of neurons can stand in for {names}, got {spec!r}: give one of these"
    )


def _neuron_argument(args: tuple[Any, ...]) -> str:
    if len(args) != 1:
        raise InputTypeError(
            f"after a layer only the neuron's name may follow, got {args!r}: give options by "
            "keyword"
        )
    name: str = args[0]
    return name


def _layer_class(kind: type[nn.Module], neuron: str) -> type[EigenLayer] | type[NeuronLayer]:
    eigen, other = _KINDS[kind]
    if neuron == "eigen":
        return eigen
    if other is None:
        raise InputError(
            f"nn.{kind.__name__} has quadratic layers of the neuron 'eigen' alone, got "
            f"neuron={neuron!r}: use eigen or leave the layer linear"
        )
    return other


def _from_arguments(
    kind: type[nn.Module], args: tuple[Any, ...], neuron: str, options: dict[str, Any]
) -> nn.Module:
    row = get_neuron(neuron)
    names = set(inspect.signature(kind).parameters)
    keywords = {k: v for k, v in options.items() if k in names}
    extra = {k: v for k, v in options.items() if k not in names}
    wanted = extra.pop("init", None)
    init = check_start(neuron, wanted)
    rule = row.make_rule(**extra)
    if neuron == "linear":
        return kind(*args, **keywords)
    cls = _layer_class(kind, neuron)
    if issubclass(cls, EigenLayer):
        chosen = rule.options()
        if wanted == "linear":
            chosen["eigenvalue_init"] = "zeros"
        return cls(*args, **keywords, **chosen)
    return cls(*args, **keywords, neuron=neuron, init=init, **rule.options())


def _from_module(module: nn.Module, neuron: str, options: dict[str, Any]) -> nn.Module:
    row = get_neuron(neuron)
    kind = layer_kind(module)
    if kind is None:
        raise _wrong_kind(type(module))
    options = dict(options)
    wanted = options.pop("init", None)
    init = check_start(neuron, wanted or ("linear" if row.can_be_linear else None))
    rule = row.make_rule(**options)
    if neuron == "linear":
        return module
    cls = _layer_class(kind, neuron)
    if issubclass(cls, EigenLayer):
        chosen = rule.options()
        start = chosen.pop("eigenvalue_init")
        if wanted == "linear":
            start = "zeros"
        eigen = cls.from_linear(module, **chosen)
        eigen.eigenvalue_init = start
        eigenvalues_(eigen.eigenvalues, start)
        return eigen
    check_plain_parameters(module)
    weight, bias = module.weight, module.bias
    assert isinstance(weight, nn.Parameter)
    assert bias is None or isinstance(bias, nn.Parameter)
    layer = cls(
        **cls.geometry_of(module),
        bias=bias is not None,
        neuron=neuron,
        init=init,
        device="meta",
        dtype=weight.dtype,
        **rule.options(),
    )
    if init == "linear":
        layer.weight = scaled(weight, layer.linear_scale)
        layer.bias = scaled(bias, layer.linear_scale)
        layer.start_linear_(weight.device, weight.dtype)
        if wanted != "linear" and "eigenvalue_init" in options:
            eigenvalues_(layer.parameter("eigenvalues"), options["eigenvalue_init"])
    else:
        layer.to_empty(device=weight.device)
        with torch.no_grad():
            layer.reset_parameters()
    return layer.train(module.training)
