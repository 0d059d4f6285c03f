"""torch.fx.symbolic_trace on quadratic layers: alone, and inside of networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric import QuadraticMultiheadAttention, make_layer
from tests.networks import NETWORKS, curve_

LAYERS = {
    "linear": (nn.Linear(12, 24), (2, 12)),
    "linear, more dimensions": (nn.Linear(12, 24), (2, 3, 12)),
    "conv1d, grouped": (nn.Conv1d(12, 24, 3, groups=2), (2, 12, 9)),
    "conv2d, circular": (nn.Conv2d(12, 24, 3, padding=1, padding_mode="circular"), (2, 12, 5, 5)),
    "conv3d, same": (nn.Conv3d(3, 12, 3, padding="same"), (2, 3, 5, 5, 5)),
    "transposed": (nn.ConvTranspose2d(12, 24, 3, stride=2), (2, 12, 5, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("neuron", sorted(set(quadric.neurons()) - {"linear"}))
def test_a_layer_alone(neuron: str, kind: str) -> None:
    if kind == "transposed" and neuron != "eigen":
        pytest.skip("transposed convolutions exist for the neuron eigen alone")
    linear, shape = LAYERS[kind]
    layer: Any = curve_(nn.Sequential(make_layer(copy.deepcopy(linear), neuron=neuron)))[0]
    x = torch.randn(shape)
    traced = torch.fx.symbolic_trace(layer)
    assert torch.equal(traced(x), layer(x))
    # Its parameters are the layer's, and they receive the same gradients.
    assert dict(traced.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    traced(x).sum().backward()
    found = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    layer(x).sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


def test_attention_alone() -> None:
    layer = QuadraticMultiheadAttention(8, 2, rank=3, batch_first=True).eval()
    curve_(layer)
    x = torch.randn(2, 5, 8)
    for got, expected in zip(torch.fx.symbolic_trace(layer)(x, x, x), layer(x, x, x), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("neuron", ["eigen", "fan"])
@pytest.mark.parametrize("name", ["resnet8", "digits_cnn", "mlp", "unet", "shared"])
def test_a_network_is_traced_as_its_plain_twin_is(name: str, neuron: str) -> None:
    build, make_inputs = NETWORKS[name]
    model, inputs = build().eval(), make_inputs()
    plain = [(n.op, n.target) for n in torch.fx.symbolic_trace(model).graph.nodes]
    quadric.convert_(model, neuron=neuron)
    traced = torch.fx.symbolic_trace(curve_(model))
    assert [(n.op, n.target) for n in traced.graph.nodes] == plain  # each layer is one node
    assert torch.equal(traced(*inputs), model(*inputs))


def test_features_of_a_traced_network() -> None:
    """What torchvision's create_feature_extractor does: cut a graph at the node of a layer."""
    model = quadric.models.create("resnet8").eval()
    x = torch.randn(1, 3, 32, 32)
    seen: list[Tensor] = []
    layer = model.get_submodule("layer2.0.conv1")
    layer.register_forward_hook(lambda module, args, output: seen.append(output))
    model(x)
    traced = torch.fx.symbolic_trace(model)
    node = next(n for n in traced.graph.nodes if n.target == "layer2.0.conv1")
    output = next(n for n in traced.graph.nodes if n.op == "output")
    output.args = (node,)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    assert torch.equal(traced(x), seen[0])
