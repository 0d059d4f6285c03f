"""Building exactly the layers that a file names, and which models have layers to replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quadric.conversion.polynomials import replacement
from quadric.conversion.selection import some
from quadric.conversion.swapping import Swap, build
from quadric.conversion.targets import (
    Target,
    collect,
    find_targets,
    is_attention,
    is_candidate,
    look_around,
    obstacle,
)
from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer
from quadric.layers.parabola import PARTS
from quadric.support.modules import check_model


def plan_layers(model: nn.Module, plan: Mapping[str, Mapping[str, Any]]) -> Swap:
    """Builds exactly the layers named, with their own neurons and options; changes nothing."""
    check_convertible(model)
    by_name = {name: target for target in find_targets(model) for name in target.names}
    parts = {name for name, options in plan.items() if options["neuron"] in PARTS.values()}
    places = [t for t in collect(model, lambda m: True) if parts & set(t.names)]
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    replaced = [(t, replacement(t.module, t.name).to(like)) for t in places]
    plan = {name: options for name, options in plan.items() if name not in parts}
    entries: dict[str, Mapping[str, Any]] = {}
    for name, options in plan.items():
        projections = [f"{name}.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")]
        whole = name not in by_name and all(p in by_name for p in projections)
        entries.update(dict.fromkeys(projections if whole else [name], options))
    missing = [name for name in entries if name not in by_name]
    missing += sorted(parts - {name for target in places for name in target.names})
    if missing:
        raise InputError(
            f"every layer of the plan must be in the model, got {some(missing, 1)}, not found; the "
            f"model's layers are: {some(list(by_name))}"
        )
    around = look_around(model)
    chosen: dict[str, tuple[Target, Mapping[str, Any]]] = {}
    for name, options in entries.items():
        reason = obstacle(by_name[name], options, around)
        if reason is not None:
            raise InputError(f"the layer {name!r} cannot be converted: {reason}")
        # The plan may have several names of one layer.
        chosen[by_name[name].name] = (by_name[name], options)
    layers = build(model, chosen.values())
    return Swap(model, [*layers.built, *replaced])


_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDP")


def check_convertible(model: nn.Module) -> None:
    """Checks that a model has layers that can be replaced in it."""
    check_model(model)
    if is_candidate(model) or isinstance(model, QuadraticLayer):
        remedy = "QuadraticMultiheadAttention.from_mha(model)"
        remedy = remedy if is_attention(model) else "make_layer(model, neuron=...)"
        raise InputError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            f"replaced in place: use quadric.{remedy}"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputTypeError(
            "the model must be an eager module, got a ScriptModule: convert before scripting"
        )
    for module in model.modules():
        name = type(module).__name__
        if name.startswith(_WRAPPERS):
            raise InputError(
                f"the model must not be wrapped for distributed training yet, got a {name}: "
                "convert it first, wrap it then"
            )
