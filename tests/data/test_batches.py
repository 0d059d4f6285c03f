"""The order of samples in an epoch, for one process and for several."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quadric.data.batches import Batching, TensorBatches, stratified_split


def test_each_epoch_has_its_own_order() -> None:
    orders = {
        tuple(Batching(4, True, seed).order(20, epoch).tolist())
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6
    assert Batching(4).order(5, 3).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_epoch_order_covers_everything(world_size: int) -> None:
    ranks = [Batching(2, True, rank=r, world_size=world_size) for r in range(world_size)]
    parts = [replace(rank, pad=True).order(5, 0) for rank in ranks]
    assert {len(p) for p in parts} == {-(-5 // world_size)}
    assert set(torch.cat(parts).tolist()) == set(range(5))
    exact = [rank.order(5, 0) for rank in ranks]
    assert sorted(torch.cat(exact).tolist()) == list(range(5))


def test_stratified_split_is_disjoint_and_complete() -> None:
    labels = torch.tensor([0] * 10 + [1] * 30)
    first, second = stratified_split(labels, 0.3, 0)
    assert labels[first].bincount().tolist() == [3, 9]
    assert sorted(first.tolist() + second.tolist()) == list(range(40))


def rows(batches: TensorBatches) -> torch.Tensor:
    return torch.cat([inputs for inputs, _ in batches])


@pytest.mark.parametrize("count", [12, 13])
def test_processes_share_the_rows(count: int) -> None:
    inputs = torch.arange(count)[:, None].float()
    one = TensorBatches(inputs, inputs, Batching(4, True, 3, pad=True))
    two = [
        TensorBatches(inputs, inputs, Batching(2, True, 3, rank=r, world_size=2, pad=True))
        for r in (0, 1)
    ]
    for batches in (one, *two):
        batches.set_epoch(5)
    assert len(two[0]) == len(two[1])
    # The i-th batches of both together are the i-th batch of one process with twice the batch.
    for whole, first, second in zip(one, *two, strict=False):
        if len(whole[0]) == 4:
            assert set(whole[0].flatten().tolist()) == set(
                torch.cat([first[0], second[0]]).flatten().tolist()
            )
    tests = [TensorBatches(inputs, inputs, Batching(2, rank=r, world_size=2)) for r in (0, 1)]
    seen = sorted(torch.cat([rows(part) for part in tests]).flatten().tolist())
    assert seen == list(range(count))


def test_batches_follow_the_epoch() -> None:
    inputs = torch.arange(20)[:, None].float()
    batches = TensorBatches(inputs, inputs, Batching(20, shuffle=True))
    orders = []
    for epoch in (0, 1, 0):
        batches.set_epoch(epoch)
        orders.append(rows(batches).flatten().tolist())
    assert orders[0] == orders[2] != orders[1]
    assert len(TensorBatches(inputs, inputs, Batching(6, drop_last=True))) == 3
    assert len(TensorBatches(inputs, inputs, Batching(6))) == 4
