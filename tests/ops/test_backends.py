"""Every backend against the formula in float64: values, gradients, infinite numbers, memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import quadric
from quadric.ops import cpu_matmul, gpu, native, reference, torch_views
from quadric.ops.backends import CPU_MATMUL, GPU, NATIVE, TORCH_VIEWS
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks, square_blocks
from tests.conftest import need_kernels
from tests.ops.squares import data, formula

BACKENDS = {"native": NATIVE, "cpu_matmul": CPU_MATMUL, "torch_views": TORCH_VIEWS}
if gpu.INTERPRETED:  # test_gpu.py runs this file so
    BACKENDS["gpu"] = GPU
# Shape, channel dimension counted from the end, whether it is channels_last.
LAYOUTS: list[tuple[tuple[int, ...], int, bool]] = [
    ((1, 1), -1, False),
    ((70, 37), -1, False),
    ((2, 3, 24), -1, False),
    ((19, 166), -1, False),
    ((2, 33, 64), -2, False),
    ((3, 20, 7, 9), -3, False),
    ((3, 20, 7, 9), -3, True),
    ((2, 24, 4, 5, 3), -4, True),
]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are there, and the products go through several tiles and parts."""
    need_kernels()
    monkeypatch.setattr(cpu_matmul, "_TILE", 400)
    monkeypatch.setattr(cpu_matmul, "_STAR_TILE", 400)
    monkeypatch.setattr(cpu_matmul, "_PART", 200)
    yield
    quadric.use_kernels(False)


def fits(name: str, blocks: Blocks, dim: int, channels_last: bool) -> bool:
    """Whether `backend_for` could choose this backend."""
    if name == "cpu_matmul":
        return (dim == -1 or channels_last) and bool(cpu_matmul.chunks_of(blocks))
    return name != "gpu" or blocks.num_eigenvalues > 0


def check(name: str, blocks: Blocks, shape: tuple[int, ...], dim: int, channels_last: bool) -> None:
    if not fits(name, blocks, dim, channels_last):
        return
    backend = BACKENDS[name]
    z, lam, grad = data(blocks, shape, channels_last=channels_last)
    z64, lam64 = z.double().requires_grad_(), lam.double().requires_grad_()
    expected = formula(z64, lam64, blocks, dim)
    wanted = torch.autograd.grad(expected, (z64, lam64), grad.double())

    before, out, given = z.clone(), torch.empty_like(z), grad.clone()
    backend.forward(z, out, lam, blocks, dim)
    torch.testing.assert_close(z, before, rtol=0, atol=0)
    assert out.stride() == z.stride()
    torch.testing.assert_close(out.double(), expected.detach(), rtol=1e-5, atol=1e-4)
    same = z.clone()
    backend.forward(same, same, lam, blocks, dim)
    torch.testing.assert_close(same, out, rtol=1e-6, atol=1e-6)

    kept = out if blocks.shape == "star" else z
    found = backend.backward(grad, kept, lam, blocks, dim)
    torch.testing.assert_close(grad, given, rtol=0, atol=0)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-4)
    scale = float(wanted[1].abs().max()) if lam.numel() else 1.0
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("shape", "dim", "channels_last"), LAYOUTS)
@pytest.mark.parametrize("kind", ["eigen", "shared"])
def test_values_and_gradients(
    name: str, kind: str, shape: tuple[int, ...], dim: int, channels_last: bool
) -> None:
    make = eigen_blocks if kind == "eigen" else shared_blocks
    every = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40)
    # Triton computes slowly on a CPU; interpreted_kernels.py has every rank from 2 to 16.
    for rank in (3, 9) if name == "gpu" else every:
        check(name, make(shape[dim], rank), shape, dim, channels_last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "dim", "channels_last"), LAYOUTS)
@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_kernels_of_16_bits(
    make: type[Blocks], shape: tuple[int, ...], dim: int, channels_last: bool, dtype: torch.dtype
) -> None:
    """Only the results are rounded: to the nearest number of the format."""
    rounding = torch.finfo(dtype).eps / 2 * 1.001
    for rank in (1, 3, 4, 8, 9, 16, 17):
        blocks = make(shape[dim], rank)
        z, lam, grad = data(blocks, shape, channels_last=channels_last)
        z, grad = z.to(dtype), grad.to(dtype)
        z64, lam64 = z.double().requires_grad_(), lam.double().requires_grad_()
        expected = formula(z64, lam64, blocks, dim)
        wanted = torch.autograd.grad(expected, (z64, lam64), grad.double())
        out = torch.empty_like(z)
        native.forward(z, out, lam, blocks, dim)
        torch.testing.assert_close(out.double(), expected.detach(), rtol=rounding, atol=1e-5)
        found = native.backward_with_bias(grad, z, lam, blocks, dim)
        assert found[2] is not None
        torch.testing.assert_close(found[0].double(), wanted[0], rtol=rounding, atol=1e-5)
        torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-4, atol=1e-3)
        of_bias = wanted[0].movedim(dim, 0).flatten(1).sum(1)
        torch.testing.assert_close(found[2].double(), of_bias, rtol=1e-4, atol=1e-3)


