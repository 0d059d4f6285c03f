"""The squares as matrix products against the formula, in chunks, tiles and with infinite values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from quadric.ops._squares import EigenSquares, SharedSquares
from torch import Tensor

from quadric.ops import _dense
from tests.test_kernels import Operations

SQUARES: dict[str, EigenSquares | SharedSquares] = {
    "eigen": EigenSquares(rank=9),
    "eigen, images": EigenSquares(rank=4, dim=-3),
    "eigen, two groups": EigenSquares(rank=3, groups=2),
    "shared": SharedSquares(rank=8),
    "shared, images": SharedSquares(rank=5, dim=-3),
    "shared, wide": SharedSquares(rank=80),
}


def _data(squares: EigenSquares | SharedSquares, channels: int = 166) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    shape = (7, channels) if squares.dim == -1 else (2, channels, 5, 3)
    out = torch.randn(shape, dtype=torch.float64)
    if squares.dim == -3:
        out = out.to(memory_format=torch.channels_last)
    return out, torch.randn(squares.num_eigenvalues(channels), dtype=torch.float64)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TILE", "_WIDE_TILE"):
        monkeypatch.setattr(_dense, name, 60)
    monkeypatch.setattr(_dense, "_PART", 30)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the matrix products did the work."""
    done: list[bool] = []
    to_some, to_all, backward = _dense.add_to_some_, _dense.add_to_all, _dense.backward

    def recorded_to_some(out: Tensor, eigenvalues: Tensor, plan: _dense.Plan, dim: int) -> int:
        rows = to_some(out, eigenvalues, plan, dim)
        done.append(rows * out.shape[dim] == out.numel())
        return rows

    def recorded_to_all(out: Tensor, *args: Any) -> int:
        rows = to_all(out, *args)
        done.append(rows == len(out))
        return rows

    def recorded_backward(*args: Any) -> Tensor | None:
        found = backward(*args)
        done.append(found is not None)
        return found

    monkeypatch.setattr(_dense, "add_to_some_", recorded_to_some)
    monkeypatch.setattr(_dense, "add_to_all", recorded_to_all)
    monkeypatch.setattr(_dense, "backward", recorded_backward)
    return done


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", SQUARES)
def test_values_and_gradients_are_the_formula_s(name: str, calls: list[bool]) -> None:
    out, eigenvalues = _data(SQUARES[name])
    assert_formula(SQUARES[name], out, eigenvalues)
    assert calls == [True, True]


def assert_formula(squares: EigenSquares | SharedSquares, out: Tensor, eigenvalues: Tensor) -> None:
    expected = squares.plain(out, eigenvalues)
    found = out.clone()
    squares.forward_(found, eigenvalues)
    torch.testing.assert_close(found, expected)

    linear, lam = out.clone().requires_grad_(), eigenvalues.clone().requires_grad_()
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(squares.plain(linear, lam), (linear, lam), grad)
    kept = found if isinstance(squares, EigenSquares) else out
    torch.testing.assert_close(squares.backward(grad, kept, eigenvalues, True), wanted)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("squares", "channels"),
    [
        (EigenSquares(rank=15), 65),  # a linear channel behind a full chunk
        (EigenSquares(rank=3), 5),  # and inside of one
        (EigenSquares(rank=3, groups=2), 42),  # and between two groups
        (EigenSquares(rank=3, groups=2), 44),  # unevenly spaced
        (EigenSquares(rank=1), 130),
        (EigenSquares(rank=4), 7),  # parts of several rows, and rows behind the last part
        (SharedSquares(rank=8, groups=2), 42),
    ],
    ids=str,
)
def test_every_way_to_cut_gives_the_formula(
    squares: EigenSquares | SharedSquares, channels: int, calls: list[bool]
) -> None:
    out, eigenvalues = _data(squares, channels)
    assert_formula(squares, out, eigenvalues)
    assert calls == [True, True]
    # An infinite last channel, linear in some of them, leaves its gradient alone.
    if isinstance(squares, EigenSquares) and squares.neuron_ranks(channels)[-1] == 0:
        out[3, -1] = float("inf")
        grad = torch.randn_like(out)
        result, _ = squares.backward(grad, out, eigenvalues, True)
        assert result[3, -1] == grad[3, -1]


def test_the_shared_neuron_can_leave_its_input_alone(calls: list[bool]) -> None:
    squares = SharedSquares(rank=8)
    out, eigenvalues = _data(squares)
    before = out.clone()
    torch.testing.assert_close(squares.forward(out, eigenvalues), squares.plain(out, eigenvalues))
    torch.testing.assert_close(out, before, rtol=0, atol=0)
    assert calls == [True]


@pytest.mark.usefixtures("small_tiles")  # of a row or two: those before may be done
@pytest.mark.parametrize(("name", "channels"), [("eigen", 166), ("eigen", 24), ("shared", 166)])
@pytest.mark.parametrize("value", [float("inf"), 1e200, float("nan")])
@pytest.mark.parametrize("chunk", ["first", "last"])
def test_what_is_not_finite_stays_in_its_neuron(
    name: str, channels: int, value: float, chunk: str, calls: list[bool]
) -> None:
    squares = SQUARES[name]
    out, eigenvalues = _data(squares, channels)
    place = 5 if chunk == "first" else channels - 1
    others = slice(20, None) if chunk == "first" else slice(0, 10)
    out[3, place] = value
    expected = squares.plain(out, eigenvalues)
    assert expected[3, others].isfinite().all()
    found = out.clone()
    squares.forward_(found, eigenvalues)
    torch.testing.assert_close(found, expected, equal_nan=True)

    grad = torch.randn_like(out)
    kept = found if isinstance(squares, EigenSquares) else out
    result, sums = squares.backward(grad, kept, eigenvalues, True)
    assert result[3, others].isfinite().all()
    assert sums is not None
    assert (sums[-9:] if chunk == "first" else sums[:9]).isfinite().all()
    assert calls == [False, False]


