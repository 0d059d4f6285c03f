"""How much of a network's curvature is used: the quadratic share of every layer.

A quadratic network that behaves like a linear one has a share near 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer
from quadric.support.modules import (
    call_arguments,
    check_model,
    hooked,
    restored_eval,
    takes,
    unwrapped,
)
from quadric.support.texttable import text_table


@dataclass(frozen=True)
class LayerShare:
    """How much of one layer's variation is quadratic."""

    neuron: str  # the layer's neuron, by its name in the registry
    # The mean over its neurons of `Var(y2) / (Var(y1) + Var(y2))`, 0 to 1, where y1 is the linear
    # and y2 the quadratic part of an output. A neuron whose parts both do not vary has share 0.
    share: float
    # The mean over its neurons of the correlation of y1 and y2, -1 to 1; None where no neuron has
    # two parts that vary.
    correlation: float | None
    shares: tuple[float, ...] = field(repr=False)  # the share of each neuron
    # The correlation of each neuron, None where a part does not vary.
    correlations: tuple[float | None, ...] = field(repr=False)
    samples: int = 0  # how many values of each neuron were seen

    @property
    def num_neurons(self) -> int:
        """How many neurons the means are over."""
        return len(self.shares)


class QuadraticShare(dict[str, LayerShare]):
    """The shares of a model, by layer name; prints as a table.

    Attributes:
        unmeasured: the quadratic layers without a share, by name, each with the reason.
    """

    def __init__(self, layers: Mapping[str, LayerShare], unmeasured: Mapping[str, str]) -> None:
        super().__init__(layers)
        self.unmeasured = dict(unmeasured)

    @property
    def mean(self) -> float | None:
        """The mean share over the layers; None if no layer has one."""
        return _mean([layer.share for layer in self.values()])

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The layers as plain values, for JSON."""
        columns = ("neuron", "num_neurons", "share", "correlation")
        return {name: {c: getattr(layer, c) for c in columns} for name, layer in self.items()}

    def __str__(self) -> str:
        rows = [
            (
                name,
                layer.neuron,
                str(layer.num_neurons),
                f"{layer.share:.4f}",
                "-" if layer.correlation is None else f"{layer.correlation:+.3f}",
            )
            for name, layer in self.items()
        ]
        if self.mean is not None:
            rows.append(("mean over layers", "", "", f"{self.mean:.4f}", ""))
        header = ("layer", "neuron", "neurons", "share", "correlation")
        lines = [f"{name}: not measured, {why}" for name, why in self.unmeasured.items()]
        return "\n".join([text_table(header, rows, "llrrr"), *lines])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()}, unmeasured={self.unmeasured!r})"


def quadratic_layers(model: nn.Module) -> dict[str, QuadraticLayer]:
    """The quadratic layers of a model by name; there must be one."""
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, QuadraticLayer)
    }
    if not layers:
        raise InputError(
            f"the model must have a quadratic layer, got {type(model).__name__} without any: "
            "convert it first with quadric.convert_(model)"
        )
    return layers


def quadratic_share(
    model: nn.Module, batches: Iterable[Any] | Tensor | Mapping[str, Any]
) -> QuadraticShare:
    """Measures, layer by layer, how much of the neurons' output is quadratic.

    Each neuron's output is split into its linear part y1 and its quadratic part y2. Its share is
    ``Var(y2) / (Var(y1) + Var(y2))`` over all samples and positions: 0 where the curvature is not
    used, 1 where nothing else is. The correlation says whether the two parts support (positive) or
    cancel (negative) each other. The model runs in eval mode without gradients and is left as it
    was.

    Args:
        model: a model with quadratic layers.
        batches: any iterable of batches, for example a DataLoader or a list of tensors; a single
            tensor or mapping is one batch. A batch is a tensor, a tuple of several arguments, or a
            mapping of keyword arguments. Where the model takes the first entry of a tuple or list
            alone, the rest are labels; that entry may again be a tuple, a list or a mapping.
            Tensors are moved to the device of the model. Everything is read in one pass and
            nothing is kept, so that any number of batches fits.

    Returns:
        The share and the correlation of every layer.

    Raises:
        InputError: if the model has no quadratic layers, or there is no batch.
        InputTypeError: if `model` is not a module, or `batches` is no iterable.

    Examples:
        >>> from quadric.layers import QuadraticLinear
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(QuadraticLinear(4, 20, rank=9), nn.ReLU(), nn.Linear(20, 1))
        >>> report = quadratic_share(model, [torch.randn(32, 4) for _ in range(3)])
        >>> print(report)  # fresh eigenvalues are zero: a linear network so far
        layer             neuron  neurons   share  correlation
        ----------------  ------  -------  ------  -----------
        0                 eigen         2  0.0000            -
        mean over layers                   0.0000
    """
    check_model(model)
    if isinstance(batches, (Tensor, Mapping)):
        batches = [batches]
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise InputTypeError(
            f"batches must be an iterable of batches, got one {type(batches).__name__}: "
            "give a list of tensors or a DataLoader."
        )
    # Hooks added to an already compiled module may never be called: run what it was compiled from.
    model = unwrapped(model)
    layers = quadratic_layers(model)
    unmeasured: dict[str, str] = {}
    moments = {name: _Moments() for name in layers}
    seen = _run(model, batches, {layers[name]: moment for name, moment in moments.items()})
    if not seen:
        raise InputError(
            "batches must hold at least one batch, got none: "
            "give a list or a DataLoader, and not a generator that was read already."
        )
    measured: dict[str, LayerShare] = {}
    for name, moment in moments.items():
        if not moment.count:
            unmeasured[name] = "the forward pass never called it"
        elif not moment.finite:
            unmeasured[name] = "its outputs are NaN or infinite"
        else:
            measured[name] = moment.layer_share(layers[name].neuron)
    return QuadraticShare(measured, unmeasured)


def _run(model: nn.Module, batches: Iterable[Any], moments: dict[nn.Module, _Moments]) -> int:
    """Runs all batches and lets the moments add up; returns how many batches there were."""
    device = next(model.parameters()).device
    hooks = [layer.register_forward_hook(m.see, with_kwargs=True) for layer, m in moments.items()]
    seen = 0
    # A compiled submodule would not call the hooks.
    eager = torch.compiler.set_stance("force_eager")
    with hooked(hooks), restored_eval(model), torch.no_grad(), eager:
        for batch in batches:
            arguments = _arguments(model, batch)
            args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), arguments)
            model(*args, **kwargs)
            seen += 1
    return seen


class _Moments:
    """Sums over all samples of the two parts, their squares and their product.

    They are taken around the mean of the first batch, so that little is lost when the square of the
    mean is subtracted from them.
    """

    def __init__(self) -> None:
        self.count, self.noise = 0, 0.0
        self.origin = self.sums = torch.zeros(())

    def see(self, layer: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """A forward hook that adds the two parts of one call."""
        linear, quadratic, _ = layer.responses(args[0] if args else next(iter(kwargs.values())))
        # float64 on the CPU where the device has none
        device = "cpu" if linear.device.type == "mps" else linear.device
        parts = torch.stack([linear, quadratic]).movedim(layer.linear_op.channel_dim, 1)
        # (2, neurons, samples)
        parts = parts.reshape(2, parts.shape[1], -1).to(device, torch.float64)
        if not parts.shape[-1]:
            return
        if not self.count:
            self.origin = parts.mean(-1, keepdim=True)
        one, two = parts - self.origin
        sums = [value.sum(-1) for value in (one, two, one * one, two * two, one * two)]
        self.sums = self.sums + torch.stack(sums)
        self.count += parts.shape[-1]
        self.noise = max(self.noise, torch.finfo(linear.dtype).eps)

    @property
    def finite(self) -> bool:
        """Whether all that was added is finite."""
        return bool(torch.isfinite(self.sums).all())

    def layer_share(self, neuron: str) -> LayerShare:
        """The result for a layer of this neuron."""
        shift = self.sums[:2] / self.count
        deviation = self.sums[2:4] - self.count * shift.square()
        together = self.sums[4] - self.count * shift.prod(0)
        # A part that varies by less than the rounding of its own dtype does not vary.
        floor = (self.noise * (self.origin[..., 0] + shift)).square() * self.count
        deviation = torch.where(deviation > floor, deviation, 0.0)
        total = deviation.sum(0)
        shares = deviation[1] / torch.where(total > 0, total, 1.0)
        varies = (deviation > 0).all(0)
        # The roots apart, as the product of two small sums could vanish.
        scale = torch.where(varies, deviation, 1.0).sqrt().prod(0)
        pairs = zip((together / scale).clamp(-1, 1).tolist(), varies.tolist(), strict=True)
        correlations = [value if known else None for value, known in pairs]
        return LayerShare(
            neuron=neuron,
            share=float(shares.mean()),
            correlation=_mean([value for value in correlations if value is not None]),
            shares=tuple(shares.tolist()),
            correlations=tuple(correlations),
            samples=self.count,
        )


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _arguments(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that a batch stands for."""
    if not isinstance(batch, (tuple, list)):
        return call_arguments(model, batch)
    if not batch:
        raise InputError("a batch must hold an input, got an empty one: give (input, ...).")
    first = tuple(batch[0]) if isinstance(batch[0], list) else batch[0]
    args, kwargs = call_arguments(model, first)
    if takes(model, *args, **kwargs):
        return args, kwargs
    return call_arguments(model, tuple(batch))
