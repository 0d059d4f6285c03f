"""The network of a recipe."""

from __future__ import annotations

import pytest
import torch

from quadric.train.data import load_data
from quadric.train.network import build_network
from quadric.train.runner import plan_run
from tests.train.small import pictures


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square", "quadenhancer", "fan"])
def test_neurons_that_start_linear_start_from_the_same_weights(neuron: str) -> None:
    """Else a comparison would compare starts: torch's own draws are half as large here."""
    weights = {}
    for name in ("linear", neuron):
        recipe = plan_run("cifar10-resnet20", {"neuron": name, "seed": 3}).recipe
        network = build_network(
            recipe, load_data(recipe, pictures((3, 32, 32), 10, train=8, test=2))
        )
        weights[name] = {k: v for k, v in network.state_dict().items() if k.endswith(".weight")}
    for key, value in weights["linear"].items():
        assert torch.equal(weights[neuron][key], value), key
