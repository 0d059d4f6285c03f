"""Which solver, and where to start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quadric.errors import InputError
from quadric.solve import choose_solver, least_squares, ridge_start_

X = torch.randn(80, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("residuals", "parameters", "solver", "words"),
    [
        (2_000, 500, "normal", "500 rows"),
        (500, 500, "normal", "500 rows"),
        (100, 5_000, "residual", "100 rows"),
        (5_000, 5_900, "products", "too much time"),
        (10_000_000, 100_000, "adam", "even products"),
    ],
)
def test_the_solver_follows_from_the_size(
    residuals: int, parameters: int, solver: str, words: str
) -> None:
    choice = choose_solver(residuals, parameters)
    assert choice.solver == solver
    assert words in choice.reason
    assert choice.seconds > 0


def test_the_matrix_must_fit_into_memory() -> None:
    choice = choose_solver(3_000, 4_000, memory=10**8)
    assert choose_solver(3_000, 4_000).solver == "residual"
    assert choice.solver == "products"
    assert "too much memory" in choice.reason


def test_a_fit_says_which_solver_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 20), nn.SiLU(), nn.Linear(20, 1)).double()
    fit = least_squares(model, X[:50], X[:50, 0], max_steps=2)
    assert fit.solver == "residual"
    assert "50 residuals, 101 parameters" in fit.why
    monkeypatch.setattr("quadric.solve.choice.SPEED", 1.0)
    fit = least_squares(nn.Linear(3, 1).double(), X, X[:, 0], max_steps=2)
    assert fit.solver == "adam"
    assert any("Adam on minibatches" in note for note in fit.notes)


def test_the_last_layer_starts_at_its_ridge_solution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 2))
    first = model[0].weight.clone()
    targets = torch.stack([X[:, 0] + 5, X[:, 1] * 100], 1)
    assert ridge_start_(model, X, targets) is model
    torch.testing.assert_close(model[0].weight, first)
    features = torch.cat([model[:2](X.float()), torch.ones(80, 1)], 1).double().detach()
    best = torch.linalg.lstsq(features, targets).solution
    residual = (model(X.float()) - targets).square().mean().item()
    assert residual < 1.05 * (features @ best - targets).square().mean().item()


@pytest.mark.parametrize(
    ("model", "targets", "words"),
    [
        (nn.Linear(3, 1), X[:, 0], "Sequential that ends in torch.nn.Linear"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), X[:, 0], "got ReLU"),
        (nn.Sequential(nn.Linear(3, 2)), X[:, 0], "must have 2 columns, got 1"),
    ],
)
def test_a_start_needs_a_linear_head(model: nn.Module, targets: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ridge_start_(model, X, targets)  # type: ignore[arg-type]
