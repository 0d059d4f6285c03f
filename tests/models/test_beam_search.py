"""Beam search against a slow one that keeps nothing and looks at one sentence at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quadric.models.beam_search import BEGIN, END, beam_search, length_penalty
from quadric.models.transformer import Transformer


def network(seed: int = 0, vocabulary: int = 9) -> Transformer:
    torch.manual_seed(seed)
    found = Transformer(vocabulary, 2, 8, 6, heads=2).double().eval()
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # far from uniform
    return found


def source_batch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(3, 9, (5, 6), generator=generator)
    for i, length in enumerate((6, 3, 1, 5, 4)):
        rows[i, length - 1] = END
        rows[i, length:] = 0
    return rows


@torch.no_grad()
def slow(model: Transformer, source: Tensor, beams: int, penalty: float, limit: int) -> list[int]:
    """One sentence: all continuations in a list, sorted, the network run from the beginning."""
    alive: list[tuple[float, list[int]]] = [(0.0, [BEGIN])]
    finished: list[tuple[float, list[int]]] = []
    for step in range(1, limit + 2):
        found = []
        for score, tokens in alive:
            logits = model(source[None], torch.tensor([tokens]))[0, -1]
            logits[: BEGIN + 1] = -float("inf")
            for token, value in enumerate(logits.log_softmax(0).tolist()):
                if value > -float("inf") and (step <= limit or token == END):
                    found.append((score + value, [*tokens, token]))
        found.sort(key=lambda pair: -pair[0])
        for score, tokens in found[:beams]:
            if tokens[-1] == END:
                finished.append((score / ((5 + len(tokens) - 1) / 6) ** penalty, tokens[1:-1]))
        alive = [pair for pair in found if pair[1][-1] != END][:beams]
        if len(finished) >= beams or not alive:
            break
    return max(finished, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_the_slow_search(beams: int, penalty: float) -> None:
    for seed in range(4):
        model, source = network(seed), source_batch(seed)
        limits = [7, 12, 1, 9, 0]
        expected = [
            slow(model, row[row != 0], beams, penalty, limit)
            for row, limit in zip(source, limits, strict=True)
        ]
        assert beam_search(model, source, beams, penalty, limits) == expected


def test_cached_and_uncached_steps_give_the_same_tokens() -> None:
    class Uncached:
        """Runs the network from the beginning at each step; keeps tokens instead of keys."""

        def __init__(self, model: Transformer, source: Tensor) -> None:
            self.model, self.encode, self.empty = model, model.encode, model.empty_past
            self.source = source

        def empty_past(self, rows: int) -> object:
            none = torch.empty(rows, 0, dtype=torch.int64)
            return ((none, none),)

        def step(self, tokens: Tensor, past: object, memory: object) -> tuple[Tensor, object]:
            (kept, _), beams = past[0], tokens.shape[1]  # type: ignore[index]
            kept = torch.cat([kept, tokens.reshape(-1, 1)], 1)
            logits = self.model(self.source.repeat_interleave(beams, 0), kept)[:, -1]
            return logits.unflatten(0, (-1, beams)), ((kept, kept),)

    for seed in range(4):
        model, source = network(seed, vocabulary=30), source_batch(seed)
        for row in source:
            alone = row[row != 0][None]
            assert beam_search(Uncached(model, alone), alone) == beam_search(model, alone)


class Endless(Transformer):
    def step(self, *args: object) -> object:
        logits, past = super().step(*args)  # type: ignore[arg-type]
        logits[:, :, END] = -1e9
        return logits, past


@pytest.mark.parametrize(
    ("options", "lengths"),
    [  # by default the source and fifty
        ({"limits": [3, 0, 5, 2, 1]}, [3, 0, 5, 2, 1]),
        ({"beams": 1}, [56, 53, 51, 55, 54]),
    ],
)
def test_a_network_that_never_ends_is_ended(options: dict, lengths: list[int]) -> None:
    model = network()
    model.__class__ = Endless
    assert [len(tokens) for tokens in beam_search(model, source_batch(0), **options)] == lengths


def test_the_length_penalty_is_that_of_wu_et_al() -> None:
    assert length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert length_penalty(7, 0.0) == length_penalty(1, 0.6) == 1


def test_beams_must_be_positive() -> None:
    with pytest.raises(ValueError, match="beams must be >= 1, got 0"):
        beam_search(network(), source_batch(0), beams=0)
