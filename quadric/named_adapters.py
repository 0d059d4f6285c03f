"""Several adapters by name on one network: load, use, average, drop.

The network computes with one of them at a time, whose values are in its layers. The others wait
beside it. So `state_dict`, `quadric.save` and exports hold the one in use. What training changes
belongs to the adapter in use, and is kept when another one takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quadric.conversion.selection import some
from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer
from quadric.support.modules import check_model, unwrapped

Values = dict[str, Tensor]

_KEPT = "_quadric_adapters"


@dataclass
class Kept:
    """The adapters of a network by name; None is what it had before the first of them."""

    values: dict[str | None, Values]
    active: str | None


def adapters(model: nn.Module) -> dict[str, bool]:
    """The adapters that a network keeps, and whether each is the one in use.

    Args:
        model: a network; adapters come to it by `quadric.load_(model, path, name=...)`.

    Returns:
        For each name, in the order of loading, whether the network computes with it now.
    """
    kept = _kept(model)
    return {} if kept is None else {k: k == kept.active for k in kept.values if k is not None}


def use_adapter_(model: nn.Module, name: str | None) -> None:
    """Puts an adapter to use in place of the one in use, whose values are kept.

    The parameters stay the same objects. An optimizer still has the running means of the adapter
    before: make a new one to train on.

    Args:
        model: a network with adapters.
        name: the adapter; None for what the network had before the first one was loaded.

    Raises:
        InputError: if the network has no adapter of this name, or other layers than it had.
    """
    kept = _named(model, name)
    now = _checked_values(model, kept)
    kept.values[kept.active] = now
    _put_(model, kept.values[None] | kept.values[name])
    kept.active = name


def average_adapters_(model: nn.Module, weights: Mapping[str, float], name: str) -> None:
    """Makes an adapter out of others and puts it to use.

    With b for what the network had before its first adapter, it is b + sum of w (v - b) over the
    weights w and the adapters' values v: their average if the weights sum to 1.

    Args:
        model: a network with adapters.
        weights: a number for each adapter that takes part.
        name: the new adapter; one of this name is replaced.

    Raises:
        InputError: if the network has no adapter of a name, or a weight is not finite.
    """
    check_name(name)
    if not weights:
        raise InputError("weights must name at least one adapter, got none: give {name: weight}")
    for key, weight in weights.items():
        kept = _named(model, key)
        if not math.isfinite(weight):
            raise InputError(f"weights must be finite, got {weight} for {key!r}: give a number")
    now = _checked_values(model, kept)
    kept.values[kept.active] = now
    base = kept.values[None]
    parts = [(weight, base | kept.values[key]) for key, weight in weights.items()]
    mixed = {k: b + sum(w * (part[k] - b) for w, part in parts) for k, b in base.items()}
    _put_(model, mixed)
    kept.values[name], kept.active = mixed, name


def drop_adapter_(model: nn.Module, name: str) -> None:
    """Forgets an adapter. If it is in use, the network goes back to what it had before the first.

    Args:
        model: a network with adapters.
        name: the adapter.

    Raises:
        InputError: if the network has no adapter of this name.
    """
    check_name(name)
    kept = _named(model, name)
    if kept.active == name:
        use_adapter_(model, None)
    del kept.values[name]


def check_name(name: str) -> None:
    """Checks what is to be the name of an adapter."""
    if not (isinstance(name, str) and name):
        raise InputTypeError(f"an adapter's name must be a string, got {name!r}: such as 'law'")


def quadratic_values(model: nn.Module) -> Values:
    """Copies of all quadratic parameters as they count, under every name that a layer has."""
    return {
        f"{prefix}.{key}".lstrip("."): parameter.detach()
        * (_scale(layer) if key == "eigenvalues" else 1)
        for prefix, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, QuadraticLayer)
        for key, parameter in layer.quadratic_parameters().items()
    }


def _scale(layer: QuadraticLayer) -> Tensor | int:
    return 1 if layer.eigenvalue_scale is None else layer.eigenvalue_scale


def base_values(model: nn.Module, now: Values) -> Values:
    """What the layers had before the first adapter."""
    kept = _kept(model)
    return now if kept is None else now | kept.values[None]


def remember_(model: nn.Module, name: str, before: Values) -> None:
    """Notes that the network has an adapter in its layers now, and what was there before."""
    kept = _kept(model) or Kept({None: before}, None)
    kept.values[kept.active] = before
    kept.values[None] = before | kept.values[None]
    kept.values[name], kept.active = quadratic_values(model), name
    vars(model)[_KEPT] = kept


def _kept(model: nn.Module) -> Kept | None:
    check_model(model)
    kept: Kept | None = vars(unwrapped(model)).get(_KEPT)
    return kept


def _named(model: nn.Module, name: str | None) -> Kept:
    kept = _kept(model)
    if kept is None or name not in kept.values:
        raise InputError(
            f"the network must have the adapter, got {name!r} of {some(list(adapters(model)))}: "
            "load it with quadric.load_(model, path, name=...)"
        )
    return kept


def _checked_values(model: nn.Module, kept: Kept) -> Values:
    now = quadratic_values(unwrapped(model))
    base = kept.values[None]
    other = [k for k in base.keys() | now.keys() if k not in base or k not in now]
    other = other or [k for k in base if base[k].shape != now[k].shape]
    if other:
        raise InputError(
            "the layers must be those that the adapters were loaded for, but "
            f"{some(sorted(other), 2)} changed since: load the adapters into the plain network"
        )
    return now


@torch.no_grad()
def _put_(model: nn.Module, values: Values) -> None:
    for prefix, layer in unwrapped(model).named_modules(remove_duplicate=False):
        if isinstance(layer, QuadraticLayer):
            if layer.eigenvalue_scale is not None:
                layer.await_scale_()
            for key, parameter in layer.quadratic_parameters().items():
                parameter.copy_(values[f"{prefix}.{key}".lstrip(".")])
