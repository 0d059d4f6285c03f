"""Training a quadratic network: its parameters in groups, and how much of its curvature is used.

The paper trains the eigenvalues with their own, smaller learning rate: a square grows faster than a
linear term, so a step that is right for a weight is too long for an eigenvalue. `param_groups`
makes that split for any model and any neuron, because every layer declares its quadratic
parameters. `quadratic_share` measures the other side: a quadratic network that behaves like a
linear one has a share near 0.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from quadric.errors import InputError, InputTypeError
from quadric.nn import QuadraticLayer
from quadric.zoo import get_neuron

# The paper's ratio with SGD is 1/1000 and smaller; a tenth also learns in short trainings.
_LR_OVER_QUADRATIC_LR = 10

_NORM = re.compile(r"norm(\dd)?$", re.IGNORECASE)


def param_groups(
    model: nn.Module,
    lr: float | Tensor,
    quadratic_lr: float | Tensor | None = None,
    weight_decay: float = 0.0,
    quadratic_weight_decay: float = 0.0,
    only: str | None = None,
    *,
    decay_bias_and_norm: bool = True,
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: the quadratic parameters apart from the others.

    Each parameter that requires a gradient is in exactly one group, shared ones too. A group has a
    `name`, which optimizers and schedulers pass on: `"linear"`, `"linear_no_decay"`, `"quadratic"`;
    groups that would be empty are left out. An optimizer that takes one group alone, as LBFGS
    does, gets `model.parameters()`, or the quadratic parameters with `only="quadratic"`.

    Args:
        model: any module, with or without quadratic layers.
        lr: the learning rate of all that is not quadratic.
        quadratic_lr: the learning rate of the quadratic parameters. None means ``0.1 * lr``, which
            is right for SGD; with Adam and its kin, whose steps do not depend on the gradient's
            scale, give ``quadratic_lr=lr``.
        weight_decay: the decay of all that is not quadratic.
        quadratic_weight_decay: the decay of the quadratic parameters.
        only: `"quadratic"` for those groups alone: an adapter of about one number per channel. The
            other parameters are not in any group, so that they stay; `requires_grad` is not
            touched.
        decay_bias_and_norm: with False, biases, the parameters of normalization layers and all
            else that is not quadratic and has fewer than two dimensions get no decay.

    Examples:
        >>> from torch import nn
        >>> from quadric.nn import QuadraticLinear
        >>> model = nn.Sequential(QuadraticLinear(8, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> groups = param_groups(model, lr=0.1)
        >>> [(group["name"], len(group["params"]), group["lr"]) for group in groups]
        [('linear', 4, 0.1), ('quadratic', 1, 0.01)]
        >>> optimizer = torch.optim.SGD(groups, momentum=0.9)
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: "
            "pass the model itself, not its parameters."
        )
    if only not in (None, "quadratic"):
        raise InputError(
            f"only must be None or 'quadratic', got {only!r}: leave it out to train everything."
        )
    _check_number("lr", lr)
    if quadratic_lr is None:
        quadratic_lr = lr / _LR_OVER_QUADRATIC_LR
    else:
        _check_number("quadratic_lr", quadratic_lr)
    _check_number("weight_decay", weight_decay)
    _check_number("quadratic_weight_decay", quadratic_weight_decay)

    quadratic_ids = _quadratic_ids(model)
    without_decay = set() if decay_bias_and_norm else _bias_and_norm_ids(model)
    linear: list[nn.Parameter] = []
    linear_no_decay: list[nn.Parameter] = []
    quadratic: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"every parameter must be initialized, got the lazy parameter {name!r}: "
                "run one batch through the model first."
            )
        if not parameter.requires_grad:
            continue
        if id(parameter) in quadratic_ids:
            quadratic.append(parameter)
        elif id(parameter) in without_decay:
            linear_no_decay.append(parameter)
        else:
            linear.append(parameter)

    if only == "quadratic" and not quadratic:
        if quadratic_ids:
            raise InputError(
                "only='quadratic' needs a quadratic parameter that requires a gradient, got "
                "a model where all are frozen: call requires_grad_(True) on them."
            )
        raise InputError(
            "only='quadratic' needs a model with quadratic layers, got "
            f"{type(model).__name__} without any: convert it first with quadric.convert_(model)."
        )
    groups = [
        _group("linear", linear, lr, weight_decay),
        _group("linear_no_decay", linear_no_decay, lr, 0.0),
    ]
    groups = [] if only == "quadratic" else groups
    groups.append(_group("quadratic", quadratic, quadratic_lr, quadratic_weight_decay))
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise InputError(
            f"model must have a parameter that requires a gradient, got {type(model).__name__} "
            "without any: unfreeze what is to be trained with requires_grad_(True)."
        )
    return groups


def _group(
    name: str, params: list[nn.Parameter], lr: float | Tensor, weight_decay: float
) -> dict[str, Any]:
    # Schedulers write into a tensor learning rate in place: each group has its own.
    lr = lr.clone() if isinstance(lr, Tensor) else lr
    return {"params": params, "lr": lr, "weight_decay": weight_decay, "name": name}


def _check_number(name: str, value: object) -> None:
    """Torch checks the optimizer's own defaults but not what a group brings."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputTypeError(f"{name} must be a number, got {value!r}: give a number >= 0.")
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{name} must be finite and >= 0, got {value}: give a number >= 0.")


