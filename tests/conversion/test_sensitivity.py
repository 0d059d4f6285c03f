"""sensitivity: the scores, their invariances, and the model as it was."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadric
from quadric.conversion.sensitivity import Scores
from tests.networks import NETWORKS, assert_untouched, snapshot


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 2)
    ).double()


def data(n: int = 40) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(n, 3, dtype=torch.float64)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], 1)
    return list(zip(x.split(n // 4), y.split(n // 4), strict=True))


def pairs_of(neuron: str, rank: int, channels: int, groups: int) -> list[tuple[int, int]]:
    """Output and feature channel of every eigenvalue, written out."""
    found = []
    per_group = channels // groups
    for start in range(0, channels, per_group):
        size = {"eigen": rank + 1, "shared": rank, "square": 1}[neuron]
        for first in range(start, start + per_group, size):
            block = range(first, min(first + size, start + per_group))
            if neuron == "eigen":
                found += [(first, j) for j in block[1:]]
            else:
                found += [(i, j) for i in block for j in block]
    return found


def by_hand(model: nn.Sequential, index: int, batches: Any, pairs: list[tuple[int, int]]) -> float:
    """The formula of the module's docstring, eigenvalue by eigenvalue."""
    outputs, gradients = [], []
    for x, y in batches:
        z = model[:index](x)
        z = model[index](z).detach().requires_grad_(True)
        loss = F.mse_loss(model[index + 1 :](z), y)
        gradient = torch.autograd.grad(loss, z)[0]
        outputs.append(z.detach().movedim(1, -1).flatten(0, -2))
        gradients.append(gradient.movedim(1, -1).flatten(0, -2))
    z, g = torch.cat(outputs), torch.cat(gradients) / len(batches)
    total = 0.0
    for i, j in pairs:
        square = z[:, j] ** 2
        slope = (g[:, i] * (square - square.mean())).sum()
        total += float(slope * z[:, i].std(correction=0) / square.std(correction=0)) ** 2
    return math.sqrt(total)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square"])
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_scores_are_those_of_the_formula(neuron: str, rank: int) -> None:
    model, batches = net(), data()
    options = {} if neuron == "square" else {"rank": rank}
    scores = quadric.sensitivity(model, mse, batches, neuron=neuron, **options)
    assert set(scores) == {"0", "2"}
    for name, score in scores.items():
        pairs = pairs_of(neuron, rank, model[int(name)].out_features, 1)
        assert score == pytest.approx(by_hand(model, int(name), batches, pairs), rel=1e-9)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square"])
def test_scores_of_a_grouped_convolution(neuron: str) -> None:
    """Every position counts, and the split into neurons starts again in each group."""
    model = nn.Sequential(
        nn.Conv1d(4, 10, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)
    ).double()
    x, y = torch.randn(12, 4, 6, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
    batches = list(zip(x.split(4), y.split(4), strict=True))
    options = {} if neuron == "square" else {"rank": 3}
    scores = quadric.sensitivity(model, mse, batches, neuron=neuron, **options)
    expected = by_hand(model, 0, batches, pairs_of(neuron, 3, 10, 2))
    assert scores.to_dict() == {"0": pytest.approx(expected, rel=1e-9)}


def test_scores_do_not_depend_on_units() -> None:
    model, batches = net(), data()
    expected = quadric.sensitivity(model, mse, batches, rank=4)

    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        rescaled[2].weight.mul_(100)
        rescaled[2].bias.mul_(100)
    rescaled = nn.Sequential(*rescaled[:3], Scale(0.01), *rescaled[3:])
    got = quadric.sensitivity(rescaled, mse, batches, rank=4)
    assert got["2"] == pytest.approx(expected["2"], rel=1e-9)
    assert got["0"] == pytest.approx(expected["0"], rel=1e-9)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_the_model_is_as_it_was(name: str) -> None:
    build, make_inputs = NETWORKS[name]
    model, inputs = build().train(), make_inputs()
    model(*inputs).sum().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    next(model.children()).eval()
    before = snapshot(model)
    hooks = [len(m._forward_hooks) for m in model.modules()]
    random = torch.get_rng_state()
    with torch.no_grad():  # a user may well be there
        scores = quadric.sensitivity(
            model, lambda m, batch: m(*batch).square().mean(), [inputs, inputs], rank=4
        )
    assert torch.equal(torch.get_rng_state(), random)
    assert_untouched(model, before)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    converted = copy.deepcopy(model)
    assert set(scores) == set(quadric.convert_(converted, rank=4).names)
    assert all(math.isfinite(score) and score > 0 for score in scores.values())


def test_the_top_layers_are_meant_exactly() -> None:
    model = quadric.models.build("resnet8")
    batch = (torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)))
    scores = quadric.sensitivity(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [batch])
    assert list(scores) == sorted(scores, key=lambda name: -scores[name])
    top = scores.top(3)
    assert top == list(scores)[:3]
    assert set(quadric.convert_(copy.deepcopy(model), include=top).names) == set(top)
    stem = Scores({"conv1": 1.0}).top(1)
    assert stem == ["conv1"]
    assert quadric.convert_(copy.deepcopy(model), include=stem).names == ["conv1"]
    assert (
        len(quadric.convert_(model, include=list(stem)).names) == 4
    )  # a plain list means suffixes


