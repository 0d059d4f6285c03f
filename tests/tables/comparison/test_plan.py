"""Contenders at equal size, and the words that name them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quadric.models import create
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.support.modules import count_parameters
from quadric.tables.comparison.baselines import fitted_parameters
from quadric.tables.comparison.plan import ComparisonPlan, Network, parse_neurons


def test_words() -> None:
    assert parse_neurons("eigen, shared:4,eigen[3],linear,eigen") == (
        Network("linear"), Network("eigen"), Network("shared", 4), Network("eigen", 3),
    )  # fmt: skip
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
    networks = parse_neurons("eigen,shared,shared:4,square,fan")
    plan = ComparisonPlan("regression", networks, (64, 64))

    def count(hidden: tuple[int, ...], neuron: str, rank: int | None) -> int:
        return count_parameters(create("mlp", neuron, rank, in_features=8, hidden=hidden))

    budget = count((64, 64), "linear", None)
    for network in networks:
        model = plan.estimator(network, 8, 1, 5000, seed=3)
        assert isinstance(model, QuadraticRegressor)
        used = count(model.hidden_layer_sizes, model.neuron, model.rank)
        assert 0.97 * budget < used <= budget
        assert model.random_state == 3
    assert isinstance(
        ComparisonPlan("classification", networks, (8,)).estimator(Network("eigen"), 4, 3, 100, 0),
        QuadraticClassifier,
    )


def test_small_tables_get_more_epochs() -> None:
    plan = ComparisonPlan("regression", parse_neurons("eigen"), (8,))
    assert plan.epochs(10_000) == 400
    assert plan.epochs(40_000) == 200
    assert plan.epochs(2_000_000) == 40
    assert plan.epochs(300) == 4000
    assert plan.patience(100_000) == 10
    assert plan.patience(300) == 100
    assert ComparisonPlan("regression", plan.networks, (8,), max_iter=7).epochs(300) == 7


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_parameters_of_the_baselines(task: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] if task == "regression" else np.where(X[:, 0] > 0, "a", "b")
    plan = ComparisonPlan(task, parse_neurons("eigen"), (5,), max_iter=3)
    counts = {}
    frame = pd.DataFrame(X, columns=list("abc"))
    for baseline in plan.baselines(60):
        model = baseline.make(task, 0, {}).fit(frame, y)
        counts[baseline.label] = fitted_parameters(model)
    assert list(plan.starts()) == ["linear", "eigen", *counts]
    trees, network, machine, linear, *guess = counts.values()
    assert trees is None
    assert guess == ([] if task == "regression" else [None])
    assert network == 3 * 5 + 5 + 5 + 1
    assert machine is not None
    assert machine % (3 + 1) == 1  # a support vector and its coefficient each, and the offset
    assert linear == 3 + 1
