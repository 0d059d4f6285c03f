"""The operator that stands for the squares in a compiled graph: its values, gradients and place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.ops.blocks import eigen_blocks, shared_blocks
from tests.conftest import assert_close, need_kernels
from tests.ops.squares import data, formula

CASES = {
    "eigen": (eigen_blocks(26, 9), -1),
    "eigen, images": (eigen_blocks(26, 4), -3),
    "shared": (shared_blocks(26, 8), -1),
    "shared, images": (shared_blocks(26, 5, groups=2), -3),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    need_kernels()
    yield
    quadric.use_kernels(False)


class Graphs:
    """A backend that keeps the graphs it was given and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0
        self.targets: list[str] = []
        self.arguments: list[Any] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.count += 1
        self.targets += [str(node.target) for node in graph.graph.nodes]
        self.arguments += [value for node in graph.graph.nodes for value in node.args]
        return graph.forward


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_s_own_checks(name: str, channels_last: bool) -> None:
    """Gradients, the promise on shapes and strides, tracing: torch.library.opcheck."""
    blocks, dim = CASES[name]
    if channels_last and dim == -1:
        return
    z, lam, grad = data(
        blocks, (4, 26) if dim == -1 else (2, 26, 3, 5), channels_last=channels_last
    )
    settings = (blocks.shape, blocks.channels, blocks.size, blocks.groups, dim, "1.0")
    add = torch.ops.quadric.add_squares.default
    torch.library.opcheck(add, (z.requires_grad_(), lam.requires_grad_(), *settings))
    expected = formula(z, lam, blocks, dim)
    torch.testing.assert_close(add(z, lam, *settings).double(), expected, rtol=1e-5, atol=1e-5)
    backward = torch.ops.quadric.add_squares_backward.default
    torch.library.opcheck(backward, (grad, z.detach(), lam.detach(), *settings))


@pytest.mark.parametrize("version", ["0.1.0", "7.8.9"])
def test_a_graph_on_disk_is_of_one_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch looks for it by all arguments of an operator, and keeps the backward pass with it."""
    torch.compiler.reset()
    monkeypatch.setattr(quadric, "__version__", version)
    layer = quadric.make_layer(nn.Linear, 8, 8, neuron="shared")
    torch.compile(layer, backend=(graphs := Graphs()), fullgraph=True)(torch.randn(3, 8))
    assert version in graphs.arguments


@pytest.mark.parametrize(
    ("neuron", "switched_on", "dtype", "wanted"),
    [
        ("eigen", True, torch.float32, True),
        ("eigen", False, torch.float32, False),  # the formula fuses
        ("shared", True, torch.float32, True),
        ("shared", False, torch.float32, True),  # the formula does not
        ("shared", True, torch.bfloat16, False),
    ],
)
def test_where_the_graph_holds_it(
    neuron: str, switched_on: bool, dtype: torch.dtype, wanted: bool
) -> None:
    quadric.use_kernels(switched_on)
    layer: Any = quadric.make_layer(nn.Linear, 4, 20, neuron=neuron).to(dtype)
    nn.init.normal_(layer.eigenvalues)
    graphs = Graphs()
    x = torch.randn(3, 4, dtype=dtype)
    found = torch.compile(layer, fullgraph=True, backend=graphs)(x)
    assert any("add_squares" in target for target in graphs.targets) == wanted
    assert_close(found, layer(x))


def test_exported_programs_hold_standard_operators_alone() -> None:
    layer = quadric.make_layer(nn.Linear, 4, 20, neuron="shared")
    program = torch.export.export(layer, (torch.randn(3, 4),))
    assert not any("add_squares" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_second_derivatives_are_refused_rather_than_wrong(neuron: str) -> None:
    layer = quadric.make_layer(nn.Linear, 4, 10, neuron=neuron, rank=4)
    x = torch.randn(5, 4, requires_grad=True)
    compiled = torch.compile(layer, backend="eager")
    (first,) = torch.autograd.grad(compiled(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.pow(2).sum().backward()


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_transforms_inside_of_a_compiled_function(neuron: str) -> None:
    """vmap and grad differentiate the formula, which the operator hides."""
    layer = quadric.make_layer(nn.Linear, 4, 10, neuron=neuron, rank=4)
    nn.init.normal_(layer.eigenvalues)  # type: ignore[arg-type]
    x = torch.randn(5, 4)

    def each(x: Tensor) -> Tensor:
        gradients: Tensor = torch.func.vmap(torch.func.grad(lambda row: layer(row).sum()))(x)
        return gradients

    found = torch.compile(each, fullgraph=True, backend="aot_eager")(x)
    assert_close(found, each(x))
