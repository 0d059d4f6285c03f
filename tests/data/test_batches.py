"""The order of samples in an epoch, for one process and for several."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quadric.data.batches import Batching


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_epoch_order_covers_everything(world_size: int) -> None:
    ranks = [Batching(2, True, rank=r, world_size=world_size) for r in range(world_size)]
    parts = [replace(rank, pad=True).order(5, 0) for rank in ranks]
    assert {len(p) for p in parts} == {-(-5 // world_size)}
    assert set(torch.cat(parts).tolist()) == set(range(5))
    exact = [rank.order(5, 0) for rank in ranks]
    assert sorted(torch.cat(exact).tolist()) == list(range(5))
