"""Networks of degree two as quadratic forms, against matrices made from values alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.analysis import QuadraticForms, figures, quadratic_forms
from quadric.errors import InputError, InputTypeError


def network(neuron: str = "shared", outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        quadric.make_layer(nn.Linear(6, 8), neuron=neuron),
        nn.BatchNorm1d(8),
        nn.Linear(8, outputs),
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    model(torch.randn(50, 1, 2, 3))  # statistics of the normalization
    return model


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square", "bilinear"])
def test_the_forms_are_the_network(neuron: str) -> None:
    model = network(neuron)
    forms = quadratic_forms(model, torch.zeros(1, 2, 3))
    x = torch.randn(20, 6, dtype=torch.float64)
    expected = model.double().eval()(x.view(20, 1, 2, 3))
    linear = x @ forms.weights.T + forms.biases
    by_matrices = torch.einsum("ni,oij,nj->no", x, forms.matrices, x) + linear
    torch.testing.assert_close(by_matrices, expected)
    along = torch.einsum("ni,oki->nok", x, forms.eigenvectors.flatten(2)).square()
    torch.testing.assert_close((along * forms.eigenvalues).sum(2) + linear, expected)


def test_eigenvectors_are_ordered_and_signed() -> None:
    forms = quadratic_forms(network(), torch.zeros(1, 2, 3))
    assert forms.eigenvectors.shape == (3, 6, 1, 2, 3)
    sizes = forms.eigenvalues.abs()
    assert bool((sizes[:, :-1] >= sizes[:, 1:]).all())
    flat = forms.eigenvectors.flatten(2)
    assert bool((flat.amax(2) == flat.abs().amax(2)).all())
    matrix = torch.diag(torch.tensor([1.0, -3.0, 2.0, 0.5]).double())
    plain = QuadraticForms(matrix[None], torch.zeros(1, 4), torch.zeros(1), (4,))
    torch.testing.assert_close(plain.eigenvalues, torch.tensor([[-3.0, 2.0, 1.0, 0.5]]).double())
    unit = torch.eye(4).double()
    torch.testing.assert_close(plain.strongest(0, 5), unit[[2, 0, 3]])
    torch.testing.assert_close(plain.strongest(0, positive=False), unit[[1]])
    # e to the entropy of 6, 4, 2 and 1 thirteenths.
    rank = 13 / (6 ** (6 / 13) * 4 ** (4 / 13) * 2 ** (2 / 13))
    assert plain.effective_ranks[0] == pytest.approx(rank)


def test_the_eigenvectors_of_an_eigen_neuron_are_its_parameters() -> None:
    layer = quadric.QuadraticLinear(6, 3, rank=2)
    directions, _ = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        layer.weight[1:] = directions.T
        layer.eigenvalues[:] = torch.tensor([2.0, -1.0])
    forms = quadratic_forms(layer, torch.zeros(6))
    torch.testing.assert_close(
        forms.eigenvalues[0, :2], torch.tensor([2.0, -1.0]).double(), rtol=1e-5, atol=0
    )
    found = forms.eigenvectors[0, :2].float()
    torch.testing.assert_close((found * directions.T).sum(1).abs(), torch.ones(2))
    assert not bool(forms.matrices[1:].any())  # features are linear


def test_the_network_stays_as_it_is() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quadratic_forms(model, torch.zeros(1, 2, 3))
    assert all(module.training for module in model.modules())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def _two_layers() -> nn.Module:
    return nn.Sequential(network()[1], network()[3], quadric.make_layer(nn.Linear(3, 3), "square"))


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(6, 4), nn.SiLU()), _two_layers()])
def test_other_networks_are_refused(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    with pytest.raises(InputError, match="a polynomial of degree two of its inputs, got one with"):
        quadratic_forms(model, torch.zeros(6))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def test_bad_arguments() -> None:
    with pytest.raises(InputTypeError, match="example_input must be a tensor, got list"):
        quadratic_forms(network(), [0.0] * 6)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="10 matrices of 3072 x 3072 would take minutes"):
        quadratic_forms(nn.Linear(3072, 10), torch.zeros(3072))
    with pytest.raises(InputError, match="must give a vector of outputs"):
        quadratic_forms(Pair(), torch.zeros(3))
    with pytest.raises(InputError, match=r"must take one input of shape \(5,\), got RuntimeError"):
        quadratic_forms(nn.Linear(3, 2), torch.zeros(5))
    with pytest.raises(InputError, match="must take one input of shape"):
        quadratic_forms(nn.Linear(3, 2, device="meta"), torch.zeros(3))
    forms = quadratic_forms(network(), torch.zeros(1, 2, 3))
    assert repr(forms).startswith("QuadraticForms of inputs (1, 2, 3), effective ranks ")
    for output in (-1, 3):
        with pytest.raises(InputError, match=f"output must be in 0 ... 2, got {output}"):
            forms.strongest(output)
    with pytest.raises(InputError, match="count"):
        forms.strongest(0, 0)


def test_the_figure() -> None:
    pytest.importorskip("matplotlib")
    forms = quadratic_forms(network(), torch.zeros(1, 2, 3))
    figure = figures.eigenvectors(forms, names=["a", "b", "c"], count=2)
    axes = figure.axes
    assert [axis.get_title() for axis in axes[:3]] == ["a", "b", "c"]
    for row, positive in enumerate((True, True, False, False)):
        shown = torch.tensor(axes[3 * row].images[0].get_array().data)
        torch.testing.assert_close(shown, forms.strongest(0, 2, positive)[row % 2, 0])
    flat = quadratic_forms(nn.Sequential(*list(network())[1:]), torch.zeros(6))
    assert figures.eigenvectors(flat, shape=(3, 2)).axes[0].get_title() == "0"
    with pytest.raises(InputError, match="give the height and width that fit"):
        figures.eigenvectors(flat)
    with pytest.raises(InputError, match="count"):
        figures.eigenvectors(forms, count=0)
    with pytest.raises(InputError, match="must name 3 outputs, got 1"):
        figures.eigenvectors(forms, names=["a"])
