"""How examples become batches, and how far apart two results are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from quadric.exporting.checking import checked_difference, difference, tolerance_of
from quadric.exporting.examples import Examples

NAN, INF = math.nan, math.inf


def examples(*inputs: Tensor, dim: int = 0) -> Examples:
    return Examples(inputs, (), dim, (1,))


def test_batches_of_any_size() -> None:
    x, ids = torch.zeros(3, 2), torch.tensor([[1], [2], [3]])
    state = torch.get_rng_state()
    for size in (1, 3, 7):
        values, indices = examples(x, ids).batch(size)
        assert values.shape == (size, 2)
        assert indices.flatten().tolist() == [1 + i % 3 for i in range(size)]
    assert examples(x.T, dim=1).batch(5)[0].shape == (2, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_vary_by_their_spread_and_masks_do_not() -> None:
    x = torch.full((2, 1000), 5.0)
    assert (examples(x).batch(2)[0] - x).std() > 0.5  # constant examples get a spread of one
    mask = torch.tensor([[0.0, -INF]])
    assert torch.equal(examples(mask).batch(1)[0], mask)
    table = torch.tensor([[1e9, 0.5, 7.0], [3e9, 0.6, 7.0]])
    noise = examples(table).batch(1000)[0] - table[torch.arange(1000) % 2]
    spread = noise.std(0) / torch.tensor([1e9, 0.05, 1.0])
    torch.testing.assert_close(spread, torch.tensor([1.0, 1.0, 0.0]), rtol=0.1, atol=0.0)
    assert torch.equal(examples(table).batch(4, vary=False)[0], table.repeat(2, 1))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1000.0, 0.0], [1001.0, 1.0], 1e-3),  # of the largest output
        ([1e-3, 0.0], [1.001e-3, 1e-6], 1e-3),
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([INF, 1.0], [INF, 1.0], 0.0),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([1.0, 1.0], [1.0], INF),
    ],
)
def test_differences(one: list[float], other: list[float], expected: float) -> None:
    found = difference([torch.tensor(one)], [torch.tensor(other)])
    assert found == pytest.approx(expected, rel=1e-3)
    assert difference([torch.tensor(one)], []) == INF


def test_tolerances() -> None:
    model = nn.Linear(2, 2)
    assert tolerance_of(model, None) == 1e-4
    assert tolerance_of(model.double(), None) == 1e-9
    assert tolerance_of(model, 0.5) == 0.5
    with pytest.raises(ValueError, match="tolerance must be >= 0, got -1"):
        tolerance_of(model, -1)
    one = torch.tensor([1.0])
    assert checked_difference([one], [one + 1e-5], 1e-4, 2, "ONNX Runtime") < 2e-5
    with pytest.raises(ValueError, match=r"in ONNX Runtime at batch size 2 they differ by 1\.5"):
        checked_difference([one], [one + 1.5e-4], 1e-4, 2, "ONNX Runtime")
    with pytest.raises(ValueError, match="differ by inf"):
        checked_difference([one], [one * NAN], 1e-4, 2, "ONNX Runtime")
