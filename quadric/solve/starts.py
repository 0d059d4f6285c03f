"""A start that cannot lose: ridge regression for the last layer; a linear fit to compare with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.support.modules import check_model, restored_eval

_DECAYS = [10.0**k for k in range(-10, 3)]


def ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Weights, biases and the mean squared residual of a linear fit.

    The decay is the one with the lowest generalized cross-validation, tried on a grid.
    """
    mean, center = x.mean(0), y.mean(0)
    u, s, vt = torch.linalg.svd(x - mean, full_matrices=False)
    parts = u.T @ (y - center)
    best: tuple[float, Tensor] | None = None
    for decay in _DECAYS:
        shrink = s**2 / (s**2 + decay * float(s.max()) ** 2 + 1e-300)
        left = (y - center - u @ (shrink.unsqueeze(1) * parts)).square().mean()
        free = max(1 - (float(shrink.sum()) + 1) / len(x), 1e-3)
        score = float(left) / free**2
        if best is None or score < best[0]:
            best = score, shrink
    assert best is not None
    weight = vt.T @ ((best[1] / s.clamp_min(1e-300)).unsqueeze(1) * parts)
    bias = center - mean @ weight
    return weight.T, bias, float((x @ weight.to(x) + bias - y).square().mean())


@torch.no_grad()
def ridge_start_(model: nn.Sequential, inputs: Tensor, targets: Tensor) -> nn.Sequential:
    """Solves the last layer of a network by ridge regression, so that a fit starts there.

    All other layers stay as they are. The decay is chosen by generalized cross-validation.

    Args:
        model: a Sequential that ends in `torch.nn.Linear`; changed in place.
        inputs: (N, columns).
        targets: (N,) or (N, outputs).

    Returns:
        The model.

    Raises:
        InputError: if the model does not end in a linear layer.
    """
    check_model(model)
    layers = list(model.children()) if isinstance(model, nn.Sequential) else []
    head = layers[-1] if layers else None
    if type(head) is not nn.Linear or head.bias is None:
        raise InputError(
            "the model must be a Sequential that ends in torch.nn.Linear with a bias, got "
            f"{type(model if head is None else head).__name__}: start it as it is"
        )
    x = torch.as_tensor(inputs).to(head.weight)
    with restored_eval(model):
        for layer in layers[:-1]:
            x = layer(x)
    y = torch.as_tensor(targets).double().reshape(len(x), -1)
    weight, bias, _ = ridge(x.double(), y.to(x.device))
    if weight.shape != head.weight.shape:
        raise InputError(
            f"targets must have {head.out_features} columns, got {weight.shape[0]}: one for each "
            "output"
        )
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    return model
