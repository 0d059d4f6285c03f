"""What single neurons promise besides the contract, and what `make_layer` takes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quadric
from quadric.layers import NeuronConv2d, QuadraticLayer
from tests.conftest import assert_close
from tests.layers.cases import F64, GATE_OFFSETS, randomize_


@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_bias_of_kervolution_is_outside_the_power(p: int) -> None:
    layer: Any = quadric.make_layer(nn.Linear, 3, 4, neuron="kervolution", p=p)
    x = torch.randn(5, 3)
    before = layer(x)
    with torch.no_grad():
        layer.bias.add_(2.5)
    torch.testing.assert_close(layer(x), before + 2.5)


def test_the_offset_of_kervolution_learns() -> None:
    layer: Any = quadric.make_layer(
        nn.Linear, 3, 4, neuron="kervolution", learnable_c=True, c=0.5, dtype=F64
    )
    torch.testing.assert_close(layer.offset, torch.full((4,), 0.5, dtype=F64))
    layer(torch.randn(5, 3, dtype=F64)).sum().backward()
    assert torch.all(layer.offset.grad != 0)


def test_quadenhancer_rolls_inside_each_group() -> None:
    both = randomize_(
        quadric.make_layer(nn.Conv1d, 4, 6, 1, groups=2, neuron="quadenhancer", dtype=F64)
    )
    x = torch.randn(1, 4, 3, dtype=F64)
    changed = x.clone()
    changed[:, :2] += 1
    torch.testing.assert_close(both(changed)[:, 3:], both(x)[:, 3:], rtol=0, atol=0)
    assert not torch.allclose(both(changed)[:, :3], both(x)[:, :3])


@pytest.mark.parametrize("act", GATE_OFFSETS)
def test_the_linear_part_of_a_gate_is_its_tangent(act: str) -> None:
    layer: Any = randomize_(quadric.make_layer(nn.Linear, 3, 5, neuron="glu", act=act, dtype=F64))
    x, zero = torch.randn(4, 3, dtype=F64), torch.zeros(4, 3, dtype=F64)
    value, slope = torch.func.jvp(layer, (zero,), (x,))
    assert_close(layer.responses(x)[0], value + slope)


def test_published_starts() -> None:
    def made(neuron: str, **options: Any) -> Any:
        return quadric.make_layer(nn.Linear, 40, 30, neuron=neuron, **options)

    fan = made("fan")
    assert not fan.weight2.any()
    assert not fan.weight3.any()
    assert not fan.bias3.any()
    assert torch.all(fan.bias2 == 1)
    drawn = made("fan", init="random")
    assert torch.count_nonzero(drawn.weight2) == torch.count_nonzero(drawn.weight3) == 1200
    bound = 1 / 40**0.5
    drawn_gates = (made(neuron).weight2 for neuron in ("qres", "quadralib", "bilinear", "glu"))
    for tensor in (made("lowrank").q2, *drawn_gates):
        assert tensor.abs().max() <= bound
        torch.testing.assert_close(tensor.std().item(), bound / 3**0.5, rtol=0.05, atol=0)
    for neuron in ("eigen", "square", "shared", "symmetric"):
        assert not made(neuron).eigenvalues.any()
    assert not made("quadenhancer").theta.any()
    for neuron in ("bilinear", "glu"):  # as torch draws a second layer
        assert 0 < made(neuron).bias2.abs().max() <= bound
    for tensor in (made("cross", rank=30).u, made("cross", rank=30).v):  # Xavier's normal start
        torch.testing.assert_close(tensor.std().item(), (2 / 60) ** 0.5, rtol=0.1, atol=0)
    assert not made("cross", init="linear").u.any()
    pure = made("pure").forms  # Glorot's uniform start
    torch.testing.assert_close(pure.std().item(), (2 / 80) ** 0.5, rtol=0.02, atol=0)
    general = made("general").forms  # x'Mx has the scale of one input
    torch.testing.assert_close(general.std().item(), 1 / 40, rtol=0.02, atol=0)


def test_sigmoid_glu_is_torchs() -> None:
    both = nn.Linear(5, 14, dtype=F64)
    layer: Any = quadric.make_layer(nn.Linear, 5, 7, neuron="glu", act="sigmoid", dtype=F64)
    with torch.no_grad():
        for name in ("weight", "bias"):
            factor, gate = getattr(both, name).chunk(2)
            getattr(layer, name).copy_(factor)
            getattr(layer, f"{name}2").copy_(gate)
    x = torch.randn(3, 5, dtype=F64)
    torch.testing.assert_close(layer(x), F.glu(both(x)))


def test_cross_is_a_layer_of_a_low_rank_cross_net() -> None:
    """One layer of torchrec's LowRankCrossNet, x0 * (W (V x) + b) + x at x = x0 and b = 0."""
    layer: Any = quadric.make_layer(nn.Linear, 6, 6, bias=False, neuron="cross", rank=3, dtype=F64)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(6))
    W, V = torch.randn(6, 3, dtype=F64), torch.randn(3, 6, dtype=F64)
    layer.load_state_dict({"weight": layer.weight, "u": W, "v": V})
    x = torch.randn(4, 6, dtype=F64)
    torch.testing.assert_close(layer(x), x * ((W @ (V @ x.T)).T) + x)


