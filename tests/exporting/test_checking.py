"""How examples become batches, and how far apart two results are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from quadric.exporting.checking import (
    batch_of,
    check_difference,
    difference,
    has_numbers,
    tolerance_of,
)


def test_batches_of_any_size() -> None:
    x, ids = torch.zeros(3, 2), torch.tensor([[1], [2], [3]])
    for size in (1, 3, 7):
        values, indices = batch_of([x, ids], size, 0)
        assert values.shape == (size, 2)
        assert indices.flatten().tolist() == [1 + i % 3 for i in range(size)]
    assert batch_of([x.T], 5, 1)[0].shape == (2, 5)


def test_numbers_vary_and_masks_do_not() -> None:
    x = torch.full((2, 1000), 5.0)
    varied = batch_of([x], 2, 0)[0]
    assert (varied - x).std() > 0.5  # constant examples get a spread of one
    wide = batch_of([100 * torch.randn(2, 1000)], 2, 0)[0]
    assert wide.std() > 100
    mask = torch.tensor([[0.0, -math.inf]])
    assert torch.equal(batch_of([mask], 1, 0)[0], mask)


def test_batches_do_not_touch_the_random_state() -> None:
    state = torch.get_rng_state()
    batch_of([torch.zeros(2, 2)], 4, 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_difference_is_relative_to_the_largest_output() -> None:
    a = torch.tensor([1000.0, 0.0])
    assert difference([a], [a + 1]) == pytest.approx(1e-3)
    assert difference([a], [a]) == 0.0
    assert difference([1e-6 * a], [1e-6 * (a + 1)]) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([math.inf, 1.0], [math.inf, 1.0], 0.0),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.inf, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [math.nan, 1.0], math.inf),
        ([math.inf, 1.0], [-math.inf, 1.0], math.inf),
        ([1.0, 1.0], [1.0], math.inf),
    ],
)
def test_what_is_not_finite(one: list[float], other: list[float], expected: float) -> None:
    assert difference([torch.tensor(one)], [torch.tensor(other)]) == expected


def test_another_number_of_outputs() -> None:
    assert difference([torch.ones(1)], []) == math.inf


def test_tolerances() -> None:
    model = nn.Linear(2, 2)
    assert tolerance_of(model, None) == 1e-4
    assert tolerance_of(model.double(), None) == 1e-9
    assert tolerance_of(model, 0.5) == 0.5
    with pytest.raises(ValueError, match="tolerance must be >= 0, got -1"):
        tolerance_of(model, -1)
    check_difference(1e-5, 1e-4, 2, "ONNX Runtime")
    with pytest.raises(ValueError, match=r"in ONNX Runtime at batch size 2 they differ by 2\.0"):
        check_difference(2e-3, 1e-4, 2, "ONNX Runtime")
    with pytest.raises(ValueError, match="differ by nan"):
        check_difference(math.nan, 1e-4, 2, "ONNX Runtime")


def test_noise_has_the_spread_of_each_column() -> None:
    table = torch.tensor([[1e9, 0.5, 7.0], [3e9, 0.6, 7.0]])
    rows = batch_of([table], 1000, 0)[0]
    noise = rows - table[torch.arange(1000) % 2]
    torch.testing.assert_close(
        noise.std(0) / torch.tensor([1e9, 0.05, 1.0]),
        torch.ones(3) * torch.tensor([1.0, 1.0, 0.0]),
        rtol=0.1,
        atol=0.0,
    )
    assert torch.equal(batch_of([table], 4, 0, vary=False)[0], table.repeat(2, 1))


def test_what_can_be_compared() -> None:
    nan, inf = torch.tensor([1.0, math.nan]), torch.full((2,), math.inf)
    for outputs in ([nan], [torch.ones(2), inf], [torch.ones(1), nan]):
        assert not has_numbers(outputs)
    assert has_numbers([torch.tensor([0.0, -math.inf]), torch.empty(0), torch.tensor([1])])
