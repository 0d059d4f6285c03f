"""A translation data set: two text files for each part, encoded once.

A directory with `train.en` and `train.de` is a data set. `val` and `test` are optional. The pieces
are learned from the training files alone. What is encoded is kept in the cache, under the checksum
of the files and the settings, and mapped into memory from there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from quadric.data.batches import make_generator
from quadric.data.files import cache_directory, directory, whole_folder
from quadric.data.text.lines import TextFile, inspect_pair, read_pairs
from quadric.data.text.sentences import SentenceWriter, open_sentences
from quadric.data.text.token_batches import Pairs
from quadric.data.text.tokenizer import Tokenizer, train_tokenizer
from quadric.errors import InputError

VERSION = 1
"""Of the files in the cache."""

SAMPLE = 1_000_000
"""Lines that pieces are learned from at most: every n-th of a longer text."""

CHUNK = 4096
"""Pairs that are encoded at once."""

HELD, SHARE = 1000, 20
"""Without validation files, so many pairs or one in so many are held out, whichever is fewer."""


@dataclass(frozen=True)
class Languages:
    """The two languages, and how often each piece is in the training text of each.

    Attributes:
        source: the name of one, such as en.
        target: the name of the other.
        source_counts: one number per piece.
        target_counts: one number per piece.
    """

    source: str
    target: str
    source_counts: list[int]
    target_counts: list[int]

    def look_swapped(self, rows: Sequence[Sequence[int]]) -> bool:
        """Whether sentences are more likely in the target language, by the counts of pieces."""
        counts = torch.tensor([self.source_counts, self.target_counts], dtype=torch.float64)
        logs = ((counts + 1) / (counts + 1).sum(1, keepdim=True)).log()
        pieces = torch.tensor([piece for row in rows for piece in row], dtype=torch.int64)
        return bool((logs[1] - logs[0])[pieces].sum() > 0)

    def to_json(self) -> str:
        """As text, to be kept with a run."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> Languages:
        """The inverse of `to_json`."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise InputError(
                f"{where} must hold the languages of a run, and is damaged: take it from a copy"
            ) from None


@dataclass(frozen=True)
class TextData:
    """A translation data set.

    Attributes:
        name: the data set's name.
        languages: the language of the source and that of the target.
        tokenizer: the tokenizer of both languages.
        train: pairs to learn from.
        val: pairs to validate on.
        test: pairs of the test files, without empty and over-long ones; None if there are none.
        test_files: the source file and the target file; None if there are none.
        notes: remarks on the text (sentences left out, a smaller vocabulary), one line each.
    """

    name: str
    languages: Languages
    tokenizer: Tokenizer
    train: Pairs
    val: Pairs
    test: Pairs | None
    test_files: tuple[Path, Path] | None
    notes: tuple[str, ...]


def test_stem(name: str) -> str:
    """The name of a data set's test files, without ending."""
    return "test_2016_flickr" if name == "multi30k" else "test"


def load(
    data_dir: str | os.PathLike[str],
    *,
    name: str = "text",
    source: str = "en",
    target: str = "de",
    vocabulary: int = 8000,
    longest: int = 256,
    test: str = "test",
) -> TextData:
    """Loads a data set, encoding it if that has not been done."""
    remedy = f"it must hold train.{source} and train.{target}, one sentence per line"
    root = directory(data_dir, f"name one with train.{source} and train.{target}")
    if source == target:
        raise InputError(f"source and target must be two languages, got {source!r} twice")
    files: dict[str, tuple[TextFile, TextFile]] = {}
    for part, stem in (("train", "train"), ("val", "val"), ("test", test)):
        pair = root / f"{stem}.{source}", root / f"{stem}.{target}"
        if part == "train" or any(path.exists() for path in pair):
            files[part] = inspect_pair(*pair, remedy)
    settings: list[Any] = [VERSION, vocabulary, longest, SAMPLE]
    settings += [[part, *(file.sha256 for file in pair)] for part, pair in files.items()]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]
    kept = cache_directory("text") / "text" / key
    if not kept.is_dir():
        with whole_folder(kept) as made:
            _prepare(made, files, vocabulary, longest)
    return _open(kept, files, name, source, target, vocabulary, longest)


