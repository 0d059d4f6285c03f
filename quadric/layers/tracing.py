"""Layers as single nodes of torch.fx graphs, as torch's own layers are."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx, nn
from torch.func import functional_call


def is_proxy(value: object) -> bool:
    """Whether torch.fx traces with this argument: nothing of it can be checked."""
    return isinstance(value, fx.Proxy)


def as_node(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The call of a layer while torch.fx traces it."""
    tracer: Any = args[0].tracer
    path = tracer.path_of_module(layer)
    if path:
        return tracer.create_proxy("call_module", path, args, kwargs)
    # A graph cannot call its own root: it calls a function of the layer's parameters.
    names = [name for name, _ in (*layer.named_parameters(), *layer.named_buffers())]
    parameters = {name: tracer.create_proxy("get_attr", name, (), {}) for name in names}
    return tracer.create_proxy("call_function", _Function(layer), (parameters, args, kwargs), {})


class _Function:
    """A layer as a function of its parameters."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = copy.deepcopy(layer).to("meta")
        self.__name__ = type(layer).__name__

    def __call__(self, parameters: Any, args: Any, kwargs: Any) -> Any:
        return functional_call(self.layer, parameters, args, kwargs)
