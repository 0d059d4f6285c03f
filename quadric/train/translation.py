"""Translation: the task, and what a trained network needs to translate text.

A run keeps its tokenizer beside its weights, so it can translate wherever it is copied to.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadric.data.text import Tokenizer
from quadric.data.text.scores import score
from quadric.data.text.sentences import from_lists
from quadric.models.beam_search import END, beam_search
from quadric.models.transformer import PADDING
from quadric.train.tasks import Progress, Task, no_progress

TOKENIZER = "tokenizer.model"
LONGEST = 1024
"""Pieces of a sentence that is translated whole; the rest of a longer one is left out."""
SENTENCES = 64
"""Translated together."""

Warn = Callable[[str], None]


def warn_on_screen(text: str) -> None:
    """Says what was cut, or looks wrong, in one line on stderr."""
    print(f"warning: {text}", file=sys.stderr)


class Translator:
    """A trained network with its tokenizer."""

    def __init__(
        self,
        network: Any,
        tokenizer: Tokenizer,
        device: torch.device | None = None,
        warn: Warn | None = None,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.device = device
        self.warn = warn or (lambda text: warnings.warn(text, stacklevel=3))

    def translate(
        self,
        lines: Sequence[str],
        beams: int = 4,
        penalty: float = 0.6,
        first: int = 1,
        progress: Progress = no_progress,
    ) -> list[str]:
        """Translates lines."""
        rows = self.tokenizer.encode(lines)
        for i, row in enumerate(rows):
            if len(row) > LONGEST:
                self.warn(
                    f"line {first + i:,} has {len(row):,} pieces, more than {LONGEST:,}: the rest "
                    "of it is not translated"
                )
                rows[i] = row[:LONGEST]
        translated: list[list[int]] = [[] for _ in rows]
        # Sentences of similar length together; empty ones need no network.
        order = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
        for begin in range(0, len(order), SENTENCES):
            some = order[begin : begin + SENTENCES]
            source = from_lists([rows[i] for i in some]).rows(torch.arange(len(some)), after=END)
            made = beam_search(self.network, source.to(self.device), beams, penalty)
            for i, tokens in zip(some, made, strict=True):
                translated[i] = tokens
            progress(1, math.ceil(len(order) / SENTENCES))
        return self.tokenizer.decode(translated)

    def stream(self, lines: Iterable[str], chunk: int = 1, **options: Any) -> Iterator[list[str]]:
        """Translates lines as they come, so many at a time."""
        waiting: list[str] = []
        done = 0
        for line in lines:
            waiting.append(line)
            if len(waiting) == chunk:
                yield self.translate(waiting, first=done + 1, **options)
                done += len(waiting)
                waiting = []
        if waiting:
            yield self.translate(waiting, first=done + 1, **options)


@dataclass(frozen=True)
class Translation(Task):
    """Cross-entropy of the next piece; perplexity, and at the end BLEU and chrF."""

    metric = "perplexity"
    samples = "tokens"
    size = 2

    tokenizer: Tokenizer  # of the data
    # Gives the source and target lines of the test; None if there are none.
    test_lines: Callable[[], tuple[list[str], list[str]] | None]
    label_smoothing: float = 0.0  # of the training loss; the reported loss is without
    beams: int = 4  # of the beam search
    penalty: float = 0.6  # exponent of the length

    def outputs(self, network: Callable[..., Any], inputs: Any) -> Tensor:
        """Log-probabilities, of which loss and sums are made."""
        logits: Tensor = network(*inputs)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(-1, dtype=wide)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is minimized: the mean over all tokens that are not padding."""
        known = targets != PADDING
        own = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)[known].mean()
        if not self.label_smoothing:
            return -own
        spread = outputs.mean(-1)[known].mean()
        return -(1 - self.label_smoothing) * own - self.label_smoothing * spread

    @torch.no_grad()
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Tokens, and their summed loss."""
        known = targets != PADDING
        own = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)[known]
        sums = self.zeros(outputs.device)
        sums[0], sums[1] = known.sum(), -own.sum(dtype=sums.dtype)
        return sums

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """The loss of a token, and its exponential."""
        count, loss = sums.tolist()
        loss /= count
        return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def finish(
        self, network: nn.Module, device: torch.device, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """BLEU, chrF and their signatures on the test lines."""
        lines = self.test_lines()
        if lines is None:
            # The pairs that were measured are those of the validation: no test.
            return {"test_bleu": None, "bleu": None, **dict.fromkeys(self.names)}
        network = network.to(device).eval()
        translator = Translator(network, self.tokenizer, device, warn_on_screen)
        made = translator.translate(lines[0], self.beams, self.penalty, progress=progress)
        scores = score(made, lines[1])
        return {"test_bleu": scores["bleu"]["13a_cased"], **scores}
