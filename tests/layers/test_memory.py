"""What is kept for backward, and that nothing done to the output afterwards spoils the gradients.

Two measures, because either alone can be fooled: the storages that pass through torch's
saved-tensor hooks (misses what a Function keeps by itself), and the bytes that the allocator
handed out in forward and did not get back (sees everything, names nothing).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import quadric
from quadric.ops import cpu_matmul
from tests import reference
from tests.conftest import assert_close
from tests.layers.cases import (
    CONV1D,
    CONV2D,
    EIGEN,
    F64,
    LINEAR,
    SHARED,
    TRANSPOSED2D,
    Case,
    Geometry,
)

CONV = Geometry(nn.Conv2d, (3, 8, 3), (2, 3, 5, 4), {"stride": 2, "padding": 2, "dilation": 2})
PAIRS = [(c, g) for c in (EIGEN, SHARED) for g in (LINEAR, CONV1D, CONV, TRANSPOSED2D)]
each_layer = pytest.mark.parametrize(
    ("case", "geometry"), PAIRS, ids=[f"{c.neuron}-{g.name}" for c, g in PAIRS]
)
each_neuron = pytest.mark.parametrize("neuron", ["eigen", "shared"])
each_recompute = pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])


@pytest.fixture(autouse=True)
def _no_layer_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices take a path that keeps more: here all take that of large ones."""
    monkeypatch.setattr(cpu_matmul, "_SMALL", 0)


# ------------------------------------------------------------------------------------------------
# How much is kept
# ------------------------------------------------------------------------------------------------


def saved_storages(call: Callable[..., Any], *inputs: Tensor) -> dict[int, int]:
    """Address -> bytes of every distinct storage that autograd saves during the call."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call(*inputs)
    storages = [tensor.untyped_storage() for tensor in kept]
    del result
    return {s.data_ptr(): s.nbytes() for s in storages if s.nbytes()}


def retained_bytes(call: Callable[..., Any], *inputs: Tensor) -> int:
    """Bytes allocated during the call and still alive after it, the result included."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        result = call(*inputs)
    events = measured.profiler.kineto_results.events()  # type: ignore[union-attr]
    total = sum(event.nbytes() for event in events if event.name() == "[memory]")
    del result
    return int(total)


def networks(
    behind: Callable[[], nn.Module], neuron: str = "eigen", **options: Any
) -> tuple[nn.Sequential, Any, Tensor]:
    """(linear, quadratic, input): the same network around a linear and a quadratic layer."""
    conv = nn.Conv2d(4, 16, 3, padding=1)
    quadratic = quadric.make_layer(conv, neuron=neuron, rank=4, **options)
    image = torch.randn(4, 4, 12, 12)
    return nn.Sequential(conv, behind()), nn.Sequential(quadratic, behind()), image


KEEPERS = {
    "batch_norm": lambda: nn.BatchNorm2d(16),
    "group_norm": lambda: nn.GroupNorm(2, 16),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "in_place": lambda: nn.ReLU(inplace=True),
    "nothing": nn.Identity,
}


@pytest.mark.parametrize("behind", list(KEEPERS))
@pytest.mark.parametrize("requires_grad", [True, False])
@each_neuron
@each_recompute
def test_what_is_kept(neuron: str, behind: str, requires_grad: bool, recompute: bool) -> None:
    """The eigenvalues, and an output where what follows does not keep it (shared: always)."""
    linear, layer, x = networks(KEEPERS[behind], neuron, recompute=recompute)
    x.requires_grad_(requires_grad)
    eigenvalues, output = layer[0].eigenvalues, layer(x).nbytes
    theirs, ours = saved_storages(linear, x), saved_storages(layer, x)
    more = sum(ours.values()) - sum(theirs.values()) - eigenvalues.nbytes
    assert eigenvalues.untyped_storage().data_ptr() in ours
    kept = behind in ("relu", "nothing") or neuron == "shared"
    wanted = 0 if recompute or (not kept) else output
    if behind == "in_place":  # eigen: an alias, of which nothing is left of its own
        assert more <= output
    else:
        assert more == wanted
    retained = retained_bytes(layer, x) - retained_bytes(linear, x)
    # The result itself is alive, too: behind nothing it is the output that is kept.
    free = neuron == "eigen" and behind in ("nothing", "in_place")
    assert retained == pytest.approx(0 if free else wanted, abs=output / 8)