def _quadratic_ids(model: nn.Module) -> set[int]:
    """The identities of all quadratic parameters of all layers."""
    found: set[int] = set()
    for layer in model.modules():
        if not isinstance(layer, QuadraticLayer):
            continue
        found.update(id(parameter) for parameter in layer.quadratic_parameters().values())
        # Under a parametrization the attribute is computed; what is trained lies underneath.
        for name, underneath in getattr(layer, "parametrizations", {}).items():
            if name in get_neuron(layer.neuron).quadratic:
                found.update(id(parameter) for parameter in underneath.parameters())
    return found


def _bias_and_norm_ids(model: nn.Module) -> set[int]:
    found: set[int] = set()
    for module in model.modules():
        # By name, as many libraries write their own: BatchNorm2d, LlamaRMSNorm, and what inherits.
        is_norm = any(_NORM.search(cls.__name__) for cls in type(module).__mro__)
        for name, parameter in module.named_parameters(recurse=False):
            if is_norm or "bias" in name or (not is_lazy(parameter) and parameter.dim() < 2):
                found.add(id(parameter))
    return found


@dataclass(frozen=True)
class LayerShare:
    """How much of one layer's variation is quadratic.

    Attributes:
        neuron: the layer's neuron, by its name in the registry.
        share: the mean over its neurons of ``Var(y2) / (Var(y1) + Var(y2))``, 0 to 1, where y1 is
            the linear and y2 the quadratic part of an output. A neuron whose parts both do not
            vary has share 0.
        correlation: the mean over its neurons of the correlation of y1 and y2, -1 to 1; None where
            no neuron has two parts that vary.
        shares: the share of each neuron.
        correlations: the correlation of each neuron, None where a part does not vary.
        samples: how many values of each neuron were seen.
    """

    neuron: str
    share: float
    correlation: float | None
    shares: tuple[float, ...] = field(repr=False)
    correlations: tuple[float | None, ...] = field(repr=False)
    samples: int = 0

    @property
    def num_neurons(self) -> int:
        """How many neurons the means are over."""
        return len(self.shares)


class QuadraticShare(Mapping[str, LayerShare]):
    """The shares of a model, by layer name; prints as a table.

    Attributes:
        unmeasured: the quadratic layers without a share, by name, each with the reason.
    """

    def __init__(self, layers: dict[str, LayerShare], unmeasured: dict[str, str]) -> None:
        self._layers = dict(layers)
        self.unmeasured = dict(unmeasured)

    def __getitem__(self, name: str) -> LayerShare:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def mean(self) -> float | None:
        """The mean share over the layers; None if no layer has one."""
        return _mean([layer.share for layer in self._layers.values()])

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The layers as plain values, for JSON."""
        return {
            name: {
                "neuron": layer.neuron,
                "num_neurons": layer.num_neurons,
                "share": layer.share,
                "correlation": layer.correlation,
            }
            for name, layer in self._layers.items()
        }

    def __str__(self) -> str:
        rows = [("layer", "neuron", "neurons", "share", "correlation")]
        for name, layer in self._layers.items():
            correlation = "-" if layer.correlation is None else f"{layer.correlation:+.3f}"
            rows.append(
                (name, layer.neuron, str(layer.num_neurons), f"{layer.share:.4f}", correlation)
            )
        if self.mean is not None:
            rows.append(("mean over layers", "", "", f"{self.mean:.4f}", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines += [f"{name}: not measured, {why}" for name, why in self.unmeasured.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._layers!r}, unmeasured={self.unmeasured!r})"


def quadratic_share(model: nn.Module, batches: Iterable[Any]) -> QuadraticShare:
    """Measure, layer by layer, how much of what the neurons say is quadratic.

    Each neuron's output is split into its linear part y1 and its quadratic part y2. Its share is
    ``Var(y2) / (Var(y1) + Var(y2))`` over all samples and positions: 0 where the curvature is not
    used, 1 where nothing else is. The correlation says whether the two parts support (positive) or
    cancel (negative) each other. The model runs in eval mode without gradients and is left as it
    was.

    Args:
        model: a model with quadratic layers.
        batches: any iterable of batches, for example a DataLoader or a list of tensors. Of a tuple
            or list the first entry is the input; a mapping is passed as keyword arguments; an input
            that is itself a tuple or list is passed as several arguments. Tensors are moved to the
            device of the model. Everything is read in one pass and nothing is kept, so that any
            number of batches fits.

    Examples:
        >>> from quadric.nn import QuadraticLinear
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(QuadraticLinear(4, 20, rank=9), nn.ReLU(), nn.Linear(20, 1))
        >>> report = quadratic_share(model, [torch.randn(32, 4) for _ in range(3)])
        >>> print(report)  # fresh eigenvalues are zero: a linear network so far
        layer             neuron  neurons   share  correlation
        0                 eigen         2  0.0000            -
        mean over layers                   0.0000
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: pass the model itself."
        )
    if isinstance(batches, (Tensor, Mapping, str)) or not isinstance(batches, Iterable):
        raise InputTypeError(
            f"batches must be an iterable of batches, got one {type(batches).__name__}: "
            "put a single batch into a list."
        )
    # Hooks added to an already compiled module may never be called: run what it was compiled from.
    model = getattr(model, "_orig_mod", model)
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, QuadraticLayer)
    }
    if not layers:
        raise InputError(
            f"model must have a quadratic layer, got {type(model).__name__} without any: "
            "convert it first with quadric.convert_(model)."
        )
    unmeasured = {
        name: f"the neuron {layer.neuron!r} has no split into linear and quadratic parts"
        for name, layer in layers.items()
        if type(layer).responses is QuadraticLayer.responses
    }
    moments = {name: _Moments() for name in layers if name not in unmeasured}
    device = next(iter(model.parameters())).device
    seen = 0
    with _observing(model, {name: layers[name] for name in moments}, moments):
        for batch in batches:
            args, kwargs = _arguments(batch)
            model(*_to(device, args), **_to(device, kwargs))
            seen += 1
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


