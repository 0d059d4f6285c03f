"""Words as pieces: one byte-pair encoding for both languages, by sentencepiece.

Characters that the training text does not have become their bytes, so that nothing is unknown. The
text is taken as it is; only spaces are put together.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from quadric.errors import InputError
from quadric.support.extras import load_extra

MOST = 1 << 16
"""Pieces: their numbers are stored in two bytes."""

FEWEST = 300
"""Pieces: 256 bytes, four that are no text, and some characters."""


class Tokenizer:
    """Text to numbers of pieces and back.

    Attributes:
        content: the same bytes, to be saved with a run.
        size: how many pieces there are.
    """

    def __init__(self, content: bytes, name: str = "tokenizer") -> None:
        sentencepiece = load_extra("sentencepiece", "text", "text")
        self.content = content
        self._model: Any = sentencepiece.SentencePieceProcessor()
        try:
            # Sentencepiece reads no bytes at all as no model, and goes on.
            self._model.LoadFromSerializedProto(content or b"none")
        except RuntimeError:
            raise InputError(
                f"{name} must be a model file of sentencepiece, and is damaged: take it from a "
                "copy of the run, or train again"
            ) from None
        self.size = int(self._model.GetPieceSize())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The pieces of each line, without begin and end."""
        return self._model.Encode(list(lines), num_threads=1)  # type: ignore[no-any-return]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of pieces, as people write it."""
        # A list of no rows, and rows without pieces, are other cases to sentencepiece.
        lines = [self._model.Decode(list(row)) if row else "" for row in rows]
        # Bytes that a network puts together may be no UTF-8, or hold the end of a line.
        return [" ".join(line.split()) for line in lines]


def train_tokenizer(lines: Iterable[str], vocabulary: int, lengths: int = 4192) -> Tokenizer:
    """Learns pieces from text."""
    if not FEWEST <= vocabulary <= MOST:
        raise InputError(f"vocabulary must be in {FEWEST} ... {MOST}, got {vocabulary}")
    sentencepiece = load_extra("sentencepiece", "text", "text")
    text = [line for line in lines if line]
    if not text:
        raise InputError("the training text must have words, got empty lines alone")
    size = vocabulary
    while True:
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(text),
                model_writer=model,
                vocab_size=size,
                model_type="bpe",
                byte_fallback=True,
                character_coverage=0.9995,
                normalization_rule_name="identity",
                max_sentence_length=lengths,
                pad_id=0,
                bos_id=1,
                eos_id=2,
                unk_id=3,
                minloglevel=2,
            )
        except RuntimeError as error:
            # "Vocabulary size too high (8000). Please set it to a value <= 1234."
            fewer = re.search(r"value <= (\d+)", str(error))
            if fewer is None or int(fewer[1]) >= size:
                reason = " ".join(str(error).split())[-200:]
                raise InputError(
                    f"sentencepiece cannot learn {size:,} pieces from this text ({reason}): "
                    "choose another vocabulary"
                ) from None
            size = int(fewer[1])
            continue
        return Tokenizer(model.getvalue())
