"""The parameters of a quadratic network in groups, for torch's optimizers.

The paper trains the eigenvalues with their own, smaller learning rate: a square grows faster than a
linear term. The scale of `quadric.calibrate_` makes that rate the weights' own, but weight decay,
or training the curvature alone, still wants the split. `param_groups` makes it for any model and
any neuron, because every layer declares its quadratic parameters.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer, get_neuron
from quadric.support.modules import check_initialized, check_model

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
    """Makes parameter groups for a torch optimizer, the quadratic parameters apart from the others.

    Each parameter that requires a gradient is in exactly one group, shared ones too. A group has a
    `name`, which optimizers and schedulers keep: `"linear"`, `"linear_no_decay"`, `"quadratic"`.
    Empty groups are left out. LBFGS takes a single group: give it `model.parameters()`, or the
    groups with `only="quadratic"`.

    Args:
        model: any module, with or without quadratic layers.
        lr: the learning rate of all that is not quadratic.
        quadratic_lr: the learning rate of the quadratic parameters; None for `lr`. The scale that
            `convert_` gives the eigenvalues makes that right.
        weight_decay: the decay of all that is not quadratic.
        quadratic_weight_decay: the decay of the quadratic parameters.
        only: `"quadratic"` for those parameters alone: an adapter of about one number per channel.
            The other parameters are in no group, so the optimizer leaves them. Their
            `requires_grad` stays as it is.
        decay_bias_and_norm: with False, biases, the parameters of normalization layers and all
            else that is not quadratic and has fewer than two dimensions get no decay.

    Returns:
        The groups, as torch's optimizers take them.

    Raises:
        InputError: if there is nothing to train, or a number is negative or not finite.
        InputTypeError: if an argument has the wrong type.

    Examples:
        >>> import torch
        >>> from quadric.layers import QuadraticLinear
        >>> model = nn.Sequential(QuadraticLinear(8, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> groups = param_groups(model, lr=0.1)
        >>> [(group["name"], len(group["params"]), group["lr"]) for group in groups]
        [('linear', 4, 0.1), ('quadratic', 1, 0.1)]
        >>> optimizer = torch.optim.SGD(groups, momentum=0.9)
    """
    check_model(model)
    check_initialized(model)
    if only not in (None, "quadratic"):
        raise InputError(
            f"only must be None or 'quadratic', got {only!r}: leave it out to train everything."
        )
    _check_number("lr", lr)
    quadratic_lr = lr if quadratic_lr is None else quadratic_lr
    _check_number("quadratic_lr", quadratic_lr)
    _check_number("weight_decay", weight_decay)
    _check_number("quadratic_weight_decay", quadratic_weight_decay)
    settings = {
        "linear": (lr, weight_decay),
        "linear_no_decay": (lr, 0.0),
        "quadratic": (quadratic_lr, quadratic_weight_decay),
    }
    parameters = _split(model, set() if decay_bias_and_norm else _bias_and_norm_ids(model))
    if not any(parameters[name] for name in settings if only in (None, name)):
        raise _nothing_to_train(model, only)
    return [
        {
            "params": parameters[name],
            # Schedulers write into a tensor learning rate in place: each group has its own.
            "lr": rate.clone() if isinstance(rate, Tensor) else rate,
            "weight_decay": decay,
            "name": name,
        }
        for name, (rate, decay) in settings.items()
        if parameters[name] and only in (None, name)
    ]


def _split(model: nn.Module, without_decay: set[int]) -> dict[str, list[nn.Parameter]]:
    """The parameters that require a gradient, by the name of their group."""
    quadratic = _quadratic_ids(model)
    groups: dict[str, list[nn.Parameter]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.requires_grad:
            linear = "linear_no_decay" if id(parameter) in without_decay else "linear"
            groups["quadratic" if id(parameter) in quadratic else linear].append(parameter)
    return groups


def _nothing_to_train(model: nn.Module, only: str | None) -> InputError:
    kind = "parameter" if only is None else f"{only} parameter"
    remedy = "" if only is None else "convert it with quadric.convert_(model), or "
    return InputError(
        f"the model must have a {kind} that requires a gradient, got {type(model).__name__} "
        f"without any: {remedy}unfreeze what is to be trained with requires_grad_(True)."
    )


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
    identities: set[int] = set()
    for layer in model.modules():
        if not isinstance(layer, QuadraticLayer):
            continue
        identities.update(id(parameter) for parameter in layer.quadratic_parameters().values())
        # Under a parametrization the attribute is computed; what is trained lies underneath.
        for name, underneath in getattr(layer, "parametrizations", {}).items():
            if name in get_neuron(layer.neuron).quadratic:
                identities.update(id(parameter) for parameter in underneath.parameters())
    return identities


def _bias_and_norm_ids(model: nn.Module) -> set[int]:
    identities: set[int] = set()
    for module in model.modules():
        # By name, as many libraries write their own: BatchNorm2d, LlamaRMSNorm, and what inherits.
        is_norm = any(_NORM.search(cls.__name__) for cls in type(module).__mro__)
        for name, parameter in module.named_parameters(recurse=False):
            if is_norm or "bias" in name or parameter.dim() < 2:
                identities.add(id(parameter))
    return identities
