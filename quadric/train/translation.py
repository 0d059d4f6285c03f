"""Translation: the task, and what a trained network needs to translate text.

A run keeps two files beside its weights: the pieces of its words, and how often each is in the two
languages. So it can translate wherever it is copied to.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.data.files import read_bytes, read_text
from quadric.data.text import Languages, Tokenizer
from quadric.data.text.scores import score
from quadric.data.text.sentences import from_lists
from quadric.models.beam_search import END, beam_search
from quadric.models.transformer import PADDING
from quadric.support.writing import whole_file
from quadric.train.tasks import Progress, Task, no_progress

TOKENIZER = "tokenizer.model"
LANGUAGES = "languages.json"
LONGEST = 1024
"""Pieces of a sentence that is translated whole; the rest of a longer one is left out."""
SENTENCES = 64
"""Translated together."""

Warn = Callable[[str], None]


def warn_on_screen(text: str) -> None:
    """Says what was cut, or looks wrong, in one line on stderr."""
    print(f"warning: {text}", file=sys.stderr)


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of a run and its languages.

    Attributes:
        tokenizer: of both languages.
        languages: the language of the source and that of the target.
    """

    tokenizer: Tokenizer
    languages: Languages

    def write(self, folder: Path) -> None:
        """Keeps both with a run; each file is whole or absent."""
        for name, content in self._files().items():
            with whole_file(folder / name) as file:
                file.write_bytes(content)

    def differs(self, folder: Path) -> str | None:
        """The name of a file in a folder that another vocabulary wrote; None if there is none."""
        for name, content in self._files().items():
            if (folder / name).is_file() and (folder / name).read_bytes() != content:
                return name
        return None

    def _files(self) -> dict[str, bytes]:
        return {TOKENIZER: self.tokenizer.content, LANGUAGES: self.languages.to_json().encode()}

    @classmethod
    def read(cls, folder: Path) -> Vocabulary:
        """What `write` kept."""
        remedy = "a translation run needs it: copy the whole run directory, or train again"
        model, languages = folder / TOKENIZER, folder / LANGUAGES
        tokenizer = Tokenizer(read_bytes(model, remedy), str(model))
        return cls(tokenizer, Languages.from_json(read_text(languages, remedy), str(languages)))


class Translator:
    """A trained network with its vocabulary."""

    def __init__(
        self,
        network: Any,
        vocabulary: Vocabulary,
        device: torch.device | None = None,
        warn: Warn | None = None,
    ) -> None:
        self.network = network
        self.vocabulary = vocabulary
        self.device = device
        self.warn = warn or (lambda text: warnings.warn(text, stacklevel=3))
        self._looked = False

    def translate(
        self,
        lines: Sequence[str],
        beams: int = 4,
        penalty: float = 0.6,
        first: int = 1,
        progress: Progress = no_progress,
    ) -> list[str]:
        """Translates lines."""
        rows = self.vocabulary.tokenizer.encode(lines)
        self._check_language(rows)
        for i, row in enumerate(rows):
            if len(row) > LONGEST:
                self.warn(
                    f"line {first + i:,} has {len(row):,} pieces, more than {LONGEST:,}: the rest "
                    "of it is not translated"
                )
                rows[i] = row[:LONGEST]
        found: list[list[int]] = [[] for _ in rows]
        # Sentences of similar length together; empty ones need no network.
        order = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
        for begin in range(0, len(order), SENTENCES):
            some = order[begin : begin + SENTENCES]
            source = from_lists([rows[i] for i in some]).rows(torch.arange(len(some)), after=END)
            made = beam_search(self.network, source.to(self.device), beams, penalty)
            for i, tokens in zip(some, made, strict=True):
                found[i] = tokens
            progress(1, math.ceil(len(order) / SENTENCES))
        return self.vocabulary.tokenizer.decode(found)

    def _check_language(self, rows: Sequence[Sequence[int]]) -> None:
        """Warns once if the first lines with enough text look like the other language."""
        if self._looked or sum(map(len, rows)) < 10:
            return
        self._looked = True
        languages = self.vocabulary.languages
        if languages.look_swapped(rows):
            self.warn(
                f"the text looks like {languages.target!r}, and the run translates from "
                f"{languages.source!r}: are the languages swapped?"
            )

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
    """Cross-entropy of the next piece; perplexity, and at the end BLEU and chrF.

    Attributes:
        vocabulary: of the data.
        test_lines: gives the source and target lines of the test; None if there are none.
        label_smoothing: of the training loss; the reported loss is without.
        beams: of the beam search.
        penalty: exponent of the length.
    """

    metric = "perplexity"
    samples = "tokens"
    size = 2

    vocabulary: Vocabulary
    test_lines: Callable[[], tuple[list[str], list[str]] | None]
    label_smoothing: float = 0.0
    beams: int = 4
    penalty: float = 0.6

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
        translator = Translator(network, self.vocabulary, device, warn_on_screen)
        made = translator.translate(lines[0], self.beams, self.penalty, progress=progress)
        found = score(made, lines[1])
        return {"test_bleu": found["bleu"]["13a_cased"], **found}
