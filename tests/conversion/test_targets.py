"""Finding layers: names, places, and who else holds them."""

from __future__ import annotations

import functools

from torch import nn

from quadric.conversion.targets import find_targets, look_around, walk
from tests.networks import Shared


def test_every_place_of_every_layer_is_found() -> None:
    model = Shared()
    targets = {target.name: target for target in find_targets(model)}
    assert targets["a"].names == ["a", "b", "tables.x"]
    assert [name for name, m in walk(model) if m is model.a] == targets["a"].names
    assert list(targets) == ["a", "block.0", "tables.y", "decode", "fc"]
    # A container with two names is entered once.
    assert [name for name, _ in walk(model)].count("again") == 1


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
