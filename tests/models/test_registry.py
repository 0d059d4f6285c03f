from __future__ import annotations

import pytest
import torch

from quadric import models


def test_names() -> None:
    assert set(models.names()) == {
        *(f"resnet{depth}" for depth in (8, 14, 18, 20, 32, 34, 44, 56, 110)),
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


def test_digits_network_is_linear_without_activation() -> None:
    model = models.build("digits_cnn", activation=None).eval().double()
    x, y = torch.randn(2, 3, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(model(0.3 * x + 0.7 * y), 0.3 * model(x) + 0.7 * model(y))


@pytest.mark.parametrize("function", [models.build, models.create, models.input_shape])
def test_unknown_name_lists_the_names(function) -> None:
    with pytest.raises(ValueError, match=r"unknown model 'resnet21': choose from .*resnet20.*mlp"):
        function("resnet21")


@pytest.mark.parametrize("function", [models.build, models.create, models.input_shape])
def test_unknown_option_lists_the_options(function) -> None:
    match = "unknown option 'widht' for model 'resnet20': it has num_classes, .*width"
    with pytest.raises(ValueError, match=match):
        function("resnet20", widht=2)


def test_depth_is_the_name_not_an_option() -> None:
    with pytest.raises(ValueError, match="unknown option 'depth'"):
        models.build("resnet20", depth=32)


@pytest.mark.parametrize("first", [0, -1])
def test_bad_first(first) -> None:
    with pytest.raises(ValueError, match="first must be"):
        models.create("resnet8", neuron="eigen", first=first)


def test_linear_has_no_rank() -> None:
    with pytest.raises(ValueError, match="neuron 'linear' has no rank, got rank=9"):
        models.create("resnet8", rank=9)
