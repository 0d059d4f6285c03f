"""Gradients of the losses are theirs, and the scores are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, r2_score
from torch import Tensor

from quadric.tables.losses import LOGISTIC, SOFTMAX, SQUARED, Loss, pinball

CASES = {
    "one target": (SQUARED, torch.randn(2, 9, 1).double(), torch.randn(2, 9, 1).double()),
    "three targets": (SQUARED, torch.randn(2, 9, 3).double(), torch.randn(2, 9, 3).double()),
    "two classes": (LOGISTIC, torch.randn(2, 9, 1).double(), torch.randint(2, (2, 9)).double()),
    "four classes": (SOFTMAX, torch.randn(2, 9, 4).double(), torch.randint(4, (2, 9))),
}


GAPS = torch.randn(2, 9, 2).double(), torch.randn(2, 9, 2).double()


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"), [*CASES.values(), (pinball(0.8), *GAPS)], ids=[*CASES, "0.8"]
)
def test_gradient_is_that_of_the_rows(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    leaf = outputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss.rows(leaf, targets).sum(), leaf)
    torch.testing.assert_close(loss.gradient(outputs, targets), expected)


@pytest.mark.parametrize("name", CASES)
def test_score_is_scikit_learns(name: str) -> None:
    loss, outputs, targets = CASES[name]
    weights = torch.rand(2, 9, dtype=torch.float64)
    scores = loss.score(outputs, targets, weights / weights.sum(1, keepdim=True))
    for i in range(2):
        truth, raw, weight = targets[i].numpy(), outputs[i].numpy(), weights[i].numpy()
        if loss is SQUARED:
            expected = r2_score(truth, raw, sample_weight=weight)
        else:
            guess = raw.argmax(1) if loss is SOFTMAX else (raw[:, 0] > 0).astype(int)
            expected = accuracy_score(truth.astype(int), guess, sample_weight=weight)
        np.testing.assert_allclose(scores[i].item(), expected, rtol=1e-10)


def test_r2_of_a_constant_target() -> None:
    weights = torch.full((1, 4), 0.25)
    constant = torch.ones(1, 4, 1)
    assert SQUARED.score(constant, constant, weights).item() == 1
    assert SQUARED.score(constant + 1, constant, weights).item() == 0
