"""The unknowns of a fit: the trainable parameters of a network as one float64 vector."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.support.modules import check_initialized, check_model, unwrapped

Tensors = dict[str, Tensor]


class Unknowns:
    """A float64 copy of a network and the place of each trainable parameter in a vector.

    Attributes:
        model: the user's network, which only `write` changes.
        copy: the network in float64; what is not trained lives there.
        parts: name to (start, stop, shape) in the vector.
        fixed: parameters and buffers that are not trained, by name.
    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.model = unwrapped(model)
        check_initialized(self.model)
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            raise InputError(
                "the model must have parameters that require gradients, got none: call "
                "model.requires_grad_(True)"
            )
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.is_meta or tensor.is_complex():
                kind = "on the meta device" if tensor.is_meta else f"of {tensor.dtype}"
                raise InputTypeError(
                    f"parameters must be real numbers in memory, got {name!r} {kind}: use a real "
                    "model on a device"
                )
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise InputError(
                    f"every parameter must be finite, got NaN or infinity in {name!r}: start from "
                    "a new network"
                )
        self.copy = copy.deepcopy(self.model).double()
        self.parts: dict[str, tuple[int, int, torch.Size]] = {}
        self.count = 0
        for name, parameter in trained.items():
            stop = self.count + parameter.numel()
            self.parts[name] = (self.count, stop, parameter.shape)
            self.count = stop
        own = {**dict(self.copy.named_parameters()), **dict(self.copy.named_buffers())}
        self.fixed = {n: t.detach() for n, t in own.items() if n not in self.parts}
        self.device = next(iter(trained.values())).device

    def start(self) -> Tensor:
        """The vector of the network as it is now."""
        named = dict(self.model.named_parameters())
        return torch.cat([named[name].detach().double().flatten() for name in self.parts])

    def split(self, vector: Tensor) -> Tensors:
        """The vector as parameters by name, with those that are not trained."""
        named = {n: vector[a:b].view(shape) for n, (a, b, shape) in self.parts.items()}
        return {**self.fixed, **named}

    @torch.no_grad()
    def write(self, vector: Tensor) -> Tensor:
        """Writes the vector into the network, in its own dtype; returns what was kept of it."""
        named = dict(self.model.named_parameters())
        parts = self.split(vector)
        for name in self.parts:
            if not bool(parts[name].to(named[name].dtype).isfinite().all()):
                raise InputError(
                    f"the fitted {name!r} must fit {named[name].dtype}, got a number beyond it: "
                    "scale the data, or use model.double()"
                )
        for name in self.parts:
            named[name].copy_(parts[name])
        return self.start()

    @property
    def digits(self) -> float:
        """The coarsest relative step of numbers in the network's own dtype."""
        named = dict(self.model.named_parameters())
        return max((torch.finfo(named[n].dtype).eps for n in self.parts), default=math.nan)
