"""The parameters of a layer: what is refused, and how weights start."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from quadric.errors import InputError, InputTypeError


def draw_(weight: Tensor) -> None:
    """Fills an extra weight as torch fills a linear layer's."""
    nn.init.kaiming_uniform_(weight, a=5**0.5)


def scaled(parameter: nn.Parameter | None, scale: float) -> nn.Parameter | None:
    """A parameter times a number: the same object for 1, else a new one."""
    if parameter is None or scale == 1:
        return parameter
    return nn.Parameter(parameter.detach() * scale, requires_grad=parameter.requires_grad)


def uniform_start_(weight: Tensor, bias: Tensor | None) -> None:
    """Fills a weight and a bias as torch's own linear and convolution layers do."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    fan_in = math.prod(weight.shape[1:])
    if bias is not None and fan_in > 0:
        bound = 1 / math.sqrt(fan_in)
        nn.init.uniform_(bias, -bound, bound)


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raises for a dtype in which a layer cannot compute."""
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise InputTypeError(f"dtype must be a torch.dtype, got {dtype!r}: use torch.float32, say")
    if not dtype.is_floating_point:
        raise InputTypeError(
            f"dtype must be a real floating-point type, got {dtype}: use torch.float32 or another "
            "float"
        )


def check_plain_parameters(module: nn.Module) -> None:
    """Raises for a layer whose weight is not there yet (lazy) or computed (a parametrization)."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise InputError(
            f"the layer must have its parameters, got an uninitialized {type(module).__name__}: "
            "run one forward pass first"
        )
    for name in ("weight", "bias"):
        if getattr(module, name, None) is not None and name not in module._parameters:
            raise InputError(
                f"the {name} of the {type(module).__name__} must be a plain parameter, got a "
                "computed one (a parametrization?): remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations first"
            )
