"""Linear checkpoints load into eigen layers, and nothing else is ever filled silently."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import quadric
from tests.layers.cases import EIGEN, Geometry, each_geometry


def plain_model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))


def quadratic_model(**options: Any) -> Any:
    model: Any = nn.Sequential(
        quadric.QuadraticConv2d(3, 8, 3, rank=2, **options),
        nn.BatchNorm2d(8, **options),
        nn.Flatten(),
        quadric.QuadraticLinear(8, 4, rank=1, **options),
    )
    for layer in (model[0], model[3]):
        nn.init.constant_(layer.eigenvalues, 7.0)
    return model


def test_a_whole_linear_network_loads() -> None:
    plain = plain_model().eval()
    for model in (quadratic_model(), quadratic_model(device="meta")):
        model.load_state_dict(plain.state_dict(), assign=model[0].weight.is_meta)
        x = torch.randn(2, 3, 3, 3)
        torch.testing.assert_close(model.eval()(x), plain(x))


def test_a_partial_load_of_a_network_touches_only_what_it_names() -> None:
    model = quadratic_model()
    state = plain_model().state_dict()
    head = {name: value for name, value in state.items() if name.startswith("3.")}
    model.load_state_dict(head, strict=False)
    assert torch.all(model[0].eigenvalues == 7)
    assert torch.count_nonzero(model[3].eigenvalues) == 0


@each_geometry
def test_eigenvalues_alone_load_as_an_adapter(geometry: Geometry) -> None:
    layer = EIGEN.make(geometry)
    weight = layer.weight.detach().clone()
    values = torch.arange(layer.eigenvalues.numel(), dtype=torch.float64)
    missing = layer.load_state_dict({"eigenvalues": values}, strict=False).missing_keys
    assert set(missing) == {"weight", "bias"}
    torch.testing.assert_close(layer.eigenvalues.detach(), values, rtol=0, atol=0)
    torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=0)


@each_geometry
def test_a_damaged_state_dict_is_refused(geometry: Geometry) -> None:
    state = geometry.make_plain().state_dict()
    damaged: list[tuple[dict[str, Any], str]] = [
        ({"weight": state["weight"]}, r"Missing key.*bias"),
        ({"bias": state["bias"]}, r"Missing key.*weight"),
        ({}, r"Missing key.*eigenvalues"),
        ({**state, "weight": state["weight"][:1]}, r"size mismatch for weight"),
        ({**state, "bias": state["bias"][:1]}, r"size mismatch for bias"),
        ({**state, "eigenvalues": torch.zeros(1)}, r"size mismatch for eigenvalues"),
        ({**state, "lambda": torch.zeros(1)}, r"Unexpected key.*lambda"),
    ]
    for broken, message in damaged:
        layer = EIGEN.make(geometry)
        kept = layer.eigenvalues.detach().clone()
        with pytest.raises(RuntimeError, match=rf"(?s){message}"):
            layer.load_state_dict(broken)
        if "weight" not in broken:
            torch.testing.assert_close(layer.eigenvalues.detach(), kept, rtol=0, atol=0)


def test_a_damaged_network_is_refused_by_name() -> None:
    state = plain_model().state_dict()
    del state["0.weight"]
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*0\.weight.*0\.eigenvalues") as caught:
        quadratic_model().load_state_dict(state)
    assert "3.eigenvalues" not in str(caught.value)


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
