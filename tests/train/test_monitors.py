"""The largest activation, and the first layer that is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import quadric
from quadric.train.monitors import LargestActivation, first_not_finite


def network() -> nn.Sequential:
    return nn.Sequential(
        quadric.QuadraticLinear(3, 10, rank=4),
        nn.BatchNorm1d(10),
        nn.ReLU(),
        nn.Sequential(nn.Linear(10, 4), nn.ReLU()),
        nn.Linear(4, 2),
    )


def test_the_largest_magnitude_of_all_batches_is_kept() -> None:
    net = network().eval()
    watch = LargestActivation(net)
    batches = [torch.randn(5, 3), 100 * torch.randn(5, 3), torch.randn(5, 3)]
    with watch.watching(), torch.no_grad():
        for batch in batches:
            net(batch)
    with torch.no_grad():
        expected = max(float(net[0](batch).abs().max()) for batch in batches)
        net(1e6 * torch.randn(5, 3))  # nobody watches any more
    assert float(watch.by_layer["0"]) == pytest.approx(expected)
    value, layer = watch.largest()  # type: ignore[misc]
    assert (value, layer) == max((float(v), k) for k, v in watch.by_layer.items())
    assert set(watch.by_layer) == {"0", "3.0", "4"}


def test_what_is_not_a_number_is_the_largest() -> None:
    net = network().eval()
    with torch.no_grad():
        net[4].weight.fill_(math.nan)
    watch = LargestActivation(net)
    assert LargestActivation(nn.ReLU()).largest() is None
    with watch.watching(), torch.no_grad():
        net(torch.randn(5, 3))
    value, layer = watch.largest()  # type: ignore[misc]
    assert (math.isnan(value), layer) == (True, "4")


def test_the_layer_whose_output_overflows_first_is_named() -> None:
    net = network()
    with torch.no_grad():
        net[3][0].weight.fill_(3e38)
        net[3][0].bias.zero_()
    assert first_not_finite(net, 10 * torch.randn(5, 3)) == "layer '3.0' (Linear)"


def test_parameters_that_are_not_finite_are_said() -> None:
    net = network()
    with torch.no_grad():
        net[3][0].weight[0, 0] = math.inf
    found = first_not_finite(net, torch.randn(5, 3))
    assert found == "layer '3.0' (Linear), whose parameters are not finite"


def test_the_input_and_the_loss_can_be_the_first_too() -> None:
    net = network()
    assert first_not_finite(net, torch.full((5, 3), math.inf)) == "the input"
    assert first_not_finite(net, torch.randn(5, 3)) == "the loss"


def test_looking_changes_nothing() -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first_not_finite(net, torch.randn(5, 3))
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert not any(module._forward_hooks for module in net.modules())
