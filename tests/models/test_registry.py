from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quadric import models


def test_names() -> None:
    assert set(models.names()) == {
        *(f"resnet{depth}" for depth in (8, 14, 18, 20, 32, 34, 44, 56, 110)),
        "cnn5",
        "digits_cnn",
        "mlp",
        *(f"transformer{kind}" for kind in ("", "_shrunk", "_tiny", "_tiny_shrunk")),
    }


WITH_NUMBERS = [name for name in models.names() if "transformer" not in name]


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_every_network_takes_its_default_input(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name).eval()
        out = model(torch.empty(2, *models.input_shape(name)))
    classes = models.options(name).get("num_classes", 1)
    assert out.shape == (2, classes)


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_input_shape_follows_the_options(name: str) -> None:
    option = "in_features" if name == "mlp" else "in_channels"
    shape = models.input_shape(name, **{option: 5})
    assert shape[0] == 5
    assert shape[1:] == models.input_shape(name)[1:]
    with torch.device("meta"):
        models.build(name, **{option: 5}).eval()(torch.empty(2, *shape))


def test_options_reach_the_network() -> None:
    with torch.device("meta"):
        model = models.create("resnet20", num_classes=100, channels=(4, 8, 16))
    assert model.fc.weight.shape == (100, 16)


def test_linear_ignores_the_choice_of_layers() -> None:
    with torch.device("meta"):
        model = models.create("resnet8", first=3, include=["conv1"])
    assert sum(p.numel() for p in model.parameters()) == 75_290


SMALL: dict[str, dict[str, object]] = {  # networks of each kind that are quick to run
    "mlp": {"in_features": 3, "hidden": (5, 4)},
    "cnn5": {"width": 0.125},
    "digits_cnn": {"width": 0.25},
    "resnet8": {"width": 0.25},
    "resnet14": {"width": 0.25, "shortcut": "B"},
    "resnet18": {"width": 0.0625},
}


def small(name: str, **options: object) -> tuple[nn.Module, Tensor]:
    """A network in float64 and eight inputs for it."""
    options = {**SMALL[name], **options}
    channels, *size = models.input_shape(name, **options)
    inputs = torch.randn(8, channels, *(min(side, 64) for side in size), dtype=torch.float64)
    return models.build(name, **options).double(), inputs


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_nothing_is_nonlinear_without_activation(name: str) -> None:
    def gap(activation: str | None) -> float:
        network, inputs = small(name, activation=activation)
        network.eval()
        x, y = inputs.split(4)
        mixed = network(0.3 * x + 0.7 * y) - 0.3 * network(x) - 0.7 * network(y)
        return float(mixed.abs().max())

    assert gap(None) < 1e-9
    assert gap("none") < 1e-9
    assert gap("silu") > 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_learns_and_the_activation_is_everywhere(name: str) -> None:
    network, inputs = small(name, activation="silu")
    network(inputs).square().sum().backward()
    gradients = {n: p.grad for n, p in network.named_parameters()}
    assert not [n for n, grad in gradients.items() if grad is None or not grad.abs().sum() > 0]
    kinds = [type(module) for module in network.modules()]
    weights = [p for n, p in network.named_parameters() if p.dim() in (2, 4)]
    shortcuts = [p for p in weights if p.dim() == 4 and p.shape[-1] == 1]
    assert kinds.count(nn.SiLU) == len(weights) - len(shortcuts) - 1  # none behind the head
    assert kinds.count(nn.ReLU) == 0
