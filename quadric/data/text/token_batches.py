"""Batches of sentence pairs of similar length, counted in tokens.

Pairs are sorted by the longer of their two sentences. Pairs of one length are in a new random order
in each pass over the data, and so are the batches. Everything random comes from (seed, pass), so a
run can be repeated and continued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quadric.data.batches import make_generator
from quadric.data.text.sentences import Sentences
from quadric.models.beam_search import BEGIN, END

TextBatch = tuple[tuple[Tensor, Tensor], Tensor]
"""Source and target as the network takes them, and the target that it must give."""


@dataclass(frozen=True)
class Pairs:
    """Sentences of both sides, or some of them."""

    source: Sentences  # one side
    target: Sentences  # the other, as long
    index: Tensor | None = None  # which pairs; None for all

    def __len__(self) -> int:
        return len(self.source) if self.index is None else len(self.index)

    def take(self, index: Tensor) -> Pairs:
        """Some of these pairs."""
        return Pairs(self.source, self.target, index if self.index is None else self.index[index])

    def sizes(self) -> Tensor:
        """Tokens of the longer sentence of each pair, its end (or begin) included."""
        longer = torch.maximum(self.source.lengths, self.target.lengths).to(torch.int32) + 1
        return longer if self.index is None else longer[self.index]

    def target_tokens(self, index: Tensor) -> int:
        """Tokens that some pairs have on the target side, their ends included."""
        index = index if self.index is None else self.index[index]
        starts = self.target.starts
        return int((starts[index + 1] - starts[index]).sum()) + len(index)

    def batch(self, index: Tensor) -> TextBatch:
        """Some pairs as tensors."""
        if self.index is not None:
            index = self.index[index]
        source = self.source.rows(index, after=END)
        inputs = self.target.rows(index, before=BEGIN)
        return (source, inputs), self.target.rows(index, after=END)


class TokenBatches:
    """Batches of at most so many tokens on each side, padding counted.

    Attributes:
        weights: for each batch of this iteration so far, what its mean over target tokens must be
            multiplied with, so that the mean over a step's batches is the mean over its tokens.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokens: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        multiple: int = 1,
        epoch_batches: int | None = None,
    ) -> None:
        self.pairs, self.seed = pairs, seed
        self.rank, self.world_size, self.multiple = rank, world_size, multiple
        self.weights: list[float] = []
        self.sizes = pairs.sizes()
        ascending = self.sizes.sort().values
        self.cuts = cuts(ascending, tokens)
        # No process may be left without a batch to evaluate.
        while seed is None and len(self.cuts) < min(world_size, len(pairs)):
            tokens //= 2
            self.cuts = cuts(ascending, tokens)
        self.endless = epoch_batches is not None
        share = -(-len(self.cuts) // (world_size * multiple)) * multiple
        self.length = epoch_batches or share
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.seed is None:
            return len(range(self.rank, len(self.cuts), self.world_size))
        return self.length

    def _pass(self, number: int) -> list[Tensor]:
        """The batches of one pass over all pairs, as indices, in the order of this pass."""
        if self.seed is None:
            return list(self.sizes.argsort(stable=True).split(self.cuts))
        generator = make_generator(self.seed, number)
        order = torch.randperm(len(self.sizes), generator=generator)
        order = order[self.sizes[order].argsort(stable=True)]
        batches = order.split(self.cuts)
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def __iter__(self) -> Iterator[TextBatch]:
        if self.seed is None:
            for index in self._pass(0)[self.rank :: self.world_size]:
                yield self.pairs.batch(index)
            return
        self.weights = []
        together = self.multiple * self.world_size  # batches of a step
        share = self.length * self.world_size
        number, batches = -1, list[Tensor]()
        for begin in range(0, share, together):
            step = []
            for place in range(begin, begin + together):
                wanted, at = self.epoch, place % len(self.cuts)
                if self.endless:
                    wanted, at = divmod(self.epoch * share + place, len(self.cuts))
                if wanted != number:
                    number, batches = wanted, self._pass(wanted)
                step.append(batches[at])
            counts = [self.pairs.target_tokens(index) for index in step]
            for i in range(self.rank, together, self.world_size):
                self.weights.append(counts[i] * together / sum(counts))
                yield self.pairs.batch(step[i])


def cuts(sizes: Tensor, tokens: int) -> list[int]:
    """How many pairs each batch has."""
    lengths, begin = [], 0
    counts = torch.arange(1, max(tokens, 1) + 1)
    while begin < len(sizes):
        most = max(1, tokens // int(sizes[begin]))
        some = sizes[begin : begin + most]
        # Sizes ascend, so the last of a batch is its longest.
        fits = int((some * counts[: len(some)] <= tokens).sum())
        lengths.append(max(1, fits))
        begin += lengths[-1]
    return lengths
