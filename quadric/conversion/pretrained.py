"""Which layers of a transformers model are quadratic, in its config: from_pretrained reads it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from quadric.conversion.description import describe_layers
from quadric.support.extras import load_extra
from quadric.support.modules import unwrapped


def use_transformers() -> None:
    """Lets from_pretrained of transformers load converted models with their curvature.

    `save_pretrained` of a converted model writes into `config.json` which layers are quadratic,
    under `quantization_config`: the place where transformers asks other libraries to change layers
    before the weights are loaded. Call this once in each process that loads such models. Where it
    was not called, transformers warns of an unknown type of quantization and loads the linear part.

    Raises:
        MissingExtraError: if transformers is not installed.

    Examples:
        >>> import quadric
        >>> quadric.use_transformers()  # doctest: +SKIP
        >>> model = AutoModel.from_pretrained("converted")  # doctest: +SKIP
    """
    load_extra("transformers", "quadric.use_transformers", "hf")
    _loading()


def _loading() -> Any:
    return importlib.import_module("quadric.conversion.transformers_loading")


def _outermost(model: nn.Module) -> Iterator[Any]:
    """The models of transformers in a network, without those that are parts of others."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None:
        return
    parts: set[int] = set()
    for module in unwrapped(model).modules():
        if id(module) not in parts and isinstance(module, transformers.PreTrainedModel):
            parts.update(map(id, module.modules()))
            yield module


def note_layers(model: nn.Module) -> None:
    """Brings the configs of transformers up to date with the layers of their models.

    A model that another library quantizes keeps its entry: a config has room for one.
    """
    for part in _outermost(model):
        entry = getattr(part.config, "quantization_config", None)
        if entry is not None and not isinstance(entry, _loading().QuadricConfig):
            continue
        layers = {
            name.replace(".base_layer", ""): layer.to_dict()  # without the adapters of peft
            for name, layer, _ in describe_layers(part)
        }
        if layers:
            part.config.quantization_config = _loading().QuadricConfig(layers)
        elif entry is not None:
            del part.config.quantization_config


def is_noted(model: nn.Module) -> bool:
    """Whether a model is one of transformers whose config names its quadratic layers."""
    return any(
        part is unwrapped(model)
        and isinstance(getattr(part.config, "quantization_config", None), _loading().QuadricConfig)
        for part in _outermost(model)
    )
