"""One warning when curvature takes a network over in its first steps of training."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from quadric.layers import QuadraticLayer
from quadric.share import quadratic_layers
from quadric.support.modules import check_model, unwrapped

_LOOKS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The forward passes of training that are looked at, counted from the first."""


class CurvatureWarning(UserWarning):
    """The squares of a layer drown its linear part, or its outputs grew tenfold."""


class Watch:
    """What `watch` gives back; `remove()` ends it, and it ends by itself after 100 steps.

    Attributes:
        warning: what was warned of, or None so far.
    """

    def __init__(self, layers: dict[str, QuadraticLayer], share: float, growth: float) -> None:
        self.warning: str | None = None
        self._share, self._growth = share, growth
        self._calls = dict.fromkeys(layers, 0)
        self._first: dict[str, tuple[float, float]] = {}
        self._hooks = [
            layer.register_forward_hook(self._hook(name)) for name, layer in layers.items()
        ]

    def remove(self) -> None:
        """Ends the watch."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, name: str) -> Any:
        def look(layer: QuadraticLayer, args: tuple[Tensor, ...], output: Tensor) -> None:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return
            self._calls[name] += 1
            if self._calls[name] in _LOOKS and args:
                with torch.no_grad():
                    self._look(name, layer, args[0], output)
            if min(self._calls.values()) >= _LOOKS[-1]:
                self.remove()

        return look

    def _look(self, name: str, layer: QuadraticLayer, input: Tensor, output: Tensor) -> None:
        linear, quadratic, _ = layer.responses(input)
        spreads = [float(part.float().var(correction=0)) for part in (linear, quadratic)]
        share = spreads[1] / max(sum(spreads), torch.finfo(torch.float32).tiny)
        size = float(output.float().square().mean().sqrt())
        started, before = self._first.setdefault(name, (share, size))
        grown = size / max(before, torch.finfo(torch.float32).tiny)
        steps = self._calls[name] - 1
        finite = all(abs(value) < float("inf") for value in (*spreads, size))
        if not finite:
            seen = "its outputs are not finite"
        elif share > self._share >= started:  # some neurons are all curvature from the start
            seen = f"squares make {share:.2f} of its variance (limit {self._share})"
        elif grown > self._growth:
            seen = f"its outputs grew {grown:.0f}-fold (limit {self._growth:g})"
        else:
            return
        remedy = "lower quadratic_lr (of quadric.param_groups or of the recipe)"
        if layer.blocks is not None and layer.eigenvalue_scale is None:
            remedy += ", or call quadric.calibrate_(model, batch) before training"
        self.warning = f"layer {name!r}: {seen} after {steps} steps of training: {remedy}"
        self.remove()
        warnings.warn(self.warning, CurvatureWarning, stacklevel=2)


def watch(model: nn.Module, share: float = 0.9, growth: float = 10.0) -> Watch:
    """Looks at the first hundred steps of training, and warns once if curvature takes over.

    The trainer of Quadric does this by itself. In a loop of your own, call it once before.

    Args:
        model: a model with quadratic layers.
        share: the part of a layer's variance that its squares may make.
        growth: how many times larger a layer's outputs may become.

    Returns:
        A handle: `.remove()` ends the watch, `.warning` is what was said.

    Raises:
        InputError: if the model has no quadratic layers.
        InputTypeError: if `model` is not a module.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> report = quadric.convert_(model)
        >>> handle = watch(model)
        >>> handle.remove()
    """
    check_model(model)
    return Watch(quadratic_layers(unwrapped(model)), share, growth)
