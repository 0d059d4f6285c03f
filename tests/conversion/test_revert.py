"""revert_: the inverse of convert_, which refuses to lose squares without being asked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import quadric
from quadric.layers import QuadraticLinear, QuadraticMultiheadAttention
from tests.conversion.test_convert import CAN_BE_LINEAR, CLOSE, outputs, small
from tests.networks import NETWORKS, assert_untouched, curve_, snapshot


def test_own_attention_with_linear_projections_is_converted_and_reverted_in_place() -> None:
    model = nn.Sequential(QuadraticMultiheadAttention(20, 4, neuron="linear"))
    attention = model[0]
    x = torch.randn(3, 2, 20)
    before = attention(x, x, x)[0]
    report = quadric.convert_(model, rank=4)
    assert report.names == [f"0.{p}_proj" for p in ("q", "k", "v", "out")]
    assert model[0] is attention
    assert (attention.neuron, attention.rank) == ("eigen", 4)
    torch.testing.assert_close(attention(x, x, x)[0], before, **CLOSE)
    quadric.revert_(model)
    assert model[0] is attention
    assert attention.neuron == "linear"


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_revert_is_the_inverse(name: str, neuron: str) -> None:
    build, make_inputs = NETWORKS[name]
    model, inputs = build(), make_inputs()
    keys = list(model.state_dict())
    types = [type(m).__name__ for m in model.modules()]
    before = outputs(copy.deepcopy(model), inputs)
    report = quadric.convert_(model, neuron=neuron, rank=4)
    assert quadric.revert_(model) == report.names
    assert list(model.state_dict()) == keys
    after = [type(m).__name__ for m in model.modules()]
    assert after == [t.replace("PlainSubclass", "Linear") for t in types]
    for got, expected in zip(outputs(model, inputs), before, strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("neuron", CAN_BE_LINEAR)
def test_revert_refuses_squares_in_use_or_projects(neuron: str) -> None:
    model = small()
    x = torch.randn(3, 6)
    before = model(x).detach()
    quadric.convert_(model, neuron=neuron)
    weight = model[0].weight
    curve_(model)
    if neuron == "fan":  # its constant c belongs to the linear part that is kept
        for layer in (model[0], model[2]):
            nn.init.zeros_(layer.bias3)
    untouched = snapshot(model)
    with pytest.raises(ValueError, match=r"2 layers use theirs \(0, 2\): give project=True"):
        quadric.revert_(model)
    assert_untouched(model, untouched)
    assert quadric.revert_(model, project=True) == ["0", "2"]
    assert model[0].weight is weight
    torch.testing.assert_close(model(x), before, **CLOSE)


def test_revert_of_nothing_and_of_single_layers() -> None:
    with pytest.raises(ValueError, match="must have quadratic layers to revert, got none"):
        quadric.revert_(small())
    with pytest.raises(ValueError, match=r"got a single QuadraticLinear.*to_linear"):
        quadric.revert_(QuadraticLinear(3, 4))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got list"):
        quadric.revert_([])


def test_revert_refuses_parametrized_layers() -> None:
    model = small()
    quadric.convert_(model)
    parametrizations.weight_norm(model[0])
    with pytest.raises(ValueError, match="got a parametrization in '0'"):
        quadric.revert_(model)
    assert isinstance(model[2], QuadraticLinear)
