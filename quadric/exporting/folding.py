"""Folding a BatchNorm into the layer in front of it, exactly, for inference.

In eval mode a BatchNorm is a scale a and a shift c for each channel. Behind a linear layer it
disappears into weight and bias. Behind a quadratic layer more is to be done, because what is
shifted is squared:

- eigen. The new features are f' = a_f f + c_f, so q' = a_f q and b_f' = a_f b_f + c_f. In
  a_y (w'x + b + sum lambda f^2) + c_y replace f by (f' - c_f) / a_f: with
  lambda' = a_y lambda / a_f^2 the squares are
  lambda' (f'^2 - 2 c_f f' + c_f^2), whose last two terms are linear in x: w takes up
  -2 sum lambda' c_f q' and b takes up -2 sum lambda' c_f b_f' + sum lambda' c_f^2.
- shared, square. z' = a z, so W' = aW, b' = ab and L'_ij = a_i L_ij / a_j^2. There is no channel
  left to hide c in: it is added behind the squares by a `ChannelShift`.

Both divide by the features' scales. A layer with a scale of about zero keeps its BatchNorm.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from quadric.errors import InputTypeError
from quadric.exporting.following import (
    Leaf,
    Pair,
    check_eval,
    find_pairs,
    is_ours,
    is_touched,
    places_of,
    several_places,
)
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.ops.maps import ConvMap, DenseMap, Map, TransposedConvMap
from quadric.zoo import NeuronLayer
from quadric.zoo.shared import Shared, Square

CANCELLATION = 100.0
"""A folded eigen neuron adds constants sum |lambda'| c_f^2 that cancel again. Above so many
standard deviations of its output the rounding of these sums would be felt."""

SMALLEST_SCALE = 1e-6
"""Features are not divided by a smaller standard deviation than this: their squares would leave the
range of float32."""

_SPATIAL: dict[type[nn.Module], int] = {
    nn.Linear: 0,
    nn.Conv1d: 1,
    nn.Conv2d: 2,
    nn.Conv3d: 3,
    nn.ConvTranspose1d: 1,
    nn.ConvTranspose2d: 2,
    nn.ConvTranspose3d: 3,
}


_KNOWN_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


class ChannelShift(Leaf):
    """Adds a constant to each channel: what is left of a BatchNorm behind a shared layer.

    Args:
        shift: one number for each channel.
        dim: the channel dimension, counted from the end.
    """

    shift: Tensor

    def __init__(self, shift: Tensor, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("shift", shift)

    def forward(self, input: Tensor) -> Tensor:
        shift = self.shift.reshape(-1, *(1,) * (-1 - self.dim))
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return input + shift
        # The layer in front made this tensor for us alone.
        return input.add_(shift)

    def extra_repr(self) -> str:
        return f"{self.shift.numel()}, dim={self.dim}"


@dataclass(frozen=True)
class FoldingReport:
    """What `fold_batchnorm_` did.

    Attributes:
        folded: the layers that took up a BatchNorm, and its name.
        shifts: those of them whose BatchNorm became a `ChannelShift`, and its name.
        kept: every BatchNorm that is still there, and why.
    """

    folded: dict[str, str] = field(default_factory=dict)
    shifts: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.folded)} BatchNorm folded, {len(self.kept)} kept"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.kept.items()])


def fold_batchnorm_(model: nn.Module, example_inputs: Any = None) -> FoldingReport:
    """Folds every BatchNorm that directly follows a linear, eigen, shared or square layer into it.

    The model computes what it computed, up to rounding, in eval mode. It is for inference: it is no
    longer the network that was trained. A BatchNorm is folded only where it alone reads the
    layer's output; each one that stays is reported with its reason.

    Args:
        model: in eval mode; changed in place.
        example_inputs: a tensor, a tuple or a mapping. They are needed for networks that torch.fx
            cannot trace, and to tell behind a Linear or a Conv1d which dimension is normalized.
            Where torch.fx cannot trace, what this one run shows counts: a network that takes
            another way with other inputs (`if x.shape[0] > 4`) must not be folded.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.ReLU()).eval()
        >>> report = quadric.convert_(model)
        >>> fold_batchnorm_(model).folded
        {'0': '1'}
        >>> type(model[1]).__name__
        'Identity'
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    report = FoldingReport()
    places = places_of(model)
    norms = [p for p in places.values() if isinstance(p.module, _BatchNorm)]
    if not norms:
        return report
    check_eval(model, "fold its BatchNorm")
    found = find_pairs(model, places, example_inputs, _layer_types(), (_BatchNorm,))
    several = several_places(model)
    for norm in norms:
        pair = found.get(id(norm.module))
        if pair is None:
            report.kept[norm.name] = "it does not alone read the output of one layer"
            continue
        twice = [p.name for p in (pair.layer, pair.reader) if id(p.module) in several]
        obstacle = f"{twice[0]!r} stands in several places" if twice else _obstacle(pair)
        new = None if obstacle else _folded(pair.layer.module, norm.module)
        if isinstance(new, _Folded):
            _apply(pair, new, report)
        else:
            report.kept[norm.name] = obstacle or str(new)
    return report