def test_numbers_of_16_bits_at_their_limits() -> None:
    """Too small, too large, infinite, not a number, and half way between two."""
    blocks = eigen_blocks(2, 1)
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).view(-1, 2)
        same = torch.empty_like(every)
        native.forward(every, same, torch.zeros(1), blocks, -1)
        square = every[:, 1].float().square()
        kept = square.isfinite()  # zero times infinity
        torch.testing.assert_close(same[kept], every[kept], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(same[:, 1], every[:, 1], rtol=0, atol=0, equal_nan=True)
        x = torch.zeros(4096, 2, dtype=dtype)
        x[:, 1] = torch.linspace(0.01, 16, 4096)
        for factor in (1e-9, 1e-6, 1.0, 300.0, 1e37):
            lam = torch.tensor([factor])
            out = torch.empty_like(x)
            native.forward(x, out, lam, blocks, -1)
            wanted = (lam * x[:, 1].float().square()).to(dtype)
            torch.testing.assert_close(out[:, 0], wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "cpu_matmul"])
@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_convolution_groups(name: str, make: type[Blocks]) -> None:
    check(name, make(42, 4, 3), (3, 42, 5, 3), -3, False)
    check(name, make(42, 4, 3), (3, 42, 5, 3), -3, True)
    check(name, make(42, 4, 3), (9, 42), -1, False)


@pytest.mark.parametrize("name", [*BACKENDS][2:])
def test_the_square_neuron(name: str) -> None:
    check(name, square_blocks(37), (70, 37), -1, False)
    check(name, square_blocks(20), (3, 20, 7, 9), -3, True)


@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_the_reference_is_the_formula_to_second_order(make: type[Blocks]) -> None:
    for blocks, shape, dim in (
        (make(7, 3), (2, 7), -1),
        (make(8, 3, 2), (2, 8, 3), -2),
        (make(1, 2), (3, 1), -1),
        (make(5, 2), (5,), -1),
    ):
        z, lam, _ = data(blocks, shape, dtype=torch.float64)
        expected = formula(z, lam, blocks, dim)
        found = reference.add_squares(z, lam, blocks, dim)
        torch.testing.assert_close(found, expected)

        def run(z: Tensor, lam: Tensor, blocks: Blocks = blocks, dim: int = dim) -> Tensor:
            return reference.add_squares(z, lam, blocks, dim)

        torch.autograd.gradcheck(run, (z.requires_grad_(), lam.requires_grad_()))
        torch.autograd.gradgradcheck(run, (z, lam))


@pytest.mark.parametrize("make", [eigen_blocks, shared_blocks])
def test_half_precision_sums_in_float32(make: type[Blocks]) -> None:
    """300 squared does not fit float16; the sum of weighted squares does."""
    blocks = make(4, 3)
    z = torch.full((2, 4), 300.0, dtype=torch.float16)
    lam = torch.full((blocks.num_eigenvalues,), 1e-3, dtype=torch.float16)
    expected = formula(z, lam, blocks, -1)
    for out in (reference.add_squares(z, lam, blocks, -1), z.clone()):
        if out.data_ptr() != z.data_ptr() and torch.equal(out, z):
            torch_views.forward(out, out, lam, blocks, -1)
        assert out.dtype == torch.float16
        torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=1e-3)


# Triton's interpreter computes with numpy, which warns.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("value", [float("inf"), 1e30, float("nan")])
@pytest.mark.parametrize("kind", ["eigen", "shared"])
def test_what_is_not_finite_stays_in_its_block(name: str, value: float, kind: str) -> None:
    blocks = (eigen_blocks if kind == "eigen" else shared_blocks)(48, 7)
    assert kind == "eigen" or cpu_matmul.chunks_of(blocks)[0].shape == (14, 14)  # two blocks
    backend = BACKENDS[name]
    z, lam, grad = data(blocks, (40, 48))
    lam = lam.abs() + 0.5
    start, size, _ = blocks.table[1]
    z[1, start + 1] = value
    expected = formula(z, lam, blocks, -1).float()
    out = torch.empty_like(z)
    backend.forward(z, out, lam, blocks, -1)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert out[1, :start].isfinite().all()
    assert out[1, start + size :].isfinite().all()
    kept = out if kind == "eigen" else z
    result, sums = backend.backward(grad, kept, lam, blocks, -1)
    outside = [c for c in range(48) if not start <= c < start + size]
    assert result[1, outside].isfinite().all()
    assert result[0].isfinite().all()
    first, stop = blocks.table[1][2], blocks.table[2][2]
    assert sums[:first].isfinite().all()
    assert sums[stop:].isfinite().all()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("shape", "dim"), [((40, 48), -1), ((2, 48, 4, 5), -3)])