def _prepare(
    made: Path, files: dict[str, tuple[TextFile, TextFile]], vocabulary: int, longest: int
) -> None:
    """Learns pieces and encodes all parts."""
    tokenizer = train_tokenizer(_sample(*files["train"]), vocabulary)
    (made / "tokenizer.model").write_bytes(tokenizer.content)
    report = {part: _encode(made, part, *files[part], tokenizer, longest) for part in files}
    (made / "report.json").write_text(json.dumps(report), encoding="utf-8")


def _sample(source: TextFile, target: TextFile) -> Iterator[str]:
    """Lines of both languages, at most `SAMPLE`."""
    stride = math.ceil(2 * source.lines / SAMPLE)
    for number, pair in enumerate(read_pairs(source.path, target.path)):
        if number % stride == 0:
            yield from pair


def _encode(
    made: Path, part: str, source: TextFile, target: TextFile, tokenizer: Tokenizer, longest: int
) -> dict[str, int]:
    """Encodes one part, and counts what is left out."""
    writers = [SentenceWriter(made / f"{part}.{side}") for side in ("source", "target")]
    report = {"pairs": 0, "empty": 0, "long": 0}
    pairs = read_pairs(source.path, target.path)
    for chunk in iter(lambda: list(islice(pairs, CHUNK)), []):
        full = [pair for pair in chunk if all(pair)]
        encoded = [tokenizer.encode(side) for side in zip(*full, strict=True)] if full else [[], []]
        fitting = [pair for pair in zip(*encoded, strict=True) if max(map(len, pair)) <= longest]
        report["pairs"] += len(chunk)
        report["empty"] += len(chunk) - len(full)
        report["long"] += len(full) - len(fitting)
        for i, writer in enumerate(writers):
            writer.write(pair[i] for pair in fitting)
    for writer in writers:
        writer.close()
    return report


def _open(
    kept: Path,
    files: dict[str, tuple[TextFile, TextFile]],
    name: str,
    source: str,
    target: str,
    vocabulary: int,
    longest: int,
) -> TextData:
    try:
        tokenizer = Tokenizer.read(kept / "tokenizer.model", f"remove {kept}")
        report = json.loads((kept / "report.json").read_text(encoding="utf-8"))
        notes = [_note(part, report[part], longest) for part in files]
        parts = {
            part: Pairs(
                open_sentences(kept / f"{part}.source"), open_sentences(kept / f"{part}.target")
            )
            for part in files
        }
    except (ValueError, LookupError, TypeError, OSError):
        raise InputError(
            f"the folder {kept} of the cache must hold the encoded text, and is damaged: remove "
            "that folder, and the text is encoded again"
        ) from None
    if tokenizer.size < vocabulary:
        notes.append(
            f"the training text has {tokenizer.size:,} pieces, fewer than the vocabulary of "
            f"{vocabulary:,} that was asked for"
        )
    for part, pairs in parts.items():
        if not len(pairs):
            raise InputError(
                f"{files[part][0].path} and {files[part][1].path} must hold sentence pairs of at "
                f"most {longest} pieces, got none: raise longest, or name other files"
            )
    train = parts["train"]
    counts = [_count(side.pieces, tokenizer.size) for side in (train.source, train.target)]
    if "val" not in parts:
        held = min(HELD, len(train) // SHARE)
        order = torch.randperm(len(train), generator=make_generator(0))
        parts["val"] = train.take(order[:held].sort().values) if held else train
        train = train.take(order[held:].sort().values) if held else train
        what = f"{held:,} training pairs were held out" if held else "the training pairs are used"
        notes.append(f"there are no val.{source} and val.{target}: {what} for validation")
    tests = files.get("test")
    return TextData(
        name,
        Languages(source, target, *counts),
        tokenizer,
        train,
        parts["val"],
        parts.get("test"),
        None if tests is None else (tests[0].path, tests[1].path),
        tuple(notes),
    )


def _note(part: str, counts: dict[str, int], longest: int) -> str:
    text = f"{part}: {counts['pairs']:,} pairs"
    left = [f"{counts['empty']:,} with an empty line"] if counts["empty"] else []
    left += [f"{counts['long']:,} over {longest} pieces"] if counts["long"] else []
    return text + (f", left out {' and '.join(left)}" if left else "")


def _count(pieces: torch.Tensor, size: int) -> list[int]:
    """How often each piece occurs, a part of the file at a time."""
    total = torch.zeros(size, dtype=torch.int64)
    for some in pieces.view(torch.int16).split(1 << 16):
        total += torch.bincount(some.long() & 0xFFFF, minlength=size)
    return total.tolist()  # type: ignore[no-any-return]