@each_layer
def test_every_layer_keeps_what_linear_keeps(case: Case, geometry: Geometry) -> None:
    layer, plain = case.make(geometry, recompute=case is SHARED), geometry.make_plain()
    x = torch.randn(64, *geometry.shape[1:], dtype=F64, requires_grad=True)
    theirs = saved_storages(lambda: F.silu(plain(x)))
    ours = saved_storages(lambda: F.silu(layer(x)))
    assert sum(ours.values()) == sum(theirs.values()) + layer.eigenvalues.nbytes
    more = retained_bytes(lambda: F.silu(layer(x))) - retained_bytes(lambda: F.silu(plain(x)))
    assert more < layer(x).nbytes / 8


def test_recompute_is_an_option_everywhere() -> None:
    layer = quadric.QuadraticConv2d(3, 8, 3, recompute=True)
    assert "recompute=True" in repr(layer)
    model = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    quadric.convert_(model, rank=2, recompute=True)
    layers = [m for m in model.modules() if isinstance(m, quadric.QuadraticLinear)]
    assert len(layers) == 16
    assert all(made.rule.recompute for made in layers)


@each_neuron
def test_nothing_is_kept_without_gradients(neuron: str) -> None:
    linear, layer, x = networks(nn.Identity, neuron)
    with torch.no_grad():
        assert retained_bytes(layer, x) == retained_bytes(linear, x)
    layer.requires_grad_(False)
    assert saved_storages(layer, x) == {}


def test_dropping_the_output_frees_everything_without_the_garbage_collector() -> None:
    layer, x = EIGEN.make(CONV2D, dtype=torch.float32), CONV2D.input(torch.float32)

    def build_and_drop() -> None:
        out = layer(x)
        out.relu_()
        del out

    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
            build_and_drop()
    finally:
        gc.enable()
    events = measured.profiler.kineto_results.events()  # type: ignore[union-attr]
    assert sum(event.nbytes() for event in events if event.name() == "[memory]") == 0


# ------------------------------------------------------------------------------------------------
# In-place operations behind the layer
# ------------------------------------------------------------------------------------------------


def plain_formula(case: Case, geometry: Geometry, layer: Any, x: Tensor) -> Tensor:
    """torch's linear layer and the squares, written with torch's own operators."""
    values = {"weight": layer.weight, "bias": layer.bias}
    out = torch.func.functional_call(geometry.make_plain(), values, (x,))
    rank, dim, groups = layer.rank, geometry.dim, geometry.groups
    if case is EIGEN:
        return reference.add_quadratic(out, layer.eigenvalues, rank, dim, groups)
    full, rest = divmod(geometry.outputs // groups, rank)
    sizes = ([rank] * full + [rest] * bool(rest)) * groups
    parts = layer.eigenvalues.split([size * size for size in sizes])
    blocks = [part.reshape(size, size) for part, size in zip(parts, sizes, strict=True)]
    squares = out.movedim(dim, -1).square() @ torch.block_diag(*blocks).T
    return out + squares.movedim(-1, dim)


def first_channels(out: Tensor) -> Tensor:
    out[:1].mul_(3)
    return out


def through_a_view(out: Tensor) -> Tensor:
    out.view(-1).sin_()
    return out


def without_gradient(out: Tensor) -> Tensor:
    with torch.no_grad():
        out.clamp_(min=0)
    return out


def detached_alias(out: Tensor) -> Tensor:
    out.detach().mul_(2)
    return out


def wiped(out: Tensor) -> Tensor:
    product = out * torch.arange(1.0, 1 + out.numel(), dtype=out.dtype).view_as(out)
    out.data.add_(0)
    with torch.no_grad():
        out.zero_()
    return product


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda out: out,
    "relu": nn.ReLU(inplace=True),
    "hardtanh": nn.Hardtanh(inplace=True),
    "leaky": nn.LeakyReLU(inplace=True),
    "sigmoid": torch.sigmoid_,
    "mul": lambda out: out.mul_(2),
    "add": lambda out: out.add_(1.5),
    "twice": lambda out: out.mul_(3).add_(1),
    "part": first_channels,
    "view": through_a_view,
    "no_grad": without_gradient,
    "detached": detached_alias,
    "wiped": wiped,
}


@each_layer
@each_recompute
@pytest.mark.parametrize("name", list(IN_PLACE))
def test_gradients_behind_an_in_place_operation(
    case: Case, geometry: Geometry, name: str, recompute: bool
) -> None:
    layer, x = case.make(geometry, recompute=recompute), geometry.input().requires_grad_()
    change, inputs = IN_PLACE[name], [x, *layer.parameters()]
    out, expected_out = change(layer(x)), change(plain_formula(case, geometry, layer, x))
    assert_close(out, expected_out)
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, seed)
    expected = torch.autograd.grad(expected_out, inputs, seed)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@each_layer
