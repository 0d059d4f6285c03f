"""Contenders at equal size, and the words that name them."""

from __future__ import annotations

import pytest

from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.sklearn.compare.models import Contender, Plan, parse_neurons
from quadric.sklearn.networks import count_parameters


def test_words() -> None:
    assert parse_neurons("eigen, shared:4,eigen[3],linear,eigen") == [
        Contender("linear"), Contender("eigen"), Contender("shared", 4), Contender("eigen", 3),
    ]  # fmt: skip
    assert [c.label for c in parse_neurons("shared:4")] == ["linear", "shared[4]"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear", "one besides linear"),
        ("", "one besides linear"),
        ("cubic", "neuron must be one of"),
        ("square:3", "has no rank"),
        ("eigen:0", "rank must be >= 1"),
        ("eigen-3", "optional rank"),
    ],
)
def test_wrong_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_neurons(text)


def test_networks_have_no_more_parameters_than_linear() -> None:
    plan = Plan("regression", (64, 64))
    budget = count_parameters(8, 1, (64, 64))
    for contender in parse_neurons("eigen,shared,shared:4,square,fan"):
        model = plan.estimator(contender, 8, 1, 5000, seed=3)
        assert isinstance(model, QuadraticRegressor)
        used = count_parameters(8, 1, model.hidden_layer_sizes, model.neuron, model.rank)
        assert 0.97 * budget < used <= budget
        assert model.random_state == 3
    assert isinstance(
        Plan("classification", (8,)).estimator(Contender("eigen"), 4, 3, 100, 0),
        QuadraticClassifier,
    )


def test_small_tables_get_more_epochs() -> None:
    plan = Plan("regression", (8,))
    assert plan.epochs(100_000) == 400
    assert plan.epochs(300) == 4000
    assert plan.patience(100_000) == 10
    assert plan.patience(300) == 100
    assert Plan("regression", (8,), max_iter=7).epochs(300) == 7
