"""The scale of the eigenvalues, set by a batch: it makes curvature learn at the rate of weights.

An optimizer such as Adam moves every number by about its rate, but what an eigenvalue does is the
rate times the square of a feature, and features of trained networks are 10 or 100. With the scale a
step changes the output by the same share, whatever the features are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from quadric.errors import InputError
from quadric.layers import QuadraticLayer
from quadric.support.modules import call_arguments, check_model, hooked, restored_eval, unwrapped


def calibrate_(model: nn.Module, example_inputs: Any) -> list[str]:
    """Sets the scale of the eigenvalues of every quadratic layer by one batch, in place.

    `convert_` leaves this to the first batch of training, so most users never call it. Call it
    where that batch cannot tell: before a model is wrapped for several processes or compiled as one
    graph, and for layers that were built by hand. The model computes afterwards what it computed
    before.

    Args:
        model: a model with eigen, shared or square neurons. Make the optimizer afterwards.
        example_inputs: a batch as in training: a tensor, a tuple of arguments or a mapping.

    Returns:
        The names of the layers whose scale was set. Others were not reached, or did not vary.

    Raises:
        InputError: if the model has no such layer, or the batch sets no scale.
        InputTypeError: if `model` is not a module.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> report = quadric.convert_(model)
        >>> calibrate_(model, 100 * torch.randn(64, 4))
        ['0']
    """
    check_model(model)
    model = unwrapped(model)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, QuadraticLayer) and layer.blocks is not None
    }
    if not layers:
        raise InputError(
            f"the model must have layers of eigen, shared or square neurons, got "
            f"{type(model).__name__} without any: convert it first with quadric.convert_(model)"
        )
    reached: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(layer: Any, args: Any) -> None:
            reached.setdefault(
                name, layer.rule.measured_scale(layer, layer.linear_op.prepare(args[0]))
            )

        return hook

    args, kwargs = call_arguments(model, example_inputs)
    modes = [(module, module.training) for module in model.modules()]
    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    with hooked(hooks), restored_eval(model), torch.no_grad():
        for module, training in modes:
            module.training = training
        model(*args, **kwargs)
    scales = {name: scale for name, scale in reached.items() if bool(scale > 0)}
    if not scales:
        raise InputError(
            "the batch must make features vary, got one that sets no scale: give others"
        )
    for name, scale in scales.items():
        layers[name].use_scale_(scale)
    return list(scales)
