from __future__ import annotations

from collections import Counter

import pytest
import torch

from quadric.data.text.sentences import GrowingSentences, Sentences, from_lists
from quadric.data.text.token_batches import Pairs, TokenBatches


def pairs(count: int = 200) -> Pairs:
    """The i-th source is i + 10 repeated, the target one longer or shorter."""
    lengths = [3 + (i * 7) % 11 for i in range(count)]
    source = from_lists([[i + 10] * n for i, n in enumerate(lengths)])
    target = from_lists([[i + 10] * (n + (-1) ** i) for i, n in enumerate(lengths)])
    return Pairs(source, target)


def seen(batches: TokenBatches) -> list[list[int]]:
    return [(source[:, 0] - 10).tolist() for (source, _), _ in batches]


def test_a_batch_has_begin_and_end() -> None:
    both = Pairs(from_lists([[9, 8], [7]]), from_lists([[5], [6, 65535, 4]]))
    (source, inputs), targets = both.batch(torch.tensor([1, 0]))
    assert source.tolist() == [[7, 2, 0], [9, 8, 2]]
    assert inputs.tolist() == [[1, 6, 65535, 4], [1, 5, 0, 0]]
    assert targets.tolist() == [[6, 65535, 4, 2], [5, 2, 0, 0]]


def test_every_pair_once_in_batches_of_similar_length() -> None:
    batches = TokenBatches(pairs(), 100, seed=0)
    found = list(batches)
    assert len(found) == len(batches)
    assert Counter(i for batch in seen(batches) for i in batch) == Counter(range(200))
    for (source, inputs), targets in found:
        assert len(source) * max(source.shape[1], inputs.shape[1]) <= 100
        assert inputs.shape == targets.shape
    padded = sum(targets.numel() for _, targets in found)
    assert padded < 1.2 * sum(int((targets != 0).sum()) for _, targets in found)


def test_a_pair_that_is_too_long_is_a_batch_of_its_own() -> None:
    batches = TokenBatches(pairs(), 5, seed=0)
    assert Counter(i for batch in seen(batches) for i in batch) == Counter(range(200))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    batches = TokenBatches(pairs(), 100, seed=0)
    first = seen(batches)
    assert seen(batches) == first
    batches.set_epoch(1)
    second = seen(batches)
    assert second != first
    assert {frozenset(batch) for batch in second} != {frozenset(batch) for batch in first}
    assert seen(TokenBatches(pairs(), 100, seed=1)) != first
    batches.set_epoch(0)
    assert seen(batches) == first


@pytest.mark.parametrize("multiple", [1, 3])
def test_processes_share_the_batches(multiple: int) -> None:
    whole = seen(TokenBatches(pairs(), 100, seed=0))
    shares = [
        seen(TokenBatches(pairs(), 100, seed=0, rank=r, world_size=2, multiple=multiple))
        for r in (0, 1)
    ]
    assert len(shares[0]) == len(shares[1])
    assert len(shares[0]) % multiple == 0
    together = [batch for both in zip(*shares, strict=True) for batch in both]
    assert together[: len(whole)] == whole
    assert together[len(whole) :] == whole[: len(together) - len(whole)]


def test_an_epoch_may_be_a_number_of_batches() -> None:
    count = len(TokenBatches(pairs(), 100, seed=0))
    batches = TokenBatches(pairs(), 100, seed=0, epoch_batches=count - 5)
    stream = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        stream += seen(batches)
    passes = TokenBatches(pairs(), 100, seed=0)
    expected = []
    for number in range(3):
        passes.set_epoch(number)
        expected += seen(passes)
    assert len(batches) == count - 5
    assert stream == expected[: 3 * (count - 5)]


def test_without_a_seed_every_pair_once_over_all_processes() -> None:
    shares = [seen(TokenBatches(pairs(), 100, rank=r, world_size=3)) for r in range(3)]
    assert Counter(i for s in shares for batch in s for i in batch) == Counter(range(200))


def test_no_process_is_left_without_a_batch() -> None:
    few = pairs(3)
    shares = [seen(TokenBatches(few, 10_000, rank=r, world_size=3)) for r in range(3)]
    assert sorted(i for s in shares for batch in s for i in batch) == [0, 1, 2]
    assert all(shares)


def test_some_pairs() -> None:
    some = pairs().take(torch.tensor([5, 9, 11, 150])).take(torch.tensor([0, 3]))
    assert len(some) == 2
    assert sorted(seen(TokenBatches(some, 100, seed=0))[0]) == [5, 150]


def test_sentences_hold_what_was_added() -> None:
    rows = [[3, 65535], [], [40_000, 7, 8]]
    found = Sentences(*GrowingSentences().add(rows[:2]).add(rows[2:]).tensors())
    assert found.lengths.tolist() == [2, 0, 3]
    assert found.rows(torch.arange(3)).tolist() == [[3, 65535, 0], [0, 0, 0], [40_000, 7, 8]]


@pytest.mark.parametrize("epoch_batches", [None, 60])
def test_weights_make_a_step_the_mean_over_its_tokens(epoch_batches: int | None) -> None:
    chosen = pairs().take(torch.arange(1, 200, 2))
    means, tokens, steps = [], [], []
    for rank in range(2):
        batches = TokenBatches(
            chosen, 40, seed=0, rank=rank, world_size=2, multiple=3, epoch_batches=epoch_batches
        )
        found = [targets for _, targets in batches]
        assert len(batches.weights) == len(found) == len(batches)
        tokens.append([int((targets != 0).sum()) for targets in found])
        # Any number of each token will do for its loss.
        losses = [targets[targets != 0].double() for targets in found]
        means.append([w * x.mean() for w, x in zip(batches.weights, losses, strict=True)])
        steps.append([torch.cat(losses[i : i + 3]) for i in range(0, len(found), 3)])
    assert len(set(tokens[0] + tokens[1])) > 1
    for i, parts in enumerate(zip(*steps, strict=True)):
        step = torch.stack(means[0][3 * i : 3 * i + 3] + means[1][3 * i : 3 * i + 3])
        torch.testing.assert_close(step.mean(), torch.cat(parts).mean())


def test_the_only_batch_of_a_step_has_the_weight_one() -> None:
    batches = TokenBatches(pairs(), 100, seed=0)
    count = len(list(batches))
    assert batches.weights == [1.0] * count
