"""Where every eigenvalue stands, against positions counted channel by channel."""

from __future__ import annotations

import pytest
import torch

from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks, square_blocks
from tests.ops.squares import slow_entries

CASES = [
    make(channels * groups, rank, groups)
    for make in (eigen_blocks, shared_blocks)
    for channels in (1, 2, 7, 10, 16, 33)
    for rank in (1, 3, 9, 40)
    for groups in (1, 3)
] + [square_blocks(5)]


@pytest.mark.parametrize("blocks", CASES, ids=str)
def test_positions(blocks: Blocks) -> None:
    expected = slow_entries(blocks)
    assert list(blocks.entries()) == expected
    assert blocks.num_eigenvalues == len(expected)
    outputs, features = blocks.places()
    assert list(zip(outputs.tolist(), features.tolist(), strict=True)) == expected
    assert outputs.dtype == torch.long


@pytest.mark.parametrize("blocks", CASES, ids=str)
def test_sizes_and_first_eigenvalues(blocks: Blocks) -> None:
    assert sum(blocks.sizes) == blocks.channels
    assert max(blocks.sizes) <= blocks.size
    entries, stops = slow_entries(blocks), [row[2] for row in blocks.table[1:]]
    for (start, size, first), stop in zip(
        blocks.table, [*stops, blocks.num_eigenvalues], strict=True
    ):
        inside = range(start, start + size)
        assert all(i in inside and j in inside for i, j in entries[first:stop])
    assert sorted([*blocks.heads, *blocks.features]) == list(range(blocks.channels))
    if blocks.shape == "star":
        assert blocks.features == [j for _, j in entries]


def test_the_last_block_of_each_group_takes_what_is_left() -> None:
    assert eigen_blocks(16, 9).sizes == (10, 6)
    assert eigen_blocks(22, 9, groups=2).sizes == (10, 1, 10, 1)
    assert shared_blocks(20, 8).sizes == (8, 8, 4)
    assert square_blocks(3).sizes == (1, 1, 1)
