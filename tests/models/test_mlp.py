from __future__ import annotations

import pytest
import torch

from quadric.models.mlp import mlp


def test_matches_the_formula() -> None:
    model = mlp(3, 2, hidden=(5, 4), activation="tanh")
    x = torch.randn(6, 3)
    h = torch.tanh(x @ model.hidden1.weight.T + model.hidden1.bias)
    h = torch.tanh(h @ model.hidden2.weight.T + model.hidden2.bias)
    torch.testing.assert_close(model(x), h @ model.head.weight.T + model.head.bias)


def test_no_hidden_layer_is_one_linear_map() -> None:
    assert [type(m).__name__ for m in mlp(3, 1, hidden=())] == ["Linear"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"hidden": 64}, TypeError, "hidden must be a sequence of integers, got 64"),
        ({"hidden": (64, 0)}, ValueError, "hidden must be >= 1, got 0"),
        ({"in_features": 0}, ValueError, "in_features must be >= 1"),
        ({"out_features": 1.5}, TypeError, "out_features must be an integer >= 1, got 1.5"),
    ],
)
def test_bad_options(options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        mlp(**options)
