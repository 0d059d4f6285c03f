"""Choosing layers: selectors, ranks, the order of the forward pass, the head, shortcuts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.conversion.selection import (
    ExactNames,
    Selector,
    find_heads,
    is_shortcut,
    rank_of,
    trace,
)
from quadric.conversion.targets import Target, find_targets
from tests.conversion.test_convert import small
from tests.networks import quadratic_layers


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.downsample = nn.Conv1d(2, 4, 1)
        self.main = nn.Conv1d(2, 4, 3, padding=1)
        self.never = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.main(x) + self.downsample(x)).mean(-1))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_trace(device: str) -> None:
    with torch.device(device):
        model = Branches()
        targets = find_targets(model)
        seen = trace(model, targets, lambda: model(torch.randn(1, 2, 5)))
    assert [target.name for target in seen.order] == ["main", "downsample", "fc", "never"]
    assert seen.uncalled == {id(model.never)}
    assert seen.makes_output == {id(model.fc)}
    assert seen.shortcuts == {id(model.downsample)}
    assert [target.name for target in targets if is_shortcut(target)] == ["downsample"]
    assert not is_shortcut(Target(nn.Conv1d(2, 4, 3), ["downsample"]))  # by its size
    assert [head.name for head in find_heads(model, targets, seen)] == ["fc"]
    # Without an example the last linear layer is another, with a name that is no head's.
    assert find_heads(model, targets, None) == []


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


def test_include_and_exclude() -> None:
    def names(**options: Any) -> list[str]:
        with torch.device("meta"):
            return quadric.convert_(quadric.models.build("resnet8"), **options).names

    assert names(include=r"layer[12]\.0\.conv1") == ["layer1.0.conv1", "layer2.0.conv1"]
    assert names(include="conv1") == ["conv1"]  # an expression matches the whole name
    assert names(include=["conv1"]) == ["conv1", *[f"layer{i}.0.conv1" for i in (1, 2, 3)]]
    assert names(include=["0.conv1"]) == [f"layer{i}.0.conv1" for i in (1, 2, 3)]
    assert names(include=lambda name, module: name == "fc") == ["fc"]
    assert names(include=["fc", "layer1.0.conv1"]) == ["layer1.0.conv1", "fc"]
    assert names(include=["conv1"], exclude=r"layer.*") == ["conv1"]
    assert names(exclude=lambda name, m: getattr(m, "stride", 1) == (1, 1)) == [
        "layer2.0.conv1",
        "layer3.0.conv1",
    ]


def test_the_head() -> None:
    def converted(model: nn.Module, **options: Any) -> list[str]:
        return quadric.convert_(model, **options).names

    class Named(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.add_module(name, nn.Linear(4, 4))
            self.name = name

        def forward(self, x: Tensor) -> Tensor:
            return self.get_submodule(self.name)(torch.relu(self.body(x)))

    for name in ("fc", "classifier", "head", "lm_head", "score", "output"):
        assert converted(Named(name)) == ["body"]
        assert converted(Named(name), head=True) == ["body", name]
        assert converted(Named(name), include=[name]) == [name]
    # Another name is no head, unless the example shows that it makes the output.
    assert converted(Named("proj")) == ["body", "proj"]
    assert converted(Named("proj"), example_inputs=torch.randn(2, 4)) == ["body"]
    # A Sequential ends in its head; one that ends in something else has none.
    assert converted(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))) == ["0"]
    assert converted(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())) == ["0", "1"]
    wrapped = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert converted(wrapped) == ["module.0"]
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), backend="eager")
    assert converted(compiled) == ["_orig_mod.0"]
    # torchvision's classifiers are Sequentials: the number is a place, not a name.
    vgg = nn.ModuleDict({"classifier": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))})
    assert converted(vgg) == ["classifier.0"]

    # Networks for equations: a list of layers, a Sequential in a module that only holds it.
    class Held(nn.Module):
        def __init__(self, held: nn.Module) -> None:
            super().__init__()
            self.linears = held

    layers = [nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
    assert converted(Held(nn.ModuleList(layers))) == ["linears.0", "linears.1"]
    assert converted(Held(nn.Sequential(*layers))) == ["linears.0", "linears.1"]
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)])
    assert converted(Held(blocks)) == ["linears.0.0", "linears.1"]


@pytest.mark.parametrize("with_inputs", [False, True])
@pytest.mark.parametrize(
    ("first", "last"), [(3, "layer1.0.conv2"), (11, "layer3.0.conv2"), (15, "layer4.0.conv2")]
)
def test_first_counts_the_main_path(first: int, last: str, with_inputs: bool) -> None:
    # KNN-3, -11 and -15: the stem and 1, 5 and 7 blocks of ResNet-18.
    model = quadric.models.build("resnet18", width=0.25)
    inputs = torch.randn(1, 3, 32, 32) if with_inputs else None
    report = quadric.convert_(model, first=first, example_inputs=inputs)
    assert len(report.names) == first
    assert report.names[0] == "conv1"
    assert report.names[-1] == last
    assert sum(name.endswith("conv2") for name in report.names) == (first - 1) // 2
    assert not any("downsample" in name for name in report.names)


def test_first_takes_the_real_order_where_it_can_see_it() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.late = nn.Conv2d(10, 10, 3)
            self.side = nn.Conv2d(2, 10, 1)  # a shortcut whose name does not say so
            self.early = nn.Conv2d(2, 10, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.late(self.side(x) + self.early(x))

    x = torch.randn(1, 2, 6, 6)
    assert quadric.convert_(Backwards(), first=1).names == ["late"]
    assert quadric.convert_(Backwards(), first=2, example_inputs=x).names == ["early", "late"]
    report = quadric.convert_(Backwards(), first=1, example_inputs=x)
    assert {s.name: s.reason for s in report.skipped} == {
        "side": "a shortcut, which `first` does not count",
        "late": "not among the first 1",
    }


def test_ranks_by_number_mapping_and_callable() -> None:
    def ranks(rank: Any) -> list[int]:
        model = small()
        quadric.convert_(model, rank=rank)
        return [layer.rank for layer in quadratic_layers(model).values()]

    assert ranks(None) == [9, 9]
    assert ranks(3) == [3, 3]
    assert ranks({"2": 4}) == [9, 4]
    assert ranks(lambda name: 2 if name == "0" else None) == [2, 9]
    assert rank_of({"second": 3}, ["first", "second"]) == 3  # any name of a layer


class Tied(nn.Module):
    """An output projection that is tied to the embedding, under a name that says nothing."""

    def __init__(self, extra: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 12)
        self.body = nn.Linear(12, 12)
        self.words = nn.Linear(12, 7, bias=False)
        self.words.weight = self.embed.weight
        self.score = nn.Linear(12, 2) if extra else None

    def forward(self, ids: Tensor) -> Any:
        x = torch.tanh(self.body(self.embed(ids)))
        words = self.words(x)
        return words if self.score is None else (words, self.score(x[:, -1]))


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, dtype=torch.long)])
def test_a_tied_output_projection_is_a_head(example: Any) -> None:
    report = quadric.convert_(Tied(), example_inputs=example)
    assert report.names == ["body"]
    assert quadric.convert_(Tied(), head=True, example_inputs=example).names == ["body", "words"]
    assert quadric.convert_(Tied(), include=["words"]).names == ["words"]


def test_what_the_examples_do_not_reach_is_left_unless_it_is_named() -> None:
    x = torch.randn(1, 2, 5)
    report = quadric.convert_(Branches(), rank=2, example_inputs=x)
    assert report.names == ["main", "downsample"]
    assert {s.name: s.reason for s in report.skipped}["never"] == (
        "the example inputs never reach it (naming it in include converts it)"
    )
    named = quadric.convert_(Branches(), rank=2, include=["main", "never"], example_inputs=x)
    assert named.names == ["main", "never"]
    assert "never called for the example inputs: never;" in str(named)


@pytest.mark.parametrize(("neuron", "rank"), [("eigen", 4), ("shared", 5)])
def test_small_groups_hold_one_neuron_or_are_left(neuron: str, rank: int) -> None:
    """Five outputs in each group: just enough for one neuron, and one too few."""
    for wanted, converted in ((rank, True), (rank + 1, False)):
        model = nn.Sequential(nn.Conv2d(4, 10, 3, groups=2), nn.Conv2d(10, 20, 1))
        report = quadric.convert_(model, neuron, rank=wanted)
        assert ("0" in report.names) == converted


def test_two_heads_are_seen_with_an_example() -> None:
    report = quadric.convert_(Tied(True), example_inputs=torch.zeros(1, 3, dtype=torch.long))
    assert report.names == ["body"]
    assert [s.name for s in report.skipped] == ["words", "score"]
