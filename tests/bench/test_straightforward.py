"""The formulas that neurons of several maps are timed against give what the layers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import quadric
from quadric import bench
from quadric.bench.straightforward import FORMULAS, Straightforward
from quadric.zoo import layers


class Convolutions(TorchDispatchMode):
    """Counts them."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.convolution.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("neuron", FORMULAS)
def test_a_formula_is_the_layer(neuron):
    torch.manual_seed(0)
    layer = quadric.make_layer(nn.Conv2d(3, 5, 3, bias=False), neuron=neuron).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    input = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(Straightforward(layer)(input), layer(input))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("neuron", FORMULAS)
def test_maps_whose_outputs_leave_the_cache_run_one_by_one(neuron, bias, monkeypatch):
    torch.manual_seed(0)
    layer = quadric.make_layer(nn.Conv2d(4, 6, 3, bias=bias, groups=2), neuron=neuron).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    input = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    together = layer(input)
    monkeypatch.setattr(layers, "_CACHED", 10)
    with Convolutions() as convolutions:
        torch.testing.assert_close(layer(input), together)
    assert convolutions.count == {"qres": 2}.get(neuron, 3)


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
