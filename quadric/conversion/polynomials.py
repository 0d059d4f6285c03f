"""Polynomials in the places of activations and maxima, fitted to what a batch shows.

Encryption computes polynomials alone. The parabolas are put in one after the other in a single run:
each is fitted to the values that it gets behind the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import activation, pooling

from quadric.conversion.conversion_report import ConversionReport, Converted, Skipped
from quadric.conversion.selection import Request, Selector
from quadric.conversion.swapping import Swap
from quadric.conversion.targets import Target, collect, run_examples
from quadric.errors import InputError
from quadric.layers.parabola import PARTS, AveragePool, Parabola
from quadric.support.modules import count_parameters

_NO_ACTIVATIONS = ("MultiheadAttention", "Softmax", "Softmax2d", "LogSoftmax", "Softmin", "GLU")
_PLACES = (activation.__name__, "transformers.activations", "quadric.models.activations")
_POINTS = 100
"""Points over the range that was seen; together they weigh a twentieth of the values."""


def is_maximum(module: nn.Module) -> bool:
    """Whether a module is maximum pooling of torch's."""
    return type(module).__module__ == pooling.__name__ and "MaxPool" in type(module).__name__


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation that is no polynomial."""
    kind = type(module)
    return kind.__module__ in _PLACES and kind.__name__ not in (*_NO_ACTIVATIONS, "Square")


def replacement(module: Any, name: str) -> nn.Module:
    """The polynomial part for an activation or a maximum, with no values yet."""
    if not is_maximum(module):
        return Parabola()
    dilation = getattr(module, "dilation", 1)
    plain = {1} == set(dilation if isinstance(dilation, tuple) else (dilation,))
    if not plain or module.return_indices:
        raise InputError(
            "maximum pooling must have neither dilation nor indices to become an average, got "
            f"{module} (layer {name!r}): leave it with exclude=[{name!r}], or take it out"
        )
    return AveragePool(module)


class _Fitting(nn.Module):
    """In the place of an activation during the one run: fits the parabola to it, and computes it.

    An activation that is called several times is fitted to the values of all its calls.
    """

    def __init__(self, name: str, old: nn.Module) -> None:
        super().__init__()
        self.name, self.old, self.parabola = name, old, Parabola()
        self.products = torch.zeros(3, 4, dtype=torch.float64)

    def forward(self, values: Tensor) -> Tensor:
        low, high = float(values.min()), float(values.max())
        points = torch.linspace(low, high, _POINTS, device=values.device, dtype=values.dtype)
        for x, weight in ((values, 1.0), (points, values.numel() / 20 / _POINTS)):
            y = self.old(x.clone())
            if y.shape != x.shape:
                raise InputError(f"layer {self.name!r} is no activation, its output has {y.shape}")
            x = x.flatten().double().cpu()
            rows = torch.stack([x * x, x, torch.ones_like(x)])
            whole = torch.cat([rows, y.flatten().double().cpu()[None]])
            self.products += weight * rows @ whole.T
        if not bool(torch.isfinite(self.products).all()):
            raise InputError(f"layer {self.name!r} must get finite values, got {low} … {high}")
        found = torch.linalg.pinv(self.products[:, :3]) @ self.products[:, 3]
        self.parabola.to(values).coefficients.data = found.to(values)
        made: Tensor = self.parabola(values)
        return made


def make_polynomial_(model: nn.Module, request: Request, example_inputs: Any) -> ConversionReport:
    """Puts polynomials in the places of activations and maxima; what `convert_` does for them."""
    if request != Request(include=request.include, exclude=request.exclude):
        raise InputError(
            "activations='polynomial' leaves the layers linear, got options for layers beside it: "
            "leave them out, and call convert_ once more for the layers"
        )
    if example_inputs is None:
        raise InputError(
            "activations='polynomial' must see the range of the values, got no example_inputs: "
            "give a batch of a few hundred inputs"
        )
    chosen, skipped = _choose(model, request)
    before = count_parameters(model)
    built = [(target, replacement(target.module, target.name)) for target in chosen]
    fits = [
        (target, _Fitting(target.name, target.module) if isinstance(new, Parabola) else new)
        for target, new in built
    ]
    swap = Swap(model, fits)
    swap.do()
    try:
        run_examples(model, example_inputs)
    finally:
        swap.undo()
    final: list[tuple[Target, nn.Module]] = []
    for target, new in fits:
        if isinstance(new, _Fitting) and not bool(new.products.any()):
            reason = "the example inputs never reach it"
            skipped.append(Skipped(target.name, type(target.module).__name__, reason))
        else:
            part = new.parabola if isinstance(new, _Fitting) else new
            final.append((target, part.train(target.module.training)))
    Swap(model, final).do()
    converted = tuple(
        Converted(t.name, type(t.module).__name__, PARTS[type(new)], None,
                  count_parameters(t.module), count_parameters(new), False, tuple(t.names[1:]))
        for t, new in final
    )  # fmt: skip
    note = "the model computes something else now: train it on, then quadric.encrypted.check it"
    after = count_parameters(model)
    return ConversionReport("polynomial", converted, tuple(skipped), before, after, notes=(note,))


def _choose(model: nn.Module, request: Request) -> tuple[list[Target], list[Skipped]]:
    """The activations and maxima to replace; any module that `include` names is one."""
    include, exclude = Selector("include", request.include), Selector("exclude", request.exclude)
    chosen, skipped = [], []
    for target in collect(model, lambda m: not any(True for _ in m.children())):
        names, module = target.names, target.module
        known = is_activation(module) or is_maximum(module)
        wanted = include.matches(names, module) if request.include is not None else known
        if wanted and not exclude.matches(names, module):
            chosen.append(target)
        elif known:
            skipped.append(Skipped(target.name, type(module).__name__, "excluded or not included"))
    for selector in (include, exclude):
        if selector.unused() or not chosen:
            raise InputError(
                "activations='polynomial' needs modules such as nn.ReLU to replace, got "
                f"{', '.join(map(repr, selector.unused())) or 'a model'} without any: name them in "
                "include, and make calls such as F.relu in a forward modules first"
            )
    return chosen, skipped
