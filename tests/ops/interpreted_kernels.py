"""The GPU's kernels in Triton's interpreter: dtypes, ranks, whole layers, and who runs when.

`test_gpu.py` runs this file and the GPU's part of `test_backends.py` in a process of their own,
with TRITON_INTERPRET=1, because Triton decides when it is imported. To run it alone:

    TRITON_INTERPRET=1 pytest tests/ops/interpreted_kernels.py
"""

from __future__ import annotations

import copy
import importlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.layers import make_layer
from quadric.ops import backends, gpu, native
from quadric.ops.backends import GPU, TORCH_VIEWS, backend_for
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from tests.conftest import assert_close
from tests.ops.squares import data, formula

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    """The kernels of the CPU, which come first for dense layers, are not there."""
    quadric.use_kernels(True)
    gpu.reason.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native._state, "enabled", False)
        yield
    gpu.reason.cache_clear()
    quadric.use_kernels(False)


def check(blocks: Blocks, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    z, lam, grad = data(blocks, shape, dtype=dtype)
    z64, lam64 = z.double().requires_grad_(), lam.double().requires_grad_()
    expected = formula(z64, lam64, blocks, dim)
    slope, sums = torch.autograd.grad(expected, (z64, lam64), grad.double())
    out = torch.empty_like(z)
    gpu.forward(z, out, lam, blocks, dim)
    assert_close(out, expected.detach())
    found = gpu.backward(grad, out if blocks.shape == "star" else z, lam, blocks, dim)
    assert_close(found[0], slope)
    scale = sums.abs().max()
    assert_close((found[1].double() / scale).to(dtype), sums / scale)


@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_every_rank(make: type[Blocks]) -> None:
    """Odd sizes: the last block is smaller, the last tile of positions is not full."""
    for rank in range(2, 17):
        check(make(35, rank), (37, 35), -1, torch.float32)


@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_every_dtype(dtype: torch.dtype, make: type[Blocks]) -> None:
    for rank in (4, 9):
        check(make(35, rank), (37, 35), -1, dtype)
        check(make(35, rank), (2, 35, 3, 5), -3, dtype)


def test_half_precision_sums_in_float32() -> None:
    """300 squared does not fit float16; the sum of weighted squares does."""
    for blocks in (eigen_blocks(4, 3), shared_blocks(4, 4)):
        z = torch.full((2, 4), 300.0, dtype=torch.float16)
        lam = torch.full((blocks.num_eigenvalues,), 1e-3, dtype=torch.float16)
        expected = formula(z, lam, blocks, -1)
        gpu.forward(z, z, lam, blocks, -1)
        torch.testing.assert_close(z.double(), expected, rtol=2e-3, atol=1e-3)


def gradients(layer: nn.Module, x: Tensor, *, twice: bool = False) -> list[Tensor]:
    """Output, and gradients of input and parameters; with `twice` those of the slope's square."""
    x = x.detach().requires_grad_()
    out = layer(x)
    total = out.double().square().sum()
    if twice:
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        total = slope.double().square().mean()
    found = torch.autograd.grad(total, [x, *layer.parameters()], allow_unused=twice)
    return [out.detach(), *(each for each in found if each is not None)]


# Wide enough not to be computed as one small product.
SPECS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(9, 150), (41, 9)),
    (nn.Conv2d(6, 42, 3, groups=2, padding=1), (2, 6, 7, 5)),
]
NEURONS: list[tuple[str, dict[str, Any]]] = [
    ("eigen", {}),
    ("shared", {"rank": 4}),
    ("shared", {"recompute": True}),
]


@pytest.mark.parametrize(("spec", "shape"), SPECS)
@pytest.mark.parametrize(("neuron", "options"), NEURONS)
@pytest.mark.parametrize("twice", [False, True])
def test_layers(
    spec: nn.Module, shape: tuple[int, ...], neuron: str, options: dict[str, Any], twice: bool
) -> None:
    """Against themselves in float64, which torch's own operators compute."""
    layer = make_layer(copy.deepcopy(spec), neuron, **options)
    nn.init.normal_(layer.eigenvalues, std=0.2)
    x = torch.randn(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "TORCH_VIEWS", None)
        found = gradients(layer, x, twice=twice)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), found[0])  # in place
    layer.double()
    for own, other in zip(found, gradients(layer, x.double(), twice=twice), strict=True):
        scale = other.abs().max()
        assert_close(own / scale, other / scale, torch.float32)


def test_under_autocast_and_in_front_of_an_activation_in_place() -> None:
    layer = quadric.QuadraticLinear(9, 150)
    nn.init.normal_(layer.eigenvalues, std=0.2)
    x, net = torch.randn(41, 9), nn.Sequential(layer, nn.ReLU(inplace=True))
    expected = gradients(copy.deepcopy(net).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(net, x)
    assert found[0].dtype == torch.bfloat16
    for own, other in zip(found, expected, strict=True):
        scale = other.abs().max()
        assert_close(own / scale, other / scale, torch.bfloat16)


def test_who_runs() -> None:
    z, blocks = torch.randn(4, 20), eigen_blocks(20, 9)
    assert backend_for(z, blocks, -1) is GPU
    assert backend_for(z.T.contiguous().T, blocks, -1) is TORCH_VIEWS  # gaps between channels
    assert backend_for(z.double(), blocks, -1) is TORCH_VIEWS
    assert backend_for(z[:, :1], eigen_blocks(1, 9), -1) is TORCH_VIEWS  # no eigenvalues
    assert backend_for(z[:0], blocks, -1) is TORCH_VIEWS
    assert backend_for(torch.randn(4, 65), shared_blocks(65, 65), -1) is TORCH_VIEWS
    huge = torch.empty(1, device="meta", dtype=torch.float16).expand(1, 20, 2**27)
    assert not gpu.takes(huge.as_strided((1, 20, 2**27), (20 * 2**27, 2**27, 1)), blocks, -2)
    quadric.use_kernels(False)
    assert backend_for(z, blocks, -1) is TORCH_VIEWS


def test_kernels_that_compute_something_else_are_never_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks, z = eigen_blocks(20, 9), torch.randn(4, 20)
    for name in ("forward", "backward"):
        fake = types.SimpleNamespace(**vars(importlib.import_module("quadric.ops.triton_kernels")))
        setattr(fake, name, {(1, 1): lambda *args, **options: None})
        monkeypatch.setattr(gpu, "_kernels", lambda fake=fake: fake)
        gpu.reason.cache_clear()
        assert backend_for(z, blocks, -1) is TORCH_VIEWS
        assert "failed their self-test" in str(gpu.reason(CPU))
