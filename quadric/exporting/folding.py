"""Folding a BatchNorm into the layer before it, exactly, for inference.

In eval mode a BatchNorm is a scale a and a shift c for each channel. After a linear layer it
disappears into weight and bias. After z + S z^2 there is more to do, because what is shifted is
squared. For all neurons W' = aW, b' = ab and S'_ij = a_i S_ij / a_j^2, which leaves the shift:

- eigen. The new features are f' = a_f f + c_f, so their biases take up c_f. Then
  lambda (f' - c_f)^2 = lambda (f'^2 - 2 c_f f' + c_f^2) has two more terms, which are linear in x:
  w takes up -2 sum lambda' c_f q', and b takes up c_y + sum lambda' c_f (c_f - 2 b_f').
- shared, square. All channels are squared, so none can take up c: a `ChannelShift` adds it after
  the squares.

Both divide by the features' scales. A layer with a scale of about zero keeps its BatchNorm.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from quadric.conversion.targets import collect, look_around
from quadric.errors import InputError
from quadric.exporting.batchnorm_pairs import Pair, find_pairs, is_touched
from quadric.layers import QuadraticLayer, layer_kind
from quadric.ops.linear_ops import ConvOp, DenseOp, LinearOp, TransposedConvOp
from quadric.support.modules import check_model

CANCELLATION = 100.0
"""A folded eigen neuron adds constants sum |lambda'| c_f^2 that cancel again. Above this many
standard deviations of its output, their rounding would show."""

SMALLEST_SCALE = 1e-6
"""Features are not divided by a smaller scale than this: their squares would leave the range of
float32."""

_KNOWN_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
_ABOUT_ZERO = "some of its scales are about zero, and the squares would be divided by them"
_OTHER_DIMENSION = "it normalizes another dimension than the layer's outputs"


class ChannelShift(nn.Module):
    """Adds a constant to each channel: what is left of a BatchNorm after a shared layer."""

    shift: Tensor

    def __init__(self, shift: Tensor, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("shift", shift)

    def forward(self, input: Tensor) -> Tensor:
        """Adds the constants."""
        return input + self.shift.reshape(-1, *(1,) * (-1 - self.dim))

    def extra_repr(self) -> str:
        """The number of channels, and their dimension."""
        return f"{self.shift.numel()}, dim={self.dim}"


@dataclass(frozen=True)
class FoldingReport:
    """What `fold_batchnorm_` did."""

    # The layers that took up a BatchNorm, and its name.
    folded: dict[str, str] = field(default_factory=dict)
    # Those of them whose BatchNorm became a `ChannelShift`, and its name.
    shifts: dict[str, str] = field(default_factory=dict)
    # Every BatchNorm that is still there, and why.
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.folded)} BatchNorm folded, {len(self.kept)} kept"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.kept.items()])


def fold_batchnorm_(model: nn.Module, example_inputs: Any) -> FoldingReport:
    """Folds every BatchNorm that directly follows a linear, eigen, shared or square layer into it.

    The model computes what it computed, up to rounding, in eval mode. It is for inference: it is no
    longer the network that was trained. A BatchNorm is folded only where it alone reads the layer's
    output; each one that stays is reported with its reason.

    Args:
        model: in eval mode; changed in place.
        example_inputs: the arguments of `model.forward`: a tensor, a tuple or a mapping. One run
            with them shows who reads what: a network that takes another path with other inputs
            (`if x.shape[0] > 4`) must not be folded.

    Returns:
        What was folded, and what was not, with the reason.

    Raises:
        InputError: if a part of the model is in training mode, or the inputs do not fit.
        InputTypeError: if the model is no module.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.ReLU()).eval()
        >>> report = quadric.convert_(model)
        >>> fold_batchnorm_(model, torch.randn(2, 1, 5, 5)).folded
        {'0': '1'}
        >>> type(model[1]).__name__
        'Identity'
    """
    check_model(model)
    report = FoldingReport()
    targets = {id(target.module): target for target in collect(model, lambda module: True)}
    norms = [target for target in targets.values() if isinstance(target.module, _BatchNorm)]
    if not norms:
        return report
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise InputError(
            "the model must be in eval mode to fold its BatchNorm, got "
            f"{repr(training) if training else 'the model'} in training mode: call model.eval() "
            "first"
        )
    pairs, held = find_pairs(model, targets, example_inputs), look_around(model).held
    for norm in norms:
        pair = pairs.get(id(norm.module))
        if pair is None:
            report.kept[norm.name] = "it does not alone read the output of one layer"
            continue
        both = (pair.layer, pair.norm)
        twice = [t.name for t in both if len(t.names) > 1 or id(t.module) in held]
        obstacle = f"{twice[0]!r} stands in several places" if twice else _obstacle(pair)
        new = obstacle or _folded(pair.layer.module, norm.module)
        if isinstance(new, _Folded):
            _apply(model, pair, new, report)
        else:
            report.kept[norm.name] = new
    return report


# ------------------------------------------------------------------------------------------------
# Whether a pair can be folded
# ------------------------------------------------------------------------------------------------


def _obstacle(pair: Pair) -> str | None:
    """Why a pair must stay as it is, apart from its numbers."""
    layer, norm = pair.layer.module, cast(_BatchNorm, pair.norm.module)
    quadratic = isinstance(layer, QuadraticLayer)
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics: in eval mode too it normalizes by the batch"
    if isinstance(layer, QuadraticLayer) and layer.blocks is None:
        return f"the neuron {layer.neuron!r} cannot take up a scale and a shift"
    if not quadratic and type(layer) is not layer_kind(layer):
        return f"{type(layer).__name__} is not a layer whose formula is known"
    for module in (layer, norm):
        if is_touched(module):
            return f"{type(module).__name__} has hooks, or a forward of its own"
        if parametrize.is_parametrized(module):
            return "a parameter of the layer is computed (a parametrization)"
    if "weight" not in layer._parameters:
        return "the weight of the layer is computed (weight or spectral norm)"
    if quadratic and not type(layer).__module__.startswith("quadric."):
        return f"{type(layer).__name__} is a subclass that may compute something else"
    if type(norm).forward not in _KNOWN_FORWARDS:
        return f"{type(norm).__name__} is a subclass with a forward of its own"
    spatial = -1 - _linear_op_of(layer).channel_dim
    if pair.dims != spatial + 2:
        return _OTHER_DIMENSION
    tensors = [*layer._parameters.values(), norm.running_mean]
    if any(t is not None and t.is_meta for t in tensors):
        return "there are no numbers on the meta device"
    return None


def _linear_op_of(layer: nn.Module) -> LinearOp:
    """The linear map of a torch layer or of a quadratic one, for its filters and dimensions."""
    own: Any = layer
    if isinstance(layer, QuadraticLayer):
        return layer.linear_op
    if isinstance(layer, nn.Linear):
        return DenseOp()
    kind = TransposedConvOp if own.transposed else ConvOp
    return kind(len(own.kernel_size), groups=own.groups)


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
def _folded(layer: Any, norm: Any) -> _Folded | str:
    """A layer and the BatchNorm after it as one, or why that cannot be."""
    filters = _linear_op_of(layer).filters(layer.weight.double())
    if norm.num_features != filters.shape[0]:
        return _OTHER_DIMENSION
    spread = (norm.running_var.double() + norm.eps).sqrt()
    gain = torch.ones_like(spread) if norm.weight is None else norm.weight.double()
    scale = gain / spread
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    filters = scale[:, None] * filters
    bias = torch.zeros_like(scale) if layer.bias is None else scale * layer.bias.double()
    new = _Folded(filters, bias + shift)
    blocks = layer.blocks if isinstance(layer, QuadraticLayer) else None
    if blocks is not None:
        # In float64 before |q|^2 is taken, where the eigenvalues are normalized.
        lam = copy.deepcopy(layer).double().effective_eigenvalues()
        outputs, features = blocks.places(lam.device)
        if bool(((gain[features].abs() < SMALLEST_SCALE) & (lam != 0)).any()):
            return _ABOUT_ZERO
        # 0 / 0 where a feature has neither scale nor eigenvalue: it takes no part.
        ratio = torch.where(lam == 0, 0.0, lam / scale[features].square())
        new.eigenvalues = scale[outputs] * ratio
        if blocks.shape == "full":
            new.bias, new.shift = bias, shift
        else:
            c_f = shift[features]
            cancelling = torch.zeros_like(scale).index_add_(0, outputs, ratio.abs() * c_f.square())
            if not bool((cancelling <= CANCELLATION * spread).all()):
                return _ABOUT_ZERO
            cross = new.eigenvalues * c_f
            new.filters = filters.index_add(0, outputs, -2 * cross[:, None] * filters[features])
            more = cross * (c_f - 2 * new.bias[features])
            new.bias = new.bias.index_add(0, outputs, more)
    limit = torch.finfo(layer.weight.dtype).max / 2
    for values in (new.filters, new.bias, new.eigenvalues, new.shift):
        if values is not None and not bool((values.abs() < limit).all()):
            return "the folded parameters are not finite in the dtype of the layer"
    return new


@torch.no_grad()
def _apply(model: nn.Module, pair: Pair, new: _Folded, report: FoldingReport) -> None:
    layer: Any = pair.layer.module
    linear_op = _linear_op_of(layer)
    old = layer.weight

    def parameter(values: Tensor) -> nn.Parameter:
        # New objects: the old ones may be shared with another layer.
        return nn.Parameter(values.to(old.dtype).contiguous(), requires_grad=old.requires_grad)

    layer.weight = parameter(linear_op.weight_of(new.filters, old))
    if old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last):
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    layer.bias = parameter(new.bias)
    if new.eigenvalues is not None:
        layer.drop_scale_()
        layer.eigenvalues = parameter(new.eigenvalues)
    if getattr(layer, "normalize", False):
        layer.rule = dataclasses.replace(layer.rule, normalize=False)
    replacement: nn.Module = nn.Identity()
    if new.shift is not None:
        replacement = ChannelShift(new.shift.to(old.dtype), linear_op.channel_dim)
        report.shifts[pair.layer.name] = pair.norm.name
    model.set_submodule(pair.norm.name, replacement.eval())
    report.folded[pair.layer.name] = pair.norm.name