def _layer_types() -> tuple[type[nn.Module], ...]:
    return (QuadraticLayer, *_SPATIAL)


# ------------------------------------------------------------------------------------------------
# Whether a pair can be folded
# ------------------------------------------------------------------------------------------------


def _obstacle(pair: Pair) -> str | None:
    """Why a pair must stay as it is, apart from its numbers."""
    layer, norm = pair.layer.module, pair.reader.module
    assert isinstance(norm, _BatchNorm)
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics: in eval mode too it normalizes by the batch"
    if isinstance(layer, NeuronLayer) and not isinstance(layer.rule, (Shared, Square)):
        return f"the neuron {layer.neuron!r} cannot take up a scale and a shift"
    if not isinstance(layer, (EigenLayer, NeuronLayer)) and type(layer) not in _SPATIAL:
        return f"{type(layer).__name__} is not a layer whose formula is known"
    for module in (layer, norm):
        if is_touched(module):
            return f"{type(module).__name__} has hooks, or a forward of its own"
        if parametrize.is_parametrized(module):
            return "a parameter of the layer is computed (a parametrization)"
    if "weight" not in layer._parameters:
        return "the weight of the layer is computed (weight or spectral norm)"
    if not is_ours(layer) and type(layer) not in _SPATIAL:
        return f"{type(layer).__name__} is a subclass that may compute something else"
    if type(norm).forward not in _KNOWN_FORWARDS:
        return f"{type(norm).__name__} is a subclass with a forward of its own"
    spatial = _spatial(layer)
    if pair.dims is None and spatial < 2:
        return (
            "without example_inputs nobody knows whether it normalizes the layer's outputs: give "
            "them"
        )
    if pair.dims is not None and pair.dims != spatial + 2:
        return "it normalizes another dimension than the layer's outputs"
    tensors = [*layer._parameters.values(), norm.running_mean]
    if any(t is not None and t.is_meta for t in tensors):
        return "there are no numbers on the meta device"
    return None


def _spatial(layer: nn.Module) -> int:
    if isinstance(layer, QuadraticLayer):
        return -1 - layer.linear_map.channel_dim
    return _SPATIAL[type(layer)]


def linear_map_of(layer: nn.Module) -> Map:
    """The linear map of a torch layer or of a quadratic one."""
    own: Any = layer
    if isinstance(layer, QuadraticLayer):
        return layer.linear_map
    if isinstance(layer, nn.Linear):
        return DenseMap()
    arguments = {"stride": own.stride, "padding": own.padding, "dilation": own.dilation}
    if own.transposed:
        return TransposedConvMap(
            len(own.kernel_size),
            **arguments,
            groups=own.groups,
            output_padding=own.output_padding,
        )
    return ConvMap(
        len(own.kernel_size),
        **arguments,
        groups=own.groups,
        padding_mode=own.padding_mode,
        kernel_size=own.kernel_size,
    )


# ------------------------------------------------------------------------------------------------
# The formulas
# ------------------------------------------------------------------------------------------------


@dataclass
class _Folded:
    """The new parameters of a layer, in float64: filters (outputs, inputs of a neuron)."""

    filters: Tensor
    bias: Tensor
    eigenvalues: Tensor | None = None
    shift: Tensor | None = None


