"""Distributions as a few numbers: what the figure of parameters by depth is drawn from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.forms import effective_rank, true_eigenvalues
from quadric.errors import InputError
from quadric.layers import QuadraticLayer

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The quantiles that are kept."""


def distribution(values: Tensor) -> dict[str, Any] | None:
    """The distribution of the finite numbers of a tensor; None if there is none."""
    flat = values.detach().flatten().cpu().double()
    flat = flat[torch.isfinite(flat)].sort().values
    if not flat.numel():
        return None
    # torch.quantile refuses large tensors.
    places = torch.tensor(LEVELS, dtype=torch.float64) * (flat.numel() - 1)
    low, part = places.floor().long(), places.frac()
    quantiles = flat[low] + part * (flat[(low + 1).clamp_max(flat.numel() - 1)] - flat[low])
    return {
        "count": flat.numel(),
        "mean": float(flat.mean()),
        "std": float(flat.std(correction=0)),
        "quantiles": quantiles.tolist(),
    }


def parameters(layer: nn.Module) -> dict[str, Any]:
    """What a layer's parameters are like."""
    facts: dict[str, Any] = {"weights": distribution(_linear_weights(layer))}
    facts |= {"quadratic": None, "eigenvalues": None, "effective_rank": None, "notes": []}
    if not isinstance(layer, QuadraticLayer):
        return facts
    named = layer.quadratic_parameters().items()
    flat = [p.detach().flatten() for name, p in named if not name.startswith("bias")]
    facts["quadratic"] = distribution(torch.cat(flat) if flat else torch.empty(0))
    try:
        eigenvalues = true_eigenvalues(layer)
    except InputError as error:
        return facts | {"notes": [f"no eigenvalues: {error}"]}
    if eigenvalues:
        facts["eigenvalues"] = distribution(torch.cat(eigenvalues))
        ranks = torch.tensor([effective_rank(values) for values in eigenvalues])
        facts["effective_rank"] = distribution(ranks)
    return facts


def _linear_weights(layer: nn.Module) -> Tensor:
    """The weights of the linear part: of an eigen neuron w alone, without its eigenvectors."""
    weight = getattr(layer, "weight", None)
    if weight is None:  # a neuron without a linear part
        return torch.empty(0)
    tensor: Tensor = weight.detach()
    if isinstance(layer, QuadraticLayer) and layer.blocks is not None:
        tensor = layer.linear_op.filters(tensor)
        if layer.blocks.shape == "star":
            tensor = tensor[layer.blocks.heads]
    return tensor