@pytest.mark.parametrize(
    ("neuron", "switch"), [("bilinear", "bias2"), ("cross", "u"), ("fan", "bias2")]
)
def test_a_gate_in_use_is_not_linear(neuron: str, switch: str) -> None:
    layer: Any = quadric.make_layer(nn.Linear(3, 4), neuron=neuron)
    assert layer.is_linear()
    with torch.no_grad():
        getattr(layer, switch)[0] = 2
    assert not layer.is_linear()


def test_the_constant_of_fan_is_part_of_the_linear_layer() -> None:
    layer: Any = quadric.make_layer(nn.Linear(3, 4), neuron="fan")
    with torch.no_grad():
        layer.bias3.fill_(5)
    torch.testing.assert_close(layer.to_linear().bias, layer.bias + 5)


def test_fan_without_bias_is_not_dead() -> None:
    layer: Any = quadric.make_layer(nn.Linear, 3, 4, bias=False, neuron="fan")
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight))
    assert [name for name, _ in layer.named_parameters()] == ["weight", "weight2", "weight3"]


@pytest.mark.parametrize("neuron", ["general", "pure"])
def test_full_neurons_refuse_a_layer_that_is_too_large(neuron: str) -> None:
    # 512 forms of 4608 x 4608 in float32: 43 GB
    size, alternative = 4 * 512 * 4608**2, 4 * 512 * 4609
    match = rf"'{neuron}'.*1,073,741,824.*need {size:,} bytes.*'eigen' \({alternative:,} bytes\)"
    with pytest.raises(ValueError, match=match):
        quadric.make_layer(nn.Conv2d, 512, 512, 3, neuron=neuron, device="meta")
    layer: Any = quadric.make_layer(
        nn.Conv2d, 512, 512, 3, neuron=neuron, device="meta", max_bytes=2**40
    )
    assert layer.forms.shape == (512, 4608, 4608)
    with pytest.raises(ValueError, match="max_bytes = 100,"):
        quadric.make_layer(nn.Linear, 3, 3, neuron=neuron, max_bytes=100)


def test_fan_squares_in_float32():
    layer = quadric.make_layer(nn.Linear, 1, 1, bias=False, neuron="fan").half()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight3.fill_(1e-3)
    out = layer(torch.tensor([[300.0]], dtype=torch.float16))
    torch.testing.assert_close(out.float(), torch.tensor([[90.0]]), rtol=1e-3, atol=0)


# ------------------------------------------------------------------------------------------------
# make_layer
# ------------------------------------------------------------------------------------------------


