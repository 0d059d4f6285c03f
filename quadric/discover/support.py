"""Which columns matter, by a quadratic network: where all monomials would be too many."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from quadric.layers import make_layer
from quadric.solve import least_squares

MOST = 10
ROWS = 1500


def strongest_columns(X: np.ndarray, y: np.ndarray) -> tuple[list[int], str]:
    """The columns that a network of degree 4 uses, and a sentence that says so."""
    rows = torch.tensor((X - X.mean(0)) / X.std(0))[:ROWS]
    targets = torch.tensor((y - y.mean()) / y.std())[:ROWS]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        width = min(8, max(4, ROWS // (4 * X.shape[1])))
        network = nn.Sequential(
            make_layer(nn.Linear(X.shape[1], width), "shared"),
            make_layer(nn.Linear(width, width), "shared"),
            nn.Linear(width, 1),
        ).double()
    fit = least_squares(network, rows, targets, max_steps=60, max_seconds=20)
    x = rows.clone().requires_grad_()
    (slope,) = torch.autograd.grad(network(x).sum(), x)
    effect = slope.square().mean(0).sqrt()
    chosen = effect.argsort(descending=True)[:MOST].tolist()
    chosen = sorted(i for i in chosen if effect[i] > 0.02 * effect.max())
    share = 1 - fit.loss
    return chosen, (
        f"a quadratic network without activations (R² {share:.3f}) chose {len(chosen)} of "
        f"{X.shape[1]} columns; formulas with more than degree 1 in others were not all tried"
    )
