"""The true eigenvalues of each neuron's matrix, against matrices made from values alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.analysis.distributions import distribution, parameters
from quadric.analysis.forms import dense_form, effective_rank, true_eigenvalues
from quadric.errors import InputError
from quadric.layers import QuadraticConv2d, QuadraticLinear

# A glu is no polynomial: its values do not tell the matrix.
NEURONS = [name for name in quadric.neurons() if name not in ("linear", "glu")]
OPTIONS = {"kervolution": {"p": 2}, "eigen": {"rank": 2}, "shared": {"rank": 3}}


def quadratic_layer(neuron: str, plain: nn.Module) -> nn.Module:
    layer = quadric.make_layer(plain, neuron=neuron, **OPTIONS.get(neuron, {})).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def matrices_by_values(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """M of each output from f(e_i + e_j) and the like: no derivative, no parameter."""
    n = math.prod(shape)
    eye = torch.eye(n, dtype=torch.float64)

    def quadratic(x: Tensor) -> Tensor:
        at = [layer(s * x.view(-1, *shape)).flatten(1) for s in (1, -1, 0)]
        return (at[0] + at[1]) / 2 - at[2]

    alone = quadratic(eye)
    pairs = quadratic((eye[:, None] + eye[None]).reshape(-1, n)).view(n, n, -1)
    return ((pairs - alone[:, None] - alone[None]) / 2).permute(2, 0, 1).detach()


# A gate is no polynomial: its values do not give the matrix at zero.
@pytest.mark.parametrize("neuron", [name for name in NEURONS if name != "glu"])
@pytest.mark.parametrize("plain", ["linear", "grouped"])
def test_true_eigenvalues_are_those_of_the_matrix(neuron: str, plain: str) -> None:
    made = nn.Linear(4, 6) if plain == "linear" else nn.Conv2d(4, 6, (2, 1), groups=2)
    layer = quadratic_layer(neuron, made)
    matrices = matrices_by_values(layer, (4,) if plain == "linear" else (4, 2, 1))
    expected = []
    for matrix in matrices:
        values = torch.linalg.eigvalsh(matrix)
        if values.abs().max() > 1e-9:  # a feature of an eigen neuron is linear
            expected.append(values[values.abs() > 1e-9])
    found = [values[values.abs() > 1e-9].sort().values for values in true_eigenvalues(layer)]  # type: ignore[arg-type]
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_parameters_are_not_the_true_eigenvalues() -> None:
    layer = QuadraticLinear(2, 3, rank=2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 0.0]]))
        layer.eigenvalues.copy_(torch.tensor([1.0, -0.5]))
    # Both features are 2 x_0: M has the one entry 4 (1 - 0.5).
    (values,) = true_eigenvalues(layer)
    torch.testing.assert_close(values.sort().values, torch.tensor([0.0, 2.0]).double())


def test_padding_and_dilation_do_not_change_a_neuron() -> None:
    plain = QuadraticConv2d(2, 4, 3, rank=3)
    nn.init.normal_(plain.eigenvalues)
    padded = QuadraticConv2d(2, 4, 3, padding=1, dilation=2, padding_mode="circular", rank=3)
    padded.load_state_dict(plain.state_dict())
    for one, other in zip(dense_form(plain), dense_form(padded), strict=True):
        torch.testing.assert_close(one, other)
    dense = plain.to_dense()
    torch.testing.assert_close(dense_form(plain)[0][0], dense[0][0].double())


def test_a_layer_that_is_no_polynomial_is_refused() -> None:
    layer = quadric.make_layer(nn.Linear(3, 4), neuron="kervolution", p=3)
    with pytest.raises(InputError, match="polynomial of degree two, got the neuron 'kervolution'"):
        dense_form(layer)


def test_full_matrices_that_are_too_large_are_named() -> None:
    layer = quadric.make_layer(nn.Linear(4000, 2), neuron="qres")
    found = parameters(layer)
    assert found["eigenvalues"] is None
    assert "2 matrices of 4000 x 4000 would take minutes" in found["notes"][0]


def test_effective_rank() -> None:
    assert effective_rank(torch.tensor([3.0, -3.0, 3.0])) == pytest.approx(3)
    assert effective_rank(torch.tensor([3.0, 0.0])) == 1
    assert effective_rank(torch.zeros(4)) == 0
    assert 1 < effective_rank(torch.tensor([3.0, 1.0])) < 2


def test_a_distribution() -> None:
    found = distribution(torch.tensor([math.nan, *range(101)]))
    assert found is not None
    assert found["quantiles"] == [0, 5, 25, 50, 75, 95, 100]
    assert (found["count"], found["mean"]) == (101, 50)
    assert found["std"] == pytest.approx(850**0.5)
    assert distribution(torch.tensor([math.inf])) is None


def test_the_linear_weights_of_an_eigen_layer_are_without_its_eigenvectors() -> None:
    layer = QuadraticLinear(5, 8, rank=3)  # two neurons
    found = parameters(layer)
    assert found["weights"]["count"] == 2 * 5
    assert found["quadratic"]["count"] == 6
    assert found["effective_rank"]["quantiles"] == [0] * 7  # fresh eigenvalues are zero
    assert parameters(nn.Linear(5, 8))["quadratic"] is None
