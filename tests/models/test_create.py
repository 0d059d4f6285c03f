"""The quadratic networks: parameter counts of the experiments, and what `create` converts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quadric
from quadric import models
from quadric.layers import QuadraticLayer
from tests.refusals import Check, refusals


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def quadratic(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, QuadraticLayer)]


COUNTS = [  # the networks of the experiments, at the neurons' own ranks: eigen 9, shared 8
    *(("eigen", f"resnet{depth}", {}, params) for depth, params in (
        (20, 270_330), (32, 465_158), (44, 659_986), (56, 854_814), (110, 1_731_540))),
    *(("eigen", f"resnet{depth}", {"channels": (24, 48, 96)}, params) for depth, params in (
        (20, 605_947), (32, 1_043_347), (56, 1_918_147), (110, 3_886_447))),
    *(("shared", f"resnet{depth}", {}, params) for depth, params in (
        (20, 275_226), (32, 473_242), (44, 671_258), (56, 869_274), (110, 1_760_346))),
    ("fan", "resnet32", {}, 1_386_618),
]  # fmt: skip


@pytest.mark.parametrize(("neuron", "name", "options", "params"), COUNTS)
def test_parameters(neuron: str, name: str, options: dict[str, object], params: int) -> None:
    with torch.device("meta"):
        assert count(models.create(name, neuron=neuron, **options)) == params
        rank = {"eigen": 9, "shared": 8}.get(neuron)
        assert count(models.create(name, neuron=neuron, rank=rank, **options)) == params


def test_every_convolution_but_not_the_classifier() -> None:
    with torch.device("meta"):
        plain = models.build("resnet18")
        model = models.create("resnet18", neuron="eigen")
    convolutions = [n for n, m in plain.named_modules() if isinstance(m, nn.Conv2d)]
    assert "layer2.0.downsample.0" in convolutions
    assert quadratic(model) == convolutions
    assert type(model.fc) is nn.Linear


def test_mlp_keeps_a_linear_head() -> None:
    model = models.create("mlp", neuron="eigen", rank=3, in_features=4, hidden=(8, 8))
    assert quadratic(model) == ["hidden1", "hidden2"]
    model = models.create("mlp", neuron="eigen", rank=3, out_features=4, head=True)
    assert quadratic(model) == ["hidden1", "hidden2", "head"]


LINEAR_STARTS = {"eigen", "shared", "square", "symmetric", "quadenhancer", "fan"}


@pytest.mark.parametrize("neuron", sorted(set(quadric.neurons()) - {"linear", "pure", "general"}))
def test_networks_that_start_linear_start_from_the_same_weights(neuron: str) -> None:
    torch.manual_seed(1)
    plain = models.build("resnet8").eval()
    torch.manual_seed(1)
    model = models.create("resnet8", neuron=neuron).eval()
    x = torch.randn(2, 3, 32, 32)
    close = torch.allclose(model(x), plain(x), rtol=1e-4, atol=1e-5)
    assert close == (neuron in LINEAR_STARTS)


def test_the_start_can_be_chosen() -> None:
    torch.manual_seed(1)
    plain = models.build("mlp")
    for init, same in (("linear", True), ("published", False)):
        torch.manual_seed(1)
        model = models.create("mlp", neuron="qres", init=init)
        x = torch.randn(4, 8)
        assert torch.allclose(model(x), plain(x), atol=1e-6) == same
    torch.manual_seed(1)
    model = models.create("mlp", neuron="shared", init="published")
    assert not torch.equal(model.hidden1.weight, plain.hidden1.weight)


def activations(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) is nn.ReLU]


@pytest.mark.parametrize("name", ["mlp", "digits_cnn", "resnet8", "resnet18"])
def test_gates_have_no_activation_behind_them(name: str) -> None:
    with torch.device("meta"):
        plain = models.build(name)
        assert activations(models.create(name, neuron="glu")) == []
        assert activations(models.create(name, neuron="glu", init="linear")) == activations(plain)
        kept = models.create(name, neuron="glu", keep_activation=True)
        assert activations(kept) == activations(plain)
        # A product without an activation of its own is followed by one, as all other neurons are.
        assert activations(models.create(name, neuron="bilinear")) == activations(plain)


def test_linear_layers_keep_their_activation() -> None:
    with torch.device("meta"):
        small = models.create("mlp", neuron="glu", include=["hidden2"])
        assert activations(small) == ["activation1"]
        part = models.create("resnet8", neuron="glu", first=2)
        left = set(activations(models.build("resnet8"))) - set(activations(part))
        assert left == {"act1", "layer1.0.act1"}


THREE = (models.build, models.create, models.input_shape)


@refusals(
    (lambda: models.create("resnet8", neuron="eigne"), ValueError,
     r"must be one of .*eigen.*, got 'eigne'"),
    (lambda: models.create("mlp", neuron="eigen", widht=2), ValueError,
     r"unknown option 'widht' for model 'mlp': it has in_features, .*; neuron 'eigen' has "),
    (lambda: models.create("mlp", neuron="fan", rank=3), ValueError, "rank"),
    (lambda: models.create("resnet8", rank=9), ValueError,
     "neuron 'linear' has no rank, got rank=9"),
    *((lambda first=first: models.create("resnet8", "eigen", first=first), ValueError,
       "first must be") for first in (0, -1)),
    *((lambda call=call: call("resnet21"), ValueError,
       r"unknown model 'resnet21': choose from .*resnet20.*mlp") for call in THREE),
    *((lambda call=call: call("resnet20", widht=2), ValueError,
       "unknown option 'widht' for model 'resnet20': it has num_classes, .*width")
      for call in THREE),
    (lambda: models.build("resnet20", depth=32), ValueError, "unknown option 'depth'"),
)  # fmt: skip
def test_refusals(check: Check) -> None:
    check()
