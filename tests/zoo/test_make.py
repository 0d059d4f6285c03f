"""make_layer: starts, options and the way back, whatever the spec."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import quadric


def module_spec(neuron: str, **options):
    return quadric.make_layer(nn.Linear(3, 12), neuron=neuron, **options)


def class_spec(neuron: str, **options):
    return quadric.make_layer(nn.Linear, 3, 12, neuron=neuron, **options)


@pytest.mark.parametrize("spec", [module_spec, class_spec])
@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_the_start_of_the_eigenvalues_is_heard(neuron, spec):
    assert bool(spec(neuron, eigenvalue_init="random_sign").eigenvalues.all())
    assert not bool(spec(neuron, eigenvalue_init="random_sign", init="linear").eigenvalues.any())
    assert not bool(spec(neuron).eigenvalues.any())


@pytest.mark.parametrize("neuron", [n for n in quadric.neurons() if n != "linear"])
def test_a_single_vector_and_an_empty_batch_have_gradients(neuron):
    layer = quadric.make_layer(nn.Linear, 5, 6, neuron=neuron)
    layer(torch.randn(5)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    layer(torch.randn(0, 5)).sum().backward()


@pytest.mark.parametrize("neuron", [n for n in quadric.neurons() if n != "linear"])
@pytest.mark.parametrize("bias", [False, True])
def test_every_neuron_that_starts_linear_finds_back(neuron, bias):
    model = nn.Sequential(nn.Linear(4, 8, bias), nn.ReLU(), nn.Linear(8, 3))
    input = torch.randn(2, 4)
    expected = model(input)
    quadric.convert_(model, neuron=neuron)
    if not quadric.neurons()[neuron].can_be_linear:
        with pytest.raises(ValueError, match="must have a linear part to be reverted"):
            quadric.revert_(model, project=True)
        return
    assert quadric.revert_(model) == ["0"]
    assert type(model[0]) is nn.Linear
    torch.testing.assert_close(model(input), expected)


def test_fan_in_use_is_not_linear():
    layer = quadric.make_layer(nn.Linear(3, 4), neuron="fan")
    assert layer.is_linear()
    with torch.no_grad():
        layer.bias2[0] = 2
    assert not layer.is_linear()
    with torch.no_grad():
        layer.bias3.fill_(5)
    torch.testing.assert_close(layer.to_linear().bias, layer.bias + 5)


def test_fan_squares_in_float32():
    layer = quadric.make_layer(nn.Linear, 1, 1, bias=False, neuron="fan").half()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight3.fill_(1e-3)
    out = layer(torch.tensor([[300.0]], dtype=torch.float16))
    torch.testing.assert_close(out.float(), torch.tensor([[90.0]]), rtol=1e-3, atol=0)


def test_a_checkpoint_of_another_rank_is_refused_though_its_shapes_fit():
    saved = quadric.QuadraticLinear(3, 12, rank=5).state_dict()
    other = quadric.QuadraticLinear(3, 12, rank=6)
    assert saved["eigenvalues"].shape == other.eigenvalues.shape
    with pytest.raises(RuntimeError, match=r"'rank': 5.*'rank': 6"):
        other.load_state_dict(saved)
    square = quadric.make_layer(nn.Linear, 3, 4, neuron="square")
    with pytest.raises(RuntimeError, match="'neuron': 'square'"):
        quadric.make_layer(nn.Linear, 3, 4, neuron="shared", rank=1).load_state_dict(
            square.state_dict()
        )
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    quadric.QuadraticLinear(3, 12, rank=5).load_state_dict(torch.load(file, weights_only=True))


def test_a_computed_bias_is_refused():
    class Double(nn.Module):
        def forward(self, bias):
            return 2 * bias

    linear = nn.Linear(3, 4)
    parametrize.register_parametrization(linear, "bias", Double())
    with pytest.raises(ValueError, match=r"the bias of the .*must be a plain parameter"):
        quadric.make_layer(linear, neuron="eigen")
    layer = quadric.QuadraticLinear(3, 4, rank=1)
    parametrize.register_parametrization(layer, "bias", Double())
    with pytest.raises(ValueError, match="must be a plain parameter"):
        layer.to_linear()
