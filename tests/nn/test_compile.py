"""The plain formula is one graph: torch.compile without a break, and torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric import functional as QF
from tests import reference
from tests.conftest import assert_close
from tests.nn.cases import CASES, IDS, Case

each_layer = pytest.mark.parametrize("case", CASES, ids=IDS)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@each_layer
@pytest.mark.parametrize("normalize", [False, True])
def test_compiles_to_one_graph(case: Case, normalize: bool) -> None:
    layer, x = case.make(normalize=normalize), case.input()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), case.reference(layer, x, normalize))
    with torch.no_grad():
        assert_close(compiled(x), case.reference(layer, x, normalize))


@each_layer
def test_trains_compiled(case: Case) -> None:
    """Through aot_eager: forward and backward are traced, and an in-place activation behind."""
    layer, x = case.make(), case.input().requires_grad_()
    inputs = [x, *layer.parameters()]

    def block(x: Tensor) -> Tensor:
        return F.relu(layer(x), inplace=True)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(x).square().sum(), inputs)
    expected = torch.autograd.grad(F.relu(case.reference(layer, x)).square().sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


def test_compiles_for_any_batch_size() -> None:
    layer = CASES[2].make()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for batch in (2, 3, 5):
        x = CASES[2].input(batch)
        assert_close(compiled(x), layer(x))


def test_compiles_under_autocast() -> None:
    layer, x = CASES[2].make(dtype=torch.float32), CASES[2].input(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(x)
    assert out.dtype == torch.bfloat16
    assert_close(out, layer(x))


def test_add_quadratic_compiles() -> None:
    out, lam = torch.randn(3, 8, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    compiled = torch.compile(QF.add_quadratic, fullgraph=True, backend="eager")
    assert_close(compiled(out, lam, 2), reference.add_quadratic(out, lam, 2))


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


@each_layer
@pytest.mark.parametrize("normalize", [False, True])
def test_exports(case: Case, normalize: bool) -> None:
    layer, x = case.make(normalize=normalize), case.input()
    program = torch.export.export(layer, (x,))
    assert_close(program.module()(x), case.reference(layer, x, normalize))


def test_exports_for_any_batch_size() -> None:
    case = CASES[2]
    layer = case.make()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (case.input(),), dynamic_shapes=({0: batch},))
    x = case.input(7)
    assert_close(program.module()(x), layer(x))


@each_layer
def test_fx_trace_of_a_network_keeps_the_layer_whole(case: Case) -> None:
    """Tracers that treat torch.nn layers as leaves must be able to do so with ours."""

    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return isinstance(module, quadric.layers.QuadraticLayer) or super().is_leaf_module(
                module, name
            )

    model = nn.Sequential(case.make(), nn.ReLU())
    traced = torch.fx.GraphModule(model, Leaves().trace(model))
    x = case.input()
    torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)
    assert "call_module" in {node.op for node in traced.graph.nodes}
