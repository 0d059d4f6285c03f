"""Linear checkpoints load into eigen layers, and nothing else is ever filled silently."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import quadric
from tests.nn.cases import CASES, IDS, Case

each_layer = pytest.mark.parametrize("case", CASES, ids=IDS)


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


@each_layer
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_linear_state_dict_loads(case: Case, strict: bool, assign: bool) -> None:
    plain, layer, x = case.make_plain(), case.make(), case.input()
    state = plain.state_dict()
    result = layer.load_state_dict(state, strict=strict, assign=assign)
    assert result.missing_keys == []
    assert result.unexpected_keys == []
    assert torch.count_nonzero(layer.eigenvalues) == 0
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)
    assert sorted(state) == ["bias", "weight"]  # the caller's dict is the caller's
    assert layer.eigenvalues.requires_grad


@each_layer
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_linear_state_dict_is_assigned_onto_meta(case: Case, dtype: torch.dtype) -> None:
    plain = case.make_plain(dtype=dtype)
    layer = case.layer(*case.args, **case.options, rank=2, device="meta")
    layer.load_state_dict(plain.state_dict(), assign=True)
    for name, parameter in layer.named_parameters():
        assert isinstance(parameter, nn.Parameter), name
        assert parameter.device.type == "cpu", name
        assert parameter.dtype == dtype, name
        assert parameter.requires_grad, name
    x = case.input(dtype=dtype)
    torch.testing.assert_close(layer(x), plain(x))
    layer(x).sum().backward()
    assert layer.eigenvalues.grad is not None


def test_a_whole_linear_network_loads() -> None:
    plain = plain_model().eval()
    for model in (quadratic_model(), quadratic_model(device="meta")):
        model.load_state_dict(plain.state_dict(), assign=model[0].weight.is_meta)
        x = torch.randn(2, 3, 3, 3)
        torch.testing.assert_close(model.eval()(x), plain(x))


def test_a_layer_inside_containers_loads() -> None:
    plain = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(3, 4)])})
    model: Any = nn.ModuleDict({"a": nn.ModuleList([quadric.QuadraticLinear(3, 4)])})
    nn.init.ones_(model["a"][0].eigenvalues)
    model.load_state_dict(plain.state_dict())
    assert torch.count_nonzero(model["a"][0].eigenvalues) == 0


@each_layer
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_load_linear_checkpoints_into_themselves(case: Case, how: str) -> None:
    layer = case.make()
    kept = layer.eigenvalues.detach().clone()
    other = copy.deepcopy(layer) if how == "deepcopy" else pickle.loads(pickle.dumps(layer))
    other.load_state_dict(case.make_plain().state_dict())
    assert torch.count_nonzero(other.eigenvalues) == 0
    torch.testing.assert_close(layer.eigenvalues.detach(), kept, rtol=0, atol=0)


@each_layer
def test_own_state_dict_round_trip(case: Case) -> None:
    layer, other, x = case.make(), case.make(), case.input()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    assert torch.count_nonzero(other.eigenvalues) > 0


@each_layer
def test_a_partial_load_leaves_trained_eigenvalues_alone(case: Case) -> None:
    layer = case.make()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    missing = layer.load_state_dict({}, strict=False).missing_keys
    assert set(missing) == {"weight", "bias", "eigenvalues"}
    missing = layer.load_state_dict({"bias": before["bias"] + 1}, strict=False).missing_keys
    assert set(missing) == {"weight", "eigenvalues"}
    torch.testing.assert_close(layer.eigenvalues.detach(), before["eigenvalues"], rtol=0, atol=0)
    torch.testing.assert_close(layer.weight.detach(), before["weight"], rtol=0, atol=0)


def test_a_partial_load_of_a_network_touches_only_what_it_names() -> None:
    model = quadratic_model()
    state = plain_model().state_dict()
    head = {name: value for name, value in state.items() if name.startswith("3.")}
    model.load_state_dict(head, strict=False)
    assert torch.all(model[0].eigenvalues == 7)
    assert torch.count_nonzero(model[3].eigenvalues) == 0


@each_layer
def test_eigenvalues_alone_load_as_an_adapter(case: Case) -> None:
    layer = case.make()
    weight = layer.weight.detach().clone()
    values = torch.arange(layer.eigenvalues.numel(), dtype=torch.float64)
    missing = layer.load_state_dict({"eigenvalues": values}, strict=False).missing_keys
    assert set(missing) == {"weight", "bias"}
    torch.testing.assert_close(layer.eigenvalues.detach(), values, rtol=0, atol=0)
    torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=0)


@each_layer
def test_a_damaged_state_dict_is_refused(case: Case) -> None:
    state = case.make_plain().state_dict()
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
        layer = case.make()
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


@each_layer
def test_eigenvalues_of_another_rank_are_refused(case: Case) -> None:
    state = case.make(rank=1).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch for eigenvalues"):
        case.make(rank=3).load_state_dict(state)


@each_layer
def test_a_layer_without_bias_refuses_a_bias(case: Case) -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias"):
        case.make(bias=False).load_state_dict(case.make_plain().state_dict())
    layer = case.make(bias=False)
    layer.load_state_dict(case.make_plain(bias=False).state_dict())
    assert torch.count_nonzero(layer.eigenvalues) == 0


def test_a_weight_that_does_not_fit_erases_nothing() -> None:
    layer = quadric.QuadraticLinear(3, 8, rank=2)
    nn.init.ones_(layer.eigenvalues)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(nn.Linear(3, 9).state_dict())
    torch.testing.assert_close(layer.eigenvalues.detach(), torch.ones(5), rtol=0, atol=0)


def test_what_torch_saves_loads_again(tmp_path: Any) -> None:
    layer = quadric.QuadraticConv2d(3, 8, 3, rank=2)
    nn.init.normal_(layer.eigenvalues)
    path = tmp_path / "layer.pt"
    torch.save(layer.state_dict(), path)
    other = quadric.QuadraticConv2d(3, 8, 3, rank=2)
    other.load_state_dict(torch.load(path, weights_only=True))
    torch.testing.assert_close(other.eigenvalues, layer.eigenvalues, rtol=0, atol=0)