@pytest.mark.parametrize("name", ["input", "weight", "eigenvalues"])
@pytest.mark.parametrize("inplace", [True, False])
def test_a_changed_operand_is_an_error_as_in_torch(
    case: Case, geometry: Geometry, name: str, inplace: bool
) -> None:
    """Never a silently wrong gradient: what backward reads may not change in between."""
    layer, x = case.make(geometry), geometry.input()
    out = layer(x)
    if inplace:
        out = out.relu_()
    target = x if name == "input" else getattr(layer, name)
    x.requires_grad_(name != "input")
    if name == "weight":  # the weight is read when the input needs a gradient
        leaf = geometry.input().requires_grad_()
        out = layer(leaf).relu_() if inplace else layer(leaf)
    with torch.no_grad():
        target.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@each_layer
def test_a_changed_bias(case: Case, geometry: Geometry) -> None:
    """A linear layer does not read its bias in backward; where eigen must, it says so."""
    if case is SHARED:
        return
    layer, x = case.make(geometry), geometry.input()
    out, changed = layer(x), layer(x).sin_()
    expected = torch.autograd.grad(plain_formula(case, geometry, layer, x).sum(), layer.eigenvalues)
    with torch.no_grad():
        layer.bias.add_(1)
    got = torch.autograd.grad(out.sum(), layer.eigenvalues)
    assert_close(got[0], expected[0])
    with pytest.raises(RuntimeError, match=r"bias.*modified|modified.*bias"):
        changed.sum().backward()


# ------------------------------------------------------------------------------------------------
# Double backward, checkpoint, hooks
# ------------------------------------------------------------------------------------------------


@each_layer
@pytest.mark.parametrize("name", ["sigmoid", "view", "part"])
@each_recompute
def test_double_backward_behind_an_in_place_operation(
    case: Case, geometry: Geometry, name: str, recompute: bool
) -> None:
    layer = case.make(geometry, recompute=recompute)
    x = geometry.input()[:1].requires_grad_()
    change, inputs = IN_PLACE[name], [x, *layer.parameters()]

    def penalty(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(torch.stack([g.pow(2).sum() for g in first]).sum(), inputs)

    got = penalty(change(layer(x)))
    expected = penalty(change(plain_formula(case, geometry, layer, x)))
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
@each_layer
@each_recompute
def test_checkpoint(
    case: Case, geometry: Geometry, inplace: bool, use_reentrant: bool, recompute: bool
) -> None:
    layer, x = case.make(geometry, recompute=recompute), geometry.input().requires_grad_()
    inputs = [x, *layer.parameters()]

    def block(x: Tensor) -> Tensor:
        return F.relu(layer(x), inplace=inplace)

    expected = torch.autograd.grad(F.relu(plain_formula(case, geometry, layer, x)).sum(), inputs)
    checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    for tensor, value in zip(inputs, expected, strict=True):
        assert tensor.grad is not None
        assert_close(tensor.grad, value)


@each_layer
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("keeper", ["cpu", "clone"])
def test_other_keepers_of_saved_tensors(
    case: Case, geometry: Geometry, keeper: str, inplace: bool
) -> None:
    """Offloading and cloning hooks replace what was saved; the gradients stay right."""
    layer, x = case.make(geometry), geometry.input().requires_grad_()
    inputs = [x, *layer.parameters()]
    hooks = (
        save_on_cpu()
        if keeper == "cpu"
        else saved_tensors_hooks(torch.clone, lambda packed: packed)
    )
    with hooks:
        out = F.relu(layer(x), inplace=inplace)
    got = torch.autograd.grad(out.sum(), inputs)
    expected = torch.autograd.grad(F.relu(plain_formula(case, geometry, layer, x)).sum(), inputs)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("vectorize", [True, False])
def test_jacobian(vectorize: bool) -> None:
    case, geometry = EIGEN, CONV2D
    layer, x = case.make(geometry), geometry.input()[:1]
    got = torch.autograd.functional.jacobian(layer, x, vectorize=vectorize)
    expected = torch.autograd.functional.jacobian(
        lambda x: plain_formula(case, geometry, layer, x), x
    )
    assert_close(got, expected)
