"""The dense form of a neuron: x'Mx + w'x + b over its n inputs."""

from __future__ import annotations

from torch import Tensor

DENSE_LIMIT = 2**30
"""Bytes above which `to_dense` refuses, unless another limit is given."""


def dense_form(
    row: Tensor, filters: Tensor, biases: Tensor, channel: int
) -> tuple[Tensor, Tensor, Tensor]:
    """M, w and b of the output z + row · z^2 of one channel, with z = filters x + biases.

    A feature's bias enters: (q'x + b_f)^2 adds 2 lambda b_f q to w and lambda b_f^2 to b.
    """
    features = row.nonzero().squeeze(1)
    lam, q, b_f = row[features], filters[features], biases[features]
    w = filters[channel] + 2 * (lam * b_f) @ q
    return q.T @ (lam[:, None] * q), w, biases[channel] + (lam * b_f * b_f).sum()