@torch.no_grad()
def _folded(layer: nn.Module, norm: nn.Module) -> _Folded | str:
    """A layer with the BatchNorm behind it as one, or why that cannot be."""
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    own: Any = layer
    linear_map = linear_map_of(layer)
    weight = own.weight.double()
    filters = linear_map.filters(weight)
    if norm.num_features != filters.shape[0]:
        return "it normalizes another dimension than the layer's outputs"
    spread = (norm.running_var.double() + norm.eps).sqrt()
    gain = torch.ones_like(spread) if norm.weight is None else norm.weight.double()
    scale = gain / spread
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    bias = torch.zeros_like(scale) if own.bias is None else own.bias.double()
    if isinstance(layer, EigenLayer):
        new = _eigen(layer, filters, bias, scale, shift, spread, gain)
    elif isinstance(layer, NeuronLayer):
        new = _mixed(layer, filters, bias, scale, shift, gain)
    else:
        new = _Folded(scale[:, None] * filters, scale * bias + shift)
    if isinstance(new, str):
        return new
    limit = torch.finfo(weight_dtype(layer)).max / 2
    for values in (new.filters, new.bias, new.eigenvalues, new.shift):
        if values is not None and not bool((values.abs() < limit).all()):
            return "the folded parameters are not finite in the dtype of the layer"
    return new


def weight_dtype(layer: nn.Module) -> torch.dtype:
    """The dtype of a layer's weight."""
    own: Any = layer
    dtype: torch.dtype = own.weight.dtype
    return dtype


def eigenvalue_places(layer: QuadraticLayer) -> tuple[Tensor, Tensor]:
    """For each eigenvalue of a layer: its output channel and its feature channel."""
    assert layer.blocks is not None
    return layer.blocks.places(layer.effective_eigenvalues().device)


def _eigen(
    layer: EigenLayer,
    filters: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    spread: Tensor,
    gain: Tensor,
) -> _Folded | str:
    owners, features = eigenvalue_places(layer)
    # In float64 before |q|^2 is taken, where the eigenvalues are normalized.
    lam = copy.deepcopy(layer).double().effective_eigenvalues()
    a_f, c_f = scale[features], shift[features]
    # 0 / 0 where a feature has neither scale nor eigenvalue: it takes no part.
    ratio = torch.where(lam == 0, 0.0, lam / a_f.square())
    cancelling = torch.zeros_like(scale).index_add_(0, owners, ratio.abs() * c_f.square())
    if not bool((cancelling <= CANCELLATION * spread).all()) or _vanishing(gain[features], lam):
        return "some of its scales are about zero, and the squares would be divided by them"
    new_lam = scale[owners] * ratio
    new_filters = scale[:, None] * filters
    new_bias = scale * bias + shift
    q, b_f = new_filters[features], new_bias[features]
    cross = new_lam * c_f
    new_filters = new_filters.index_add(0, owners, -2 * cross[:, None] * q)
    new_bias = new_bias.index_add(0, owners, cross * (c_f - 2 * b_f))
    return _Folded(new_filters, new_bias, new_lam)


def _vanishing(gain: Tensor, lam: Tensor) -> bool:
    """Whether some feature that is squared has a scale of about zero."""
    return bool(((gain.abs() < SMALLEST_SCALE) & (lam != 0)).any())


def _mixed(
    layer: NeuronLayer,
    filters: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    gain: Tensor,
) -> _Folded | str:
    """shared and square."""
    lam = layer.parameter("eigenvalues").double()
    rows, columns = eigenvalue_places(layer)
    if _vanishing(gain[columns], lam):
        return "some of its scales are about zero, and the squares would be divided by them"
    new_lam = torch.where(lam == 0, 0.0, scale[rows] * lam / scale[columns].square())
    return _Folded(scale[:, None] * filters, scale * bias, new_lam, shift)


@torch.no_grad()
def _apply(pair: Pair, new: _Folded, report: FoldingReport) -> None:
    layer: Any = pair.layer.module
    linear_map = linear_map_of(layer)
    old = layer.weight
    wanted = bool(old.requires_grad)

    def parameter(values: Tensor) -> nn.Parameter:
        # New objects: the old ones may be shared with another layer.
        return nn.Parameter(values.to(old.dtype).contiguous(), requires_grad=wanted)

    weight = linear_map.weight_of(new.filters, old)
    channels_last = old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last)
    layer.weight = parameter(weight)
    if channels_last:
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    layer.bias = parameter(new.bias)
    if new.eigenvalues is not None:
        layer.eigenvalues = parameter(new.eigenvalues)
    if isinstance(layer, EigenLayer):
        layer.normalize = False
    replacement: nn.Module = nn.Identity()
    if new.shift is not None:
        replacement = ChannelShift(new.shift.to(old.dtype), linear_map.channel_dim)
        report.shifts[pair.layer.name] = pair.reader.name
    pair.reader.put(replacement.eval())
    report.folded[pair.layer.name] = pair.reader.name
