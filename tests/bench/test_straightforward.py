"""The formulas that neurons of several maps are timed against give what the layers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quadric
from quadric import bench
from quadric.bench.straightforward import FORMULAS, Straightforward


@pytest.mark.parametrize("neuron", FORMULAS)
def test_a_formula_is_the_layer(neuron):
    torch.manual_seed(0)
    layer = quadric.make_layer(nn.Conv2d(3, 5, 3, bias=False), neuron=neuron).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    input = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(Straightforward(layer)(input), layer(input))


def test_only_neurons_of_several_maps_have_this_path():
    cases = bench.layer_cases(
        ("eigen", "fan", "square"), ((4, 5, 2),), ("plain", "straightforward"), ("nchw",)
    )
    paths = [(case.neuron, case.path) for case in cases]
    assert paths == [
        ("linear", "plain"),
        ("eigen", "plain"),
        ("fan", "plain"),
        ("fan", "straightforward"),
        ("square", "plain"),
    ]
    assert bench.run(cases, repeats=1, memory=False).rows[3]["training"] > 0