def test_layers_that_the_loss_does_not_see_score_zero() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(3, 10)
            self.dead = nn.Linear(3, 10)
            self.unused = nn.Linear(3, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + self.dead(x).detach()

    scores = quadric.sensitivity(Two(), lambda m, x: m(x).square().mean(), [torch.randn(5, 3)])
    assert scores["used"] > 0
    assert scores["dead"] == 0
    assert "unused" not in scores


class OddHead(nn.Module):
    """A head whose name and place do not say that it is one, with the highest score."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 10)
        self.first = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.last(torch.tanh(self.first(x))) * 1}


class SeenHead(OddHead):
    """The same without the product: its result is the model's output."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.last(torch.tanh(self.first(x)))}


def test_the_layers_that_it_names_are_no_heads() -> None:
    batches = [torch.randn(20, 3)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)["out"].square().mean()

    model = SeenHead()
    scores = quadric.sensitivity(model, loss, batches)
    assert list(scores) == ["first"]
    both = quadric.sensitivity(model, loss, batches, head=True)
    assert sorted(both) == ["first", "last"]
    # What is named by scores stays linear if it is a head; what a user names does not.
    example = batches[0]
    report = quadric.convert_(SeenHead(), include=both.top(2), example_inputs=example)
    assert report.names == ["first"]
    both_names = list(both.top(2))
    named = quadric.convert_(SeenHead(), include=both_names, example_inputs=example)
    asked = quadric.convert_(SeenHead(), include=both.top(2), head=True, example_inputs=example)
    assert sorted(named.names) == sorted(asked.names) == ["first", "last"]
    # Where the output is not the layer's own result, nothing shows that it is the head.
    assert sorted(quadric.sensitivity(OddHead(), loss, batches)) == ["first", "last"]


def test_sensitivity_runs_in_eval_mode() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    batches = [torch.randn(2, 5, 16)]
    scores = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        scores.append(quadric.sensitivity(model, lambda m, x: m(x).square().mean(), batches))
    assert scores[0] == scores[1]
    assert all(module.training for module in model.modules())


def nan(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).sum() * torch.nan


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (mse, {"batches": []}, "batches must hold at least one batch, got none"),
    (lambda m, b: m(b[0]), {}, r"got \(10, 2\): return one number"),
    (lambda m, b: 1.0, {}, "got float: return one number"),
    (lambda m, b: torch.ones(()), {}, "one without a gradient"),
    (nan, {}, "finite loss .*, got nan in batch 1"),
    ("mse", {}, r"loss_fn must be a function of \(model, batch\), got str"),
    (mse, {"neuron": "fan"}, "must be one of eigen, shared, square, got"),
    (mse, {"include": ["nope"]}, "at least one layer must match"),
]


@pytest.mark.parametrize(("loss", "options", "words"), MISTAKES)
def test_mistakes_leave_the_model_alone(loss: Any, options: dict[str, Any], words: str) -> None:
    model = net()
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError), match=words):
        quadric.sensitivity(model, loss, **{"batches": data(), **options})
    assert_untouched(model, before)
    assert not any(m._forward_hooks for m in model.modules())


def test_features_that_do_not_vary_score_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh())
    with torch.no_grad():
        model[0].weight.zero_()
    scores = quadric.sensitivity(model, lambda m, x: m(x).square().mean(), [torch.randn(5, 3)])
    assert scores["0"] == 0
