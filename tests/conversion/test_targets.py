"""Finding layers: names, places, order, head, and who else holds them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadric.conversion.selection import (
    ExactNames,
    Selector,
    find_head,
    is_shortcut,
    rank_of,
    trace,
)
from quadric.conversion.targets import (
    example_arguments,
    find_targets,
    look_around,
    undisturbed,
    walk,
)
from tests.networks import Shared, snapshot


def test_every_place_of_every_layer_is_found() -> None:
    model = Shared()
    targets = {target.name: target for target in find_targets(model)}
    assert targets["a"].names == ["a", "b", "tables.x"]
    assert [key for _, key in targets["a"].places] == ["a", "b", "x"]
    assert list(targets) == ["a", "block.0", "tables.y", "decode", "fc"]
    # A container with two names is entered once.
    assert [name for name, *_ in walk(model)].count("again") == 1


def test_a_circle_of_modules_ends() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].parent = model
    assert [target.name for target in find_targets(model)] == ["0"]


def test_tied_parameters_and_hidden_references() -> None:
    model = Shared()
    around = look_around(model)
    assert around.tied == {id(model.embed.weight)}
    assert around.held == {}

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(6))
            self.order = [self.layers[0]]
            self.by_name = {"x": (self.layers[1],)}
            self.call = functools.partial(max, self.layers[2])
            self.bound = self.layers[3].forward
            object.__setattr__(self, "secret", self.layers[4])
            self.words = ["not a layer"] * 100

    holder = Holder()
    held = look_around(nn.Sequential(holder)).held
    places = [held.get(id(layer)) for layer in holder.layers]
    assert places == ["0.order", "0.by_name", "0.call", "0.bound", "0.secret", None]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.downsample = nn.Conv1d(2, 4, 1)
        self.main = nn.Conv1d(2, 4, 3, padding=1)
        self.never = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.main(x) + self.downsample(x)).mean(-1))


def test_the_trace() -> None:
    model = Branches()
    targets = find_targets(model)
    seen = trace(model, targets, torch.randn(1, 2, 5))
    assert [target.name for target in seen.order] == ["main", "downsample", "fc", "never"]
    assert seen.uncalled == {id(model.never)}
    assert seen.makes_output == {id(model.fc)}
    assert seen.shortcuts == {id(model.downsample)}
    assert [target.name for target in targets if is_shortcut(target)] == ["downsample"]
    head = find_head(model, targets, seen)
    assert head is not None
    assert head.name == "fc"
    # Without an example the last linear layer is another, with a name that is no head's.
    assert find_head(model, targets, None) is None


def test_the_trace_on_meta() -> None:
    with torch.device("meta"):
        model = Branches()
        seen = trace(model, find_targets(model), torch.randn(1, 2, 5))
    assert seen.makes_output == {id(model.fc)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, ((1,), {})),
        ((1, 2), ((1, 2), {})),
        ([1], ((1,), {})),
        ({"x": 1}, ((), {"x": 1})),
    ],
)
def test_example_arguments(given: Any, expected: Any) -> None:
    assert example_arguments(given) == expected


def test_undisturbed_even_by_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).train()
    model[1].eval()
    before = snapshot(model)

    def disturb() -> None:
        with undisturbed(model):
            assert not model.training
            model.train()
            model(torch.randn(4, 3))
            assert model[0].num_batches_tracked == 1
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        disturb()
    assert model[0].num_batches_tracked == 0
    assert not model[0].running_mean.any()
    assert [m.training for m in model.modules()] == [flag for _, _, flag in before[0]]


def test_selectors() -> None:
    layer = nn.Linear(1, 1)
    suffix = Selector("include", ["conv1", "nope"])
    assert suffix.matches(["layer1.conv1"], layer)
    assert not suffix.matches(["layer1.aconv1"], layer)
    assert suffix.matches(["other", "conv1"], layer)  # any of a layer's names
    assert suffix.unused() == ["nope"]
    exact = Selector("include", ExactNames(["conv1"]))
    assert exact.matches(["conv1"], layer)
    assert not exact.matches(["layer1.conv1"], layer)
    whole = Selector("exclude", "layer.")
    assert whole.unused() == ["layer."]
    assert not whole.matches(["layer1.conv1"], layer)
    assert whole.matches(["layer1"], layer)
    assert whole.unused() == []
    called: list[Any] = []
    chosen = Selector("include", lambda name, module: called.append((name, module)))
    assert not chosen.matches(["a", "b"], layer)
    assert called == [("a", layer), ("b", layer)]


def test_ranks_of_layers_with_several_names() -> None:
    assert rank_of({"second": 3}, ["first", "second"]) == 3
    assert rank_of({"third": 3}, ["first", "second"]) is None
    assert rank_of(lambda name: len(name), ["first", "second"]) == 5
    assert rank_of(7, ["first"]) == 7
