"""Beam search: the target sentences that a Transformer finds most likely.

At each step every beam of a sentence is continued by every token, and the best continuations are
kept. One that ends, if it is among the first `beams`, is finished; the best `beams` of the others
go on. A sentence is done when `beams` continuations are finished, or at its limit, where every beam
must end. Its result is the finished one with the highest log-probability divided by
((5 + tokens) / 6) ** penalty, the end counted as a token (Wu et al. 2016). One beam is greedy
search.

Sentences are searched together and leave the batch when they are done. The decoder's keys and
values are kept from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quadric.support.checks import check_size

BEGIN, END = 1, 2
"""The tokens before and after a sentence."""

EXTRA = 50
"""A translation may be this much longer than its source (Vaswani et al. 2017)."""


def length_penalty(tokens: int, penalty: float) -> float:
    """What the log-probability of this many tokens is divided by."""
    return float(((5 + tokens) / 6) ** penalty)


class _Finished:
    """The best ended translation of each sentence, and how many have ended."""

    def __init__(self, sentences: int) -> None:
        self.best: list[tuple[float, list[int]]] = [(-float("inf"), []) for _ in range(sentences)]
        self.counts = [0] * sentences

    def add(
        self, alive: list[int], tokens: Tensor, top: Tensor, parents: Tensor, ends: Tensor
    ) -> None:
        """Notes the continuations that end, by their scores."""
        for row, rank in ends.nonzero().tolist():
            sentence, score = alive[row], top[row, rank].item()
            self.counts[sentence] += 1
            if score > self.best[sentence][0] or self.counts[sentence] == 1:
                self.best[sentence] = score, tokens[row, parents[row, rank], 1:].tolist()


@torch.no_grad()
def beam_search(
    network: Any,
    source: Tensor,
    beams: int = 4,
    penalty: float = 0.6,
    limits: Sequence[int] | None = None,
) -> list[list[int]]:
    """Translates sentences."""
    check_size("beams", beams)
    device = source.device
    if limits is None:
        limits = ((source != 0).sum(1) + EXTRA).tolist()
    finished = _Finished(len(source))
    memory = network.encode(source)
    # One row per sentence that is not done; scores of beams, best first; tokens so far.
    alive = list(range(len(source)))
    tokens = torch.full((len(source), 1, 1), BEGIN, dtype=torch.int64, device=device)
    past = network.empty_past(len(source))
    scores = torch.zeros(len(source), 1, device=device)
    for step in range(1, max(limits, default=0) + 2):
        logits, past = network.step(tokens[:, :, -1], past, memory)
        vocabulary = logits.shape[-1]
        logits[:, :, :2] = -float("inf")  # neither padding nor a second beginning
        continued = scores.unsqueeze(-1) + logits.log_softmax(
            -1, dtype=torch.promote_types(logits.dtype, scores.dtype)
        )
        last = torch.tensor([limits[i] < step for i in alive], device=device)
        if last.any():  # their beams must end now
            ends = continued[last][:, :, END].clone()
            continued[last] = -float("inf")
            continued[last.nonzero(), torch.arange(continued.shape[1], device=device), END] = ends
        width = min(2 * beams, continued.shape[1] * vocabulary)
        top, flat = continued.flatten(1).topk(width)
        parents, chosen = flat // vocabulary, flat % vocabulary
        is_end = (chosen == END) & (top > -float("inf"))
        # With the beginning there are as many tokens as new ones with the end.
        divisor = length_penalty(tokens.shape[2], penalty)
        finished.add(alive, tokens, top.double() / divisor, parents, is_end[:, :beams])
        # Those that do not end go on, best first; what ended has no place among them.
        top = top.masked_fill(chosen == END, -float("inf"))
        order = top.sort(dim=1, descending=True, stable=True).indices[:, :beams]
        scores, parents, chosen = (t.gather(1, order) for t in (top, parents, chosen))
        going = [
            row
            for row, sentence in enumerate(alive)
            if finished.counts[sentence] < beams and limits[sentence] >= step
        ]
        if not going:
            break
        rows = torch.tensor(going, device=device)
        before = tokens.shape[1]
        scores, parents, chosen = scores[rows], parents[rows], chosen[rows]
        tokens = tokens[rows].gather(1, parents.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
        tokens = torch.cat([tokens, chosen.unsqueeze(-1)], 2)
        index = (rows.unsqueeze(1) * before + parents).flatten()
        past = tuple((keys[index], values[index]) for keys, values in past)
        if len(going) < len(alive):
            memory = memory.select(rows)
            alive = [alive[row] for row in going]
    return [tokens for _, tokens in finished.best]