def test_an_infinite_y_takes_part_in_no_sum(name: str, shape: tuple[int, ...], dim: int) -> None:
    blocks = eigen_blocks(48, 9)
    if not fits(name, blocks, dim, False):
        return
    backend = BACKENDS[name]
    z, lam, grad = data(blocks, shape)
    at = (1, blocks.heads[1]) + (2,) * (z.dim() - 2)
    z[at] = float("inf")
    out = z.clone()
    backend.forward(out, out, lam, blocks, dim)
    assert out[at] == float("inf")
    result, sums = backend.backward(grad, out, lam, blocks, dim)
    assert result[at] == grad[at]
    assert result.isfinite().all()
    assert sums.isfinite().all()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["eigen", "shared"])
def test_gradients_in_any_memory(name: str, kind: str) -> None:
    """Transposed, expanded, and the negative of what lies in memory."""
    blocks = (eigen_blocks if kind == "eigen" else shared_blocks)(24, 8)
    backend = BACKENDS[name]
    kept, lam, grad = data(blocks, (6, 24))
    wanted = backend.backward(grad, kept, lam, blocks, -1)
    for other in (grad.T.contiguous().T, torch._neg_view(-grad)):
        found = backend.backward(other, kept, lam, blocks, -1)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    one = torch.ones(()).expand(6, 24)
    found = backend.backward(one, kept, lam, blocks, -1)
    torch.testing.assert_close(found, backend.backward(one.clone(), kept, lam, blocks, -1))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["eigen", "shared"])
def test_nothing_around_a_part_of_a_tensor_changes(name: str, kind: str) -> None:
    blocks = (eigen_blocks if kind == "eigen" else shared_blocks)(37, 8)
    around, lam, _ = data(blocks, (22, 37))
    expected = around.clone()
    expected[1:-1] = formula(around[1:-1], lam, blocks, -1).float()
    BACKENDS[name].forward(around[1:-1], around[1:-1], lam, blocks, -1)
    torch.testing.assert_close(around, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["eigen", "shared"])
def test_another_default_device_and_deterministic_algorithms(kind: str) -> None:
    """Chunks are made once and outlive the default device under which they were made."""
    blocks = (eigen_blocks if kind == "eigen" else shared_blocks)(166, 7)
    cpu_matmul.chunks_of.cache_clear()
    z, lam, grad = data(blocks, (7, 166), dtype=torch.float64)
    expected = formula(z, lam, blocks, -1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"):
            cpu_matmul.forward(z, z, lam, blocks, -1)
            cpu_matmul.backward(grad, z, lam, blocks, -1)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(z, expected)


def test_sums_over_many_rows_are_exact() -> None:
    """One float for all rows would be wrong by a percent."""
    cases = [(eigen_blocks(10, 9), 300_000), (eigen_blocks(1024, 9), 20_000)]
    cases += [(shared_blocks(8, 8), 300_000), (shared_blocks(6, 6), 300_000)]
    for blocks, count in cases:
        ones, grad = torch.ones(count, blocks.channels), torch.full((count, blocks.channels), 0.1)
        lam = torch.zeros(blocks.num_eigenvalues)
        for layout in (ones, ones.T.contiguous().unsqueeze(0)):
            dim = -1 if layout is ones else -2
            _, sums = native.backward(grad.reshape(layout.shape), layout, lam, blocks, dim)
            torch.testing.assert_close(sums, torch.full_like(sums, 0.1 * count), rtol=1e-5, atol=0)


def test_wide_blocks_and_groups_have_no_products() -> None:
    assert not cpu_matmul.chunks_of(eigen_blocks(70, 64))
    assert not cpu_matmul.chunks_of(eigen_blocks(20, 3, 2))
    chunks = cpu_matmul.chunks_of(eigen_blocks(68, 31))
    assert [(c.channels.start, c.channels.stop) for c in chunks] == [(0, 64), (64, 68)]
