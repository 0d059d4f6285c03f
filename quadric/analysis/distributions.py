"""Distributions as a few numbers: what the figure of parameters by depth is drawn from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.forms import effective_rank, true_eigenvalues
from quadric.errors import InputError
from quadric.layers import QuadraticLayer

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The quantiles that are kept."""
BINS = 40


@dataclass(frozen=True)
class Distribution:
    """A distribution of numbers.

    Attributes:
        count: how many there are.
        mean: of them.
        std: their standard deviation.
        quantiles: at `LEVELS`: smallest, 5, 25, 50, 75, 95 %, largest.
        counts: a histogram of equal bins from the smallest to the largest.
    """

    count: int
    mean: float
    std: float
    quantiles: tuple[float, ...]
    counts: tuple[int, ...]


def distribution(values: Tensor) -> Distribution | None:
    """The distribution of the finite numbers of a tensor; None if there is none."""
    flat = values.detach().flatten().cpu().double()
    flat = flat[torch.isfinite(flat)].sort().values
    if not flat.numel():
        return None
    # torch.quantile refuses large tensors.
    places = torch.tensor(LEVELS, dtype=torch.float64) * (flat.numel() - 1)
    low, part = places.floor().long(), places.frac()
    quantiles = flat[low] + part * (flat[(low + 1).clamp_max(flat.numel() - 1)] - flat[low])
    counts = torch.histc(flat, BINS)  # from the smallest to the largest
    return Distribution(
        flat.numel(),
        float(flat.mean()),
        float(flat.std(correction=0)),
        tuple(quantiles.tolist()),
        tuple(int(count) for count in counts.tolist()),
    )


def parameters(layer: nn.Module) -> dict[str, Any]:
    """What a layer's parameters are like."""
    found: dict[str, Any] = {"weights": _plain(distribution(_linear_weights(layer)))}
    found |= {"quadratic": None, "eigenvalues": None, "effective_rank": None, "notes": []}
    if not isinstance(layer, QuadraticLayer):
        return found
    named = layer.quadratic_parameters().items()
    flat = [p.detach().flatten() for name, p in named if not name.startswith("bias")]
    found["quadratic"] = _plain(distribution(torch.cat(flat) if flat else torch.empty(0)))
    try:
        eigenvalues = true_eigenvalues(layer)
    except InputError as error:
        found["notes"] = [f"no eigenvalues: {error}"]
        return found
    if eigenvalues:
        found["eigenvalues"] = _plain(distribution(torch.cat(eigenvalues)))
        ranks = torch.tensor([effective_rank(values) for values in eigenvalues])
        found["effective_rank"] = _plain(distribution(ranks))
    return found


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


def _plain(found: Distribution | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)