@pytest.mark.parametrize("name", ["eigen", "shared"])
def test_an_infinite_gradient_stays_in_its_neuron(name: str, calls: list[bool]) -> None:
    squares = SQUARES[name]
    out, eigenvalues = _data(squares)
    grad = torch.randn_like(out)
    grad[2, 0] = float("inf")
    result, _ = squares.backward(grad, out, eigenvalues, True)
    assert result[2, 20:].isfinite().all()
    assert calls == [False]


def test_neurons_wider_than_a_chunk_are_left_to_the_slices() -> None:
    assert _dense.eigen_plan((64, 3)) is None
    plan = _dense.eigen_plan((63, 3))
    assert plan is not None
    assert [(c.channels.start, c.channels.stop) for c in plan.chunks] == [(0, 64), (64, 68)]


def test_rows_are_views_or_refused() -> None:
    images = torch.randn(3, 6, 4, 3).to(memory_format=torch.channels_last)[1:]
    assert _dense.in_rows(images, -3)
    rows = _dense.as_rows(images, -3)
    assert rows.data_ptr() == images.data_ptr()
    torch.testing.assert_close(rows, images.movedim(-3, -1).reshape(24, 6), rtol=0, atol=0)
    assert not _dense.in_rows(images.contiguous(), -3)
    assert not _dense.in_rows(torch.randn(2, 6).t(), -1)
    assert not _dense.in_rows(torch.randn(2, 6).bfloat16(), -1)
    assert not _dense.in_rows(torch.randn(0, 6), -1)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", SQUARES)
def test_a_part_of_a_tensor_is_changed_and_nothing_around_it(name: str, calls: list[bool]) -> None:
    squares = SQUARES[name]
    out, eigenvalues = _data(squares)
    around = torch.randn(len(out) + 2, *out.shape[1:], dtype=out.dtype)
    if out.dim() == 4:
        around = around.to(memory_format=torch.channels_last)
    expected = around.clone()
    expected[1:-1] = squares.plain(around[1:-1], eigenvalues)
    squares.forward_(around[1:-1], eigenvalues)
    torch.testing.assert_close(around, expected)
    assert calls == [True]


@pytest.mark.parametrize("name", ["eigen", "shared"])
def test_a_plan_made_under_another_default_device_serves_the_cpu(name: str) -> None:
    squares = SQUARES[name]
    _dense.eigen_plan.cache_clear()
    _dense.shared_plan.cache_clear()
    with torch.device("meta"):
        squares.forward_(torch.empty(7, 166), torch.empty(squares.num_eigenvalues(166)))
        squares.backward(
            *(torch.empty(7, 166) for _ in range(2)),
            torch.empty(squares.num_eigenvalues(166)),
            True,
        )
    out, eigenvalues = _data(squares)
    expected = squares.plain(out, eigenvalues)
    squares.forward_(out, eigenvalues)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("eigen", ["mul", "bmm", "add_"], ["copy_", "mul", "baddbmm_", "mm", "addcmul"]),
        ("shared", ["mul", "addmm_"], ["mul", "baddbmm_", "mm", "addcmul"]),
    ],
)
def test_a_tile_takes_so_many_operators(name: str, forward: list[str], backward: list[str]) -> None:
    """Each is a pass over an activation: one more, and the plain path is a fifth slower."""
    squares = SQUARES[name]
    out, eigenvalues = _data(squares, channels=20)
    products = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"}
    passes = {"mul", "add", "add_", "addcmul", "copy_", "cat", *products}
    with Operations() as done:
        squares.forward_(out, eigenvalues)
    assert [each for each in done.names if each in passes] == forward
    with Operations() as done:
        squares.backward(torch.randn_like(out), out, eigenvalues, True)
    # The first one doubles the eigenvalues, the last one puts their gradients together.
    assert [each for each in done.names if each in passes] == ["mul", *backward, "cat"]


def test_an_eigen_layer_of_millions_of_numbers_is_one_tile() -> None:
    """Every operator makes all cores wait for each other: a tenth of the plain path's inference."""
    squares = EigenSquares(rank=9, dim=-3)
    # In float64, which the kernels leave to these products.
    out = torch.randn(128, 16, 32, 32, dtype=torch.float64).to(memory_format=torch.channels_last)
    with Operations() as done:
        squares.forward_(out, torch.randn(14, dtype=torch.float64))
    counts = {name: done.names.count(name) for name in ("mul", "bmm", "sum", "add_")}
    assert counts == {"mul": 1, "bmm": 1, "sum": 1, "add_": 1}


def test_larger_ones_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the squares of a layer of any size take little room."""
    monkeypatch.setattr(_dense, "_WIDE_TILE", 80)
    monkeypatch.setattr(_dense, "_PART", 40)  # of two rows
    squares = SQUARES["eigen"]
    out, eigenvalues = _data(squares, channels=20)
    expected = squares.plain(out, eigenvalues)
    with Operations() as done:
        squares.forward_(out, eigenvalues)
    assert done.names.count("bmm") == 3  # four rows, two, and the one that is not a part
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("channels", [24, 166])  # one chunk, and several
@pytest.mark.parametrize("name", ["eigen", "shared"])
def test_algorithms_may_have_to_be_deterministic(
    name: str, channels: int, calls: list[bool]
) -> None:
    squares = SQUARES[name]
    out, eigenvalues = _data(squares, channels)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert_formula(squares, out, eigenvalues)
    finally:
        torch.use_deterministic_algorithms(before)
    assert calls == [True, True]