def test_make_layer_takes_a_layer_a_class_or_a_partial() -> None:
    module = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    partial = functools.partial(nn.Conv2d, 3, 8, 3, stride=2, padding=1, bias=False)
    layers = [
        quadric.make_layer(module, neuron="fan"),
        quadric.make_layer(module, "fan"),
        quadric.make_layer(partial, "fan"),
        quadric.make_layer(nn.Conv2d, 3, 8, 3, stride=2, padding=1, bias=False, neuron="fan"),
    ]
    for layer in layers:
        assert isinstance(layer, NeuronConv2d)
        assert isinstance(layer, QuadraticLayer)
        assert layer(torch.zeros(2, 3, 8, 8)).shape == (2, 8, 4, 4)
        assert layer.neuron == "fan"
        assert layer.rank is None
        assert repr(layer) == (
            "NeuronConv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False, "
            "neuron='fan')"
        )


def test_make_layer_gives_the_eigen_layers_and_the_plain_one() -> None:
    layer = quadric.make_layer(nn.Linear(3, 4), neuron="eigen", rank=2)
    assert type(layer) is quadric.QuadraticLinear
    assert layer.rank == 2
    plain = nn.Linear(3, 4)
    assert quadric.make_layer(plain, neuron="linear") is plain
    assert type(quadric.make_layer(nn.Linear, 3, 4, neuron="linear")) is nn.Linear
    transposed = quadric.make_layer(nn.ConvTranspose2d(3, 4, 2), neuron="eigen", rank=1)
    assert type(transposed) is quadric.QuadraticConvTranspose2d


def test_make_layer_of_a_layer_that_draws_new_weights() -> None:
    plain = nn.Linear(4, 7)
    layer: Any = quadric.make_layer(plain, neuron="qres", init="published")
    assert layer.weight is not plain.weight
    assert torch.count_nonzero(layer.weight2)


@pytest.mark.parametrize(
    ("spec", "options", "error", "match"),
    [
        (nn.Linear(3, 4), {"neuron": "fann"}, ValueError, r"one of linear, eigen.*, got 'fann'"),
        (nn.Linear(3, 4), {"neuron": None}, ValueError, r"one of linear.*got None"),
        (nn.Linear(3, 4), {"neuron": "fan", "p": 2}, ValueError, r"'fan' has no option 'p'.*none"),
        (nn.Linear(3, 4), {"neuron": "lowrank", "k": 2}, ValueError, r"no option 'k'.*: rank"),
        (nn.Linear(3, 4), {"neuron": "fan", "rank": 2}, ValueError, r"'fan' has no rank.*eigen"),
        (nn.Linear(3, 4), {"neuron": "fan", "init": "x"}, ValueError, r"published, linear, random"),
        (nn.Linear(3, 4), {"neuron": "shared", "rank": 0}, ValueError, r"rank must be >= 1, got 0"),
        (nn.Linear(3, 4), {"neuron": "symmetric", "rank": 1.5}, TypeError, r"integer.*got 1.5"),
        (nn.Linear(3, 4), {"neuron": "kervolution", "p": 1}, ValueError, r"p must be.*got 1"),
        (nn.Linear(3, 4), {"neuron": "quadenhancer", "shifts": 0}, ValueError, r"shifts.*got 0"),
        (nn.Linear(3, 4), {"neuron": "glu", "act": "tanh"}, ValueError, r"act must.*got 'tanh'"),
        (nn.Linear(3, 4), {"neuron": "cross", "rank": 0}, ValueError, r"rank must be >= 1, got 0"),
        (nn.ReLU(), {"neuron": "fan"}, TypeError, r"nn.Linear, .*got.*ReLU"),
        (nn.ConvTranspose1d(3, 4, 2), {"neuron": "pure"}, ValueError, r"'pure' has no transposed"),
        (nn.Linear, {"neuron": "fan", "widht": 3}, ValueError, r"'fan' has no option 'widht'"),
        (nn.LazyLinear(4), {"neuron": "fan"}, ValueError, r"uninitialized LazyLinear"),
    ],
)
def test_make_layer_refuses(spec: Any, options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        quadric.make_layer(spec, **options)
