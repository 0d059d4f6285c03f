"""fit: the widest network within a budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quadric
from quadric import models
from quadric.support.modules import count_parameters


def params(name: str, **options: Any) -> int:
    with torch.device("meta"):
        return count_parameters(models.create(name, **options))


@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared", "fan", "kervolution"])
def test_the_widest_mlp_within_the_budget(neuron: str) -> None:
    found = models.fit("mlp", params=2000, neuron=neuron, hidden=(10, 20))
    one, two = found.options["hidden"]
    assert abs(two - 2 * one) <= 1
    assert found.params == count_parameters(found.create()) <= 2000
    # The next steps of both widths are above.
    wider = [(one, two + 1), (one + 1, two), (one + 1, two + 1)]
    factors = [max((a - 0.5) / 10, (b - 0.5) / 20) for a, b in wider]
    a, b = wider[min(range(3), key=factors.__getitem__)]
    assert params("mlp", neuron=neuron, hidden=(a, b)) > 2000


def test_resnets_by_params() -> None:
    found = models.fit("resnet8", params=75_290, neuron="linear")
    assert found.options["width"] == 1.0
    assert found.params == 75_290
    assert found.macs == quadric.cost(models.build("resnet8"), torch.zeros(1, 3, 32, 32)).macs
    fan = models.fit("resnet8", params=75_290, neuron="fan")
    assert fan.params <= 75_290
    assert fan.params > 0.93 * 75_290
    # Three maps an output: about 1 / sqrt(3) as wide.
    assert fan.factor == pytest.approx(3**-0.5, rel=0.05)
    assert params("resnet8", neuron="fan", width=fan.factor * 1.04) > 75_290


def test_resnets_by_macs_and_by_both() -> None:
    macs = models.fit("resnet8", macs=6_000_000, neuron="eigen", rank=4)
    assert macs.macs <= 6_000_000
    assert macs.macs > 0.9 * 6_000_000
    assert macs.options == {"neuron": "eigen", "rank": 4, "width": macs.options["width"]}
    both = models.fit("resnet8", params=20_000, macs=6_000_000, neuron="eigen", rank=4)
    assert both.params <= 20_000
    assert both.factor < macs.factor
    assert both.budget == {"params": 20_000, "macs": 6_000_000}
    model = both.create()
    assert count_parameters(model) == both.params
    assert quadric.cost(model, torch.zeros(1, 3, 32, 32)).macs == both.macs


def test_explicit_channels_are_scaled() -> None:
    found = models.fit("resnet8", params=75_290, channels=(16, 32, 64))
    assert found.options["channels"] == (16, 32, 64)
    half = models.fit("digits_cnn", params=5000, channels=(16, 32, 32), neuron="eigen")
    assert half.options["channels"] == tuple(round(c * half.factor) for c in (16, 32, 32))
    assert half.params <= 5000


def test_neurons_that_need_room_are_not_made_too_narrow() -> None:
    found = models.fit("mlp", params=60, neuron="eigen", rank=3, in_features=2, hidden=(8, 8))
    assert found.params <= 60
    layer = found.create()[0]
    assert layer.rank == 3


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"name": "mlp"}, r"a budget must be given, got none: give params=, macs= or both"),
        ({"name": "mlp", "params": 0}, r"params must be >= 1, got 0"),
        ({"name": "mlp", "macs": 1.5}, r"macs must be an integer >= 1, got 1.5"),
        ({"name": "mlp", "params": 5}, r"params must be at least 13, the cost of 'mlp' at its nar"),
        ({"name": "mlp", "params": 50, "hidden": ()}, r"hidden must name widths to be scaled"),
        ({"name": "nope", "params": 50}, r"unknown model 'nope'"),
        ({"name": "mlp", "params": 50, "rank": 3}, r"neuron 'linear' has no rank, got rank=3"),
        ({"name": "mlp", "params": 50, "depth": 3}, r"unknown option 'depth'"),
        (
            {"name": "mlp", "params": 50, "neuron": "cubic"},
            r"neuron must be one of .*, got 'cubic'",
        ),
    ],
)
def test_bad_input(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        models.fit(**arguments)
