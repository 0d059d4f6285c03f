"""Which path runs, once per call, and that each gives the formula's values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import quadric
from quadric import ops
from quadric.ops import autograd, backends, cpu_matmul, reference
from quadric.ops.blocks import eigen_blocks, shared_blocks
from tests.conftest import need_kernels
from tests.ops.squares import FORMATS, Operations, formula

NEURONS = ("eigen", "shared")


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    need_kernels()
    yield
    quadric.use_kernels(False)


def bent(layer: Any) -> Any:
    """A layer whose eigenvalues have learned."""
    nn.init.normal_(layer.eigenvalues, std=0.3)
    return layer


def expected_of(layer: Any, x: Tensor) -> Tensor:
    """What a layer should compute, in float64."""
    return expected_of_twin(copy.deepcopy(layer).double(), x.double())


def expected_of_twin(twin: Any, x: Tensor) -> Tensor:
    """What a layer in float64 should compute."""
    linear_op = twin.linear_op
    z = linear_op(linear_op.prepare(x), twin.weight, twin.bias)
    return formula(z, twin.effective_eigenvalues(), twin.blocks, linear_op.channel_dim)


BLOCKS = eigen_blocks(20, 9)


@pytest.mark.parametrize(
    ("z", "dim", "kernels", "chosen"),
    [
        (torch.zeros(3, 20), -1, True, "NATIVE"),
        (torch.zeros(3, 20), -1, False, "CPU_MATMUL"),
        (torch.zeros(3, 20, dtype=torch.float64), -1, True, "CPU_MATMUL"),
        (torch.zeros(3, 20).bfloat16(), -1, True, "NATIVE"),
        (torch.zeros(3, 20).half(), -1, True, "NATIVE"),
        (torch.zeros(3, 20).bfloat16(), -1, False, "TORCH_VIEWS"),
        (torch.zeros(20, 3).T, -1, True, "TORCH_VIEWS"),
        (torch.zeros(0, 20), -1, True, "TORCH_VIEWS"),
        (torch.zeros(3, 20, device="meta"), -1, True, "TORCH_VIEWS"),
        (torch.zeros(2, 20, 4, 4), -3, True, "NATIVE"),
        (torch.zeros(2, 20, 4, 4), -3, False, "TORCH_VIEWS"),
        (torch.zeros(2, 20, 4, 4).contiguous(memory_format=FORMATS[4]), -3, True, "NATIVE"),
        (torch.zeros(2, 20, 4, 4).contiguous(memory_format=FORMATS[4]), -3, False, "CPU_MATMUL"),
        (
            torch.zeros(2, 20, 4).transpose(1, 2).contiguous().transpose(1, 2),
            -2,
            False,
            "CPU_MATMUL",
        ),
    ],
)
def test_the_backend(z: Tensor, dim: int, kernels: bool, chosen: str) -> None:
    quadric.use_kernels(kernels)
    assert ops.backend_for(z, BLOCKS, dim) is getattr(backends, chosen)


def test_the_square_neuron_needs_no_mixing() -> None:
    assert ops.backend_for(torch.zeros(3, 20), shared_blocks(20, 1), -1) is backends.TORCH_VIEWS


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the paths that run."""
    ran: list[str] = []

    def record(module: Any, name: str, label: str) -> None:
        real = getattr(module, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            ran.append(label)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, recorded)

    record(reference, "add_squares", "reference")
    record(cpu_matmul, "add_squares", "small")
    record(autograd.AddSquares, "apply", "eager")
    record(autograd.DenseSquares, "apply", "one node")
    record(ops, "backend_for", "backend")
    return ran


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("kernels", [False, True])
def test_the_path(neuron: str, kernels: bool, paths: list[str]) -> None:
    quadric.use_kernels(kernels)
    layer = bent(quadric.make_layer(nn.Linear, 8, 64, neuron=neuron))
    small, large = torch.randn(5, 8), torch.randn(2000, 8)
    with torch.no_grad():
        layer(small)
    assert paths == ["backend"]
    paths.clear()
    layer(small)
    assert paths == ["one node" if kernels else "small"]
    paths.clear()
    layer(large)
    assert paths == (["one node"] if kernels else ["backend", "eager"])
    paths.clear()
    torch.func.vmap(layer)(small)
    assert paths == ["reference"]
    paths.clear()
    wide = bent(quadric.make_layer(nn.Linear, 8, 200, neuron=neuron))
    wide(small)
    assert paths == (["one node"] if kernels else ["backend", "eager"])
    paths.clear()
    bent(quadric.make_layer(nn.Conv2d, 1, 64, 1, neuron=neuron))(torch.randn(2, 1, 8, 8))
    assert paths == ["backend", "eager"]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("rows_", [5, 2000])