class _Moments:
    """Running means, variances and covariance of two parts, merged batch by batch.

    Chan's update in float64: sums of squares around the mean, never the difference of two large
    numbers, so that a part with a large mean and a small variance keeps its digits.
    """

    def __init__(self) -> None:
        self.count = 0
        # Rows: linear part, quadratic part; columns: neurons.
        self.mean = torch.zeros(())
        self.deviation = torch.zeros(())  # sums of squares around the mean
        self.together = torch.zeros(())  # sums of products around the means
        self.noise = 0.0

    def add(self, linear: Tensor, quadratic: Tensor, channel_dim: int) -> None:
        # float64 on the CPU where the device has none
        device = "cpu" if linear.device.type == "mps" else linear.device
        parts = torch.stack(
            [
                part.movedim(channel_dim, 0).flatten(1).to(device, torch.float64)
                for part in (linear, quadratic)
            ]
        )  # (2, neurons, samples)
        count = parts.shape[-1]
        if not count:
            return
        mean = parts.mean(-1)
        centered = parts - mean.unsqueeze(-1)
        deviation = centered.square().sum(-1)
        together = centered.prod(0).sum(-1)
        if not self.count:
            self.mean, self.deviation, self.together = mean, deviation, together
        else:
            shift = mean - self.mean
            total = self.count + count
            weight = self.count * count / total
            self.mean = self.mean + shift * (count / total)
            self.deviation = self.deviation + deviation + shift.square() * weight
            self.together = self.together + together + shift.prod(0) * weight
        self.count += count
        self.noise = max(self.noise, torch.finfo(linear.dtype).eps)

    @property
    def finite(self) -> bool:
        return bool(torch.isfinite(self.deviation).all())

    def layer_share(self, neuron: str) -> LayerShare:
        # A part that varies by less than the rounding of its own dtype does not vary.
        floor = (self.noise * self.mean).square() * self.count
        deviation = torch.where(self.deviation > floor, self.deviation, 0.0)
        total = deviation.sum(0)
        shares = deviation[1] / torch.where(total > 0, total, 1.0)
        varies = (deviation > 0).all(0)
        # The roots apart, as the product of two small sums could vanish.
        scale = torch.where(varies, deviation, 1.0).sqrt().prod(0)
        correlations = [
            value if known else None
            for value, known in zip(
                (self.together / scale).clamp(-1, 1).tolist(), varies.tolist(), strict=True
            )
        ]
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


@contextlib.contextmanager
def _observing(
    model: nn.Module, layers: dict[str, QuadraticLayer], moments: dict[str, _Moments]
) -> Iterator[None]:
    """Eval mode, no gradients, a hook on each layer; all of it undone at the end."""

    def observer(moment: _Moments) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            linear, quadratic, _ = layer.responses(x)
            moment.add(linear, quadratic, layer.linear_map.channel_dim)

        return hook

    training = [(module, module.training) for module in model.modules()]
    handles = []
    try:
        for name, layer in layers.items():
            hook = observer(moments[name])
            handles.append(layer.register_forward_hook(hook, with_kwargs=True))
        model.eval()
        # A compiled submodule would not see the hooks either.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in training:
            module.training = mode


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that a batch stands for."""
    if isinstance(batch, (tuple, list)):
        if not batch:
            raise InputError("a batch must hold an input, got an empty one: give (input, ...).")
        batch = batch[0]
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return (batch,), {}


def _to(device: torch.device, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _to(device, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_to(device, item) for item in value)
    return value
