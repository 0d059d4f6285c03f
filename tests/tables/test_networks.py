"""The networks of the estimators, and widths at equal parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quadric import QuadraticLinear
from quadric.layers import NeuronLinear
from quadric.tables.networks import build_network, count_parameters, fit_widths


def test_hidden_layers_are_quadratic_and_the_last_one_is_linear() -> None:
    network = build_network(4, 2, (6, 5), neuron="eigen", rank=2, activation="tanh")
    kinds = [type(layer) for layer in network]
    assert kinds == [QuadraticLinear, nn.Tanh, QuadraticLinear, nn.Tanh, nn.Linear]
    assert network[0].rank == 2
    assert network(torch.zeros(3, 4)).shape == (3, 2)


def test_gates_have_no_activation_behind_them() -> None:
    def kinds(**options: object) -> list[type[nn.Module]]:
        return [type(layer) for layer in build_network(4, 1, (6,), neuron="glu", **options)]  # type: ignore[arg-type]

    assert kinds() == [NeuronLinear, nn.Identity, nn.Linear]
    kept = kinds(neuron_options={"keep_activation": True, "act": "gelu"})
    assert kept == [NeuronLinear, nn.SiLU, nn.Linear]


def test_a_seed_fixes_the_start_and_leaves_the_global_state() -> None:
    state = torch.get_rng_state()
    first, again = build_network(3, 1, (4,), seed=5), build_network(3, 1, (4,), seed=5)
    other = build_network(3, 1, (4,), seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square", "fan"])
@pytest.mark.parametrize("hidden", [(64, 64), (10,), (32, 16, 8)])
def test_widths_use_the_budget_of_the_linear_network(neuron: str, hidden: tuple[int, ...]) -> None:
    widths = fit_widths(8, 1, hidden, neuron)
    budget = count_parameters(8, 1, hidden)
    assert count_parameters(8, 1, widths, neuron) <= budget
    # and no layer could be one wider
    for i in range(len(widths)):
        wider = [w + (i == j) for j, w in enumerate(widths)]
        if wider[i] <= hidden[i]:
            assert count_parameters(8, 1, wider, neuron) > budget


def test_a_neuron_that_costs_nothing_keeps_the_widths() -> None:
    assert fit_widths(8, 1, (20, 10), "linear") == (20, 10)


def test_a_network_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="wider layers"):
        fit_widths(3, 1, (1,), "fan")