def test_second_derivatives(neuron: str, rows_: int) -> None:
    layer = bent(quadric.make_layer(nn.Linear, 4, 40, neuron=neuron, rank=3)).double()
    x = torch.randn(rows_, 4, dtype=torch.float64, requires_grad=True)

    def second(out: Tensor) -> tuple[Tensor, ...]:
        own = [x, *layer.parameters()]
        slopes = torch.autograd.grad(out.sin().sum(), own, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), own)

    z = nn.functional.linear(x, layer.weight, layer.bias)
    wanted = second(formula(z, layer.eigenvalues, layer.blocks, -1))
    torch.testing.assert_close(second(layer(x)), wanted)


@pytest.mark.parametrize("neuron", NEURONS)
def test_second_derivatives_are_torch_s_own_after_the_first(neuron: str, paths: list[str]) -> None:
    """A node that computes the layer again each time would take three times as long."""
    layer = bent(quadric.make_layer(nn.Linear, 4, 40, neuron=neuron, rank=3))
    twin, x = copy.deepcopy(layer).double(), torch.randn(9, 4)

    def second(layer: Any, out: Any, x: Tensor) -> tuple[Tensor, ...]:
        x = x.requires_grad_()
        own = [x, *layer.parameters()]
        slopes = torch.autograd.grad(out(layer, x).sin().sum(), own, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), own)

    wanted = second(twin, expected_of_twin, x.double())
    for path in (["one node", "small"], ["small"]):
        paths.clear()
        found = second(layer, lambda layer, x: layer(x), x)
        assert paths == path
        for ours, theirs in zip(found, wanted, strict=True):
            scale = float(theirs.abs().max())
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("rows", [5, 2000])
@pytest.mark.parametrize("gradients", [True, False])
def test_forward_mode(neuron: str, rows: int, gradients: bool) -> None:
    layer = bent(quadric.make_layer(nn.Linear, 4, 40, neuron=neuron, rank=3))
    x, along = torch.randn(rows, 4), torch.randn(rows, 4)
    with torch.set_grad_enabled(gradients), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, along))).tangent
    whole = (x.double(), along.double())
    wanted = torch.autograd.functional.jvp(lambda x: expected_of(layer, x), *whole)[1]
    assert tangent is not None
    torch.testing.assert_close(tangent.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("neuron", NEURONS)
def test_an_infinite_square_of_a_small_layer_stays_in_its_block(neuron: str) -> None:
    layer = bent(quadric.make_layer(nn.Linear, 2, 40, neuron=neuron, rank=3, bias=False))
    with torch.no_grad():
        layer.weight[:, 0], layer.weight[9:, 1] = 1.0, 0.0
    x = torch.tensor([[0.5, 1e30]])
    out = layer(x)
    assert out[:, 20:].isfinite().all()
    assert not out[:, :9].isfinite().all()


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_fresh_layer_is_exactly_linear(neuron: str, train: bool, kernels: bool) -> None:
    """Also for so many inputs that torch adds up products in several parts."""
    quadric.use_kernels(kernels)
    linear = nn.Linear(2000, 40)
    layer = quadric.make_layer(linear, neuron=neuron)
    x = torch.randn(64, 2000)
    with torch.set_grad_enabled(train):
        assert torch.equal(layer(x), linear(x))


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("shape", [(70, 6), (6,), (2, 35, 6)])
@pytest.mark.parametrize("frozen", ["", "bias", "weight", "eigenvalues", "input"])
def test_a_dense_layer_trains_as_in_float64(
    neuron: str, shape: tuple[int, ...], frozen: str
) -> None:
    """In front of an activation that overwrites what the layer keeps; some gradients unwanted."""
    layer = bent(quadric.make_layer(nn.Linear, 6, 37, neuron=neuron, rank=3))
    x = torch.randn(shape).requires_grad_(frozen != "input")
    if frozen in ("bias", "weight", "eigenvalues"):
        getattr(layer, frozen).requires_grad_(False)
    twin, wide = copy.deepcopy(layer).double(), x.detach().double().requires_grad_(x.requires_grad)
    nn.functional.silu(expected_of_twin(twin, wide)).sin().sum().backward()
    nn.functional.silu(layer(x), inplace=True).sin().sum().backward()
    pairs = [(x, wide), *zip(layer.parameters(), twin.parameters(), strict=True)]
    for ours, theirs in pairs:
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            scale = float(theirs.grad.abs().max())
            torch.testing.assert_close(
                ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5 * scale
            )


@pytest.mark.parametrize("neuron", NEURONS)
def test_a_dense_layer_under_autocast(neuron: str) -> None:
    layer = bent(quadric.make_layer(nn.Linear, 6, 37, neuron=neuron, rank=3))
    x = torch.randn(70, 6)
    twin = copy.deepcopy(layer).double()
    expected_of_twin(twin, x.double()).square().mean().backward()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        assert out.dtype == torch.bfloat16
        out.float().square().mean().backward()  # within: a backward pass has its own types
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert ours.grad.dtype == torch.float32
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0.05, atol=0.02 * scale)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("how", ["eager", "two threads", "compiled"])
def test_a_network_trains_as_in_float64(neuron: str, channels_last: bool, how: str) -> None:
    """In front of activations that overwrite what the layers keep."""
    conv = bent(quadric.make_layer(nn.Conv2d, 3, 26, 3, padding=1, neuron=neuron, rank=4))
    linear = bent(quadric.make_layer(nn.Linear, 26, 17, neuron=neuron, rank=3))
    rest = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear, nn.SiLU(True))
    model = nn.Sequential(conv, nn.ReLU(True), *rest)
    x = torch.randn(8, 3, 24, 24)  # large enough for several threads to share the work
    wide = copy.deepcopy(model).double()
    wide(x.double()).square().sum().backward()
    if channels_last:
        model, x = model.to(memory_format=FORMATS[4]), x.contiguous(memory_format=FORMATS[4])
    torch.compiler.reset()
    runs: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    before = torch.get_num_threads()
    torch.set_num_threads(2 if how == "two threads" else 1)
    try:
        (runs if how == "compiled" else model)(x).square().sum().backward()
    finally:
        torch.set_num_threads(before)
    for (name, ours), theirs in zip(model.named_parameters(), wide.parameters(), strict=True):
        assert ours.grad is not None, name
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("record", [make_fx, None])
def test_a_graph_that_is_recorded_holds_the_squares(
    neuron: str, gradients: bool, record: Any
) -> None:
    """make_fx and torch.jit.trace see torch's operations, not what kernels do to a tensor."""
    layer = bent(quadric.make_layer(nn.Linear, 20, 20, neuron=neuron, rank=4))
    x, other = torch.randn(5, 20), torch.randn(5, 20)
    with torch.set_grad_enabled(gradients):
        graph = record(layer)(other) if record else torch.jit.trace(layer, other)
        torch.testing.assert_close(graph(x).double(), expected_of(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("neuron", "most"), [("eigen", 3), ("shared", 4)])
def test_no_operator_besides_the_convolution_touches_an_activation(neuron: str, most: int) -> None:
    """An operator that slips in is one more pass over all activations.

    eigen has room for the gradient and for the eigenvalues' sums, shared also for its output.
    """
    names: dict[str, list[str]] = {}
    for each in ("linear", neuron):
        layer = quadric.make_layer(nn.Conv2d, 8, 20, 3, neuron=each)
        x = torch.randn(2, 8, 8, 8, requires_grad=True)
        with Operations() as operations:
            out = layer(x)
            out.backward(torch.ones_like(out))
        names[each] = [n for n in operations.names if n not in ("detach", "empty")]
    added = list(names[neuron])
    for each in names["linear"]:
        added.remove(each)
    assert len(added) <= most, added
    assert not {"mul", "add", "pow", "square", "sum", "matmul", "bmm", "clone"} & set(added), added
