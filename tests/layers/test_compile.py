"""Compilers and tracers treat a quadratic network as they treat the linear one: no graph break, no
more compilations when the batch size changes, and one node for each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import quadric
from quadric import QuadraticMultiheadAttention
from tests.conftest import assert_close
from tests.layers.cases import CONV2D, EIGEN, F64
from tests.networks import NETWORKS as TRACED
from tests.networks import curve_

BATCHES = (4, 5, 9)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


def pictures(neuron: str) -> nn.Module:
    return quadric.models.create("digits_cnn", neuron=neuron, channels=(4, 8, 12))


def table_network(neuron: str) -> nn.Module:
    return quadric.models.create("mlp", neuron=neuron, hidden=(12, 20))


def encoder(neuron: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    if neuron != "linear":
        quadric.convert_(model, neuron=neuron)
    return model


NETWORKS: dict[str, tuple[Callable[[str], nn.Module], tuple[int, ...]]] = {
    "pictures": (pictures, (1, 6, 6)),
    "mlp": (table_network, (8,)),
    "encoder": (encoder, (5, 16)),
}


def compilations(model: nn.Module, shape: tuple[int, ...], train: bool, dynamic: Any) -> list[int]:
    """How many graphs had been compiled after each batch."""
    torch._dynamo.reset()
    backend = CompileCounter()
    model.train(train)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    counts = []
    for batch in BATCHES:
        x = torch.randn(batch, *shape)
        with torch.set_grad_enabled(train):
            out: Tensor = compiled(x)
        if train:
            out.sum().backward()
        counts.append(int(backend.frame_count))
    return counts


@pytest.mark.parametrize(
    ("name", "train", "dynamic"),
    [
        ("pictures", True, None),
        ("mlp", False, True),
        pytest.param("encoder", False, None, marks=pytest.mark.slow),
    ],
)
def test_as_often_as_linear(name: str, train: bool, dynamic: bool | None) -> None:
    make, shape = NETWORKS[name]
    linear = compilations(make("linear"), shape, train, dynamic)
    for neuron in ("eigen", "shared"):
        assert compilations(make(neuron), shape, train, dynamic) == linear, neuron
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_inductor_once_for_any_batch(neuron: str) -> None:
    """The same through torch's default compiler, and the numbers with it."""
    model: Any = pictures(neuron).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (4, 5, 9):
            x = torch.randn(batch, 1, 6, 6)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_compiles_under_autocast() -> None:
    layer, x = EIGEN.make(CONV2D, dtype=torch.float32), CONV2D.input(torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(x)
    assert out.dtype == torch.bfloat16
    assert_close(out, layer(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor() -> None:
    model: Any = nn.Sequential(quadric.QuadraticConv2d(3, 8, 3, rank=2), nn.ReLU(inplace=True))
    nn.init.normal_(model[0].eigenvalues)
    x = torch.randn(2, 3, 5, 5)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True)
    got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


def test_exports_for_any_batch_size() -> None:
    layer = EIGEN.make(CONV2D)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (CONV2D.input(),), dynamic_shapes=({0: batch},))
    x = torch.randn(7, *CONV2D.shape[1:], dtype=F64)
    assert_close(program.module()(x), layer(x))


# ------------------------------------------------------------------------------------------------
# torch.fx
# ------------------------------------------------------------------------------------------------


def test_attention_alone() -> None:
    layer = QuadraticMultiheadAttention(8, 2, rank=3, batch_first=True).eval()
    curve_(layer)
    x = torch.randn(2, 5, 8)
    for got, expected in zip(torch.fx.symbolic_trace(layer)(x, x, x), layer(x, x, x), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("neuron", ["eigen", "fan"])
@pytest.mark.parametrize("name", ["resnet8", "digits_cnn", "mlp", "unet", "shared"])
def test_a_network_is_traced_as_its_plain_twin_is(name: str, neuron: str) -> None:
    build, make_inputs = TRACED[name]
    model, inputs = build().eval(), make_inputs()
    plain = [(n.op, n.target) for n in torch.fx.symbolic_trace(model).graph.nodes]
    quadric.convert_(model, neuron=neuron)
    traced = torch.fx.symbolic_trace(curve_(model))
    assert [(n.op, n.target) for n in traced.graph.nodes] == plain  # each layer is one node
    assert torch.equal(traced(*inputs), model(*inputs))
