"""A stack computes, and differentiates, what its networks compute one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quadric.layers import QuadraticLayer, QuadraticLinear
from quadric.models import create
from quadric.tables.stacks import AnyStack, ProductStack, make_stack, stack_parameters


def networks(neuron: str, activation: str = "silu", rank: int | None = None) -> list[nn.Sequential]:
    made = [
        create(
            "mlp", neuron, rank, seed=seed, in_features=5, out_features=2, hidden=(13, 21),
            activation=activation,
        ).double()
        for seed in range(3)
    ]  # fmt: skip
    for layer in (layer for network in made for layer in network):
        if isinstance(layer, QuadraticLayer):
            layer.drop_scale_()
    with torch.no_grad():
        for network in made:  # eigenvalues start at zero: a missing square would not show
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return made


def assert_same(made: list[nn.Sequential]) -> None:
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    weights = torch.randn(3, 7, 2, dtype=torch.float64)
    parameters = stack_parameters(made)
    gradients = {name: torch.full_like(p, float("nan")) for name, p in parameters.items()}
    stack = make_stack(made[0])
    seen: list[Tensor] = []

    def output_gradient(outputs: Tensor) -> Tensor:
        seen.append(outputs)
        return weights

    with torch.no_grad():
        forward = stack.forward(parameters, x)
        stack.backward(parameters, gradients, x, output_gradient)
    torch.testing.assert_close(seen[0], forward, rtol=0, atol=0)
    for i, network in enumerate(made):
        out = network(x[i])
        torch.testing.assert_close(forward[i], out.detach(), rtol=1e-10, atol=1e-12)
        expected = torch.autograd.grad((out * weights[i]).sum(), list(network.parameters()))
        for (name, _), gradient in zip(network.named_parameters(), expected, strict=True):
            torch.testing.assert_close(gradients[name][i], gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("neuron", "activation"),
    [
        *(("eigen", name) for name in ("silu", "relu", "tanh", "sigmoid", "none")),
        *((n, "silu") for n in ("linear", "shared", "square")),
    ],
)
def test_products_equal_the_layers(neuron: str, activation: str) -> None:
    made = networks(neuron, activation)
    assert isinstance(make_stack(made[0]), ProductStack)
    assert_same(made)


@pytest.mark.parametrize(
    ("neuron", "rank"), [("eigen", 1), ("eigen", 20), ("shared", 1), ("shared", 30)]
)
def test_products_of_other_ranks(neuron: str, rank: int) -> None:
    assert_same(networks(neuron, rank=rank))


@pytest.mark.parametrize("neuron", ["symmetric", "fan", "quadenhancer", "bilinear", "glu", "cross"])
def test_other_neurons_run_their_own_layer(neuron: str) -> None:
    made = networks(neuron)
    assert isinstance(make_stack(made[0]), AnyStack)
    assert_same(made)


def test_eigenvectors_of_unit_length_run_their_own_layer() -> None:
    made = networks("linear")
    for network in made:
        network[0] = QuadraticLinear(5, 13, rank=3, normalize=True, dtype=torch.float64)
        nn.init.normal_(network[0].eigenvalues)
    assert_same(made)


def test_one_network_of_another_neuron() -> None:
    network = networks("fan")[0]
    x = torch.randn(1, 4, 5, dtype=torch.float64)
    out = make_stack(network).forward(stack_parameters([network]), x)
    torch.testing.assert_close(out[0], network(x[0]).detach())
