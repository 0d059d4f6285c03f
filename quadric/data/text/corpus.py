"""A translation data set: two text files for each part, encoded once.

A directory with `train.en` and `train.de` is a data set. `val` and `test` are optional. The pieces
are learned from the training files alone. What is encoded is one file in the cache, under the
checksum of the text and the settings, and is mapped into memory from there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from quadric.data.batches import make_generator
from quadric.data.files import cache_file, directory
from quadric.data.text.lines import TextFile, inspect_pair, read_pairs
from quadric.data.text.sentences import GrowingSentences, Sentences
from quadric.data.text.token_batches import Pairs
from quadric.data.text.tokenizer import Tokenizer, train_tokenizer
from quadric.errors import InputError, explained
from quadric.support.writing import whole_file

VERSION = 2
"""Of the files in the cache."""

SAMPLE = 1_000_000
"""Lines that pieces are learned from at most: every n-th of a longer text."""

SIDES = ("source", "target")

CHUNK = 4096
"""Pairs that are encoded at once."""

HELD, SHARE = 1000, 20
"""Without validation files, so many pairs or one in so many are held out, whichever is fewer."""


@dataclass(frozen=True)
class TextData:
    """A translation data set.

    Attributes:
        name: the data set's name.
        tokenizer: the tokenizer of both languages.
        train: pairs to learn from.
        val: pairs to validate on.
        test: pairs of the test files, without empty and over-long ones; None if there are none.
        test_files: the source file and the target file; None if there are none.
        checksums: the SHA-256 of both training files.
        notes: remarks on the text (sentences left out, a smaller vocabulary), one line each.
    """

    name: str
    tokenizer: Tokenizer
    train: Pairs
    val: Pairs
    test: Pairs | None
    test_files: tuple[Path, Path] | None
    checksums: tuple[str, ...]
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
    kept = cache_file("text", f"text/{key}.pt")
    if not kept.is_file():
        encoded = _encode(files, vocabulary, longest)
        with whole_file(kept) as file:
            torch.save(encoded, file)
    rule = f"the file {kept} of the cache must hold the encoded text"
    with explained(rule, "remove it, and the text is encoded again", alone=True):
        encoded = torch.load(kept, mmap=True, weights_only=True)
        tokenizer = Tokenizer(bytes(encoded["tokenizer"].numpy()))
        notes = [_note(part, encoded[part], longest) for part in files]
        sides = {part: [Sentences(*encoded[part][side]) for side in SIDES] for part in files}
        parts = {part: Pairs(one, other) for part, (one, other) in sides.items()}
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
        tokenizer,
        train,
        parts["val"],
        parts.get("test"),
        None if tests is None else (tests[0].path, tests[1].path),
        tuple(file.sha256 for file in files["train"]),
        tuple(notes),
    )


def _encode(
    files: dict[str, tuple[TextFile, TextFile]], vocabulary: int, longest: int
) -> dict[str, Any]:
    """Learns pieces and encodes all parts."""
    tokenizer = train_tokenizer(_sample(*files["train"]), vocabulary)
    content = torch.frombuffer(bytearray(tokenizer.content), dtype=torch.uint8)
    parts = {part: _encode_part(*pair, tokenizer, longest) for part, pair in files.items()}
    return {"tokenizer": content, **parts}


def _sample(source: TextFile, target: TextFile) -> Iterator[str]:
    """Lines of both languages, at most `SAMPLE`."""
    stride = math.ceil(2 * source.lines / SAMPLE)
    for number, pair in enumerate(read_pairs(source.path, target.path)):
        if number % stride == 0:
            yield from pair


def _encode_part(
    source: TextFile, target: TextFile, tokenizer: Tokenizer, longest: int
) -> dict[str, Any]:
    """Encodes one part, and counts what is left out."""
    sides = {side: GrowingSentences() for side in SIDES}
    counts = {"pairs": 0, "empty": 0, "long": 0}
    pairs = read_pairs(source.path, target.path)
    for chunk in iter(lambda: list(islice(pairs, CHUNK)), []):
        full = [pair for pair in chunk if all(pair)]
        encoded = [tokenizer.encode(side) for side in zip(*full, strict=True)] if full else [[], []]
        fitting = [pair for pair in zip(*encoded, strict=True) if max(map(len, pair)) <= longest]
        counts["pairs"] += len(chunk)
        counts["empty"] += len(chunk) - len(full)
        counts["long"] += len(full) - len(fitting)
        for i, side in enumerate(sides.values()):
            side.add(pair[i] for pair in fitting)
    return counts | {side: grown.tensors() for side, grown in sides.items()}


def _note(part: str, counts: dict[str, Any], longest: int) -> str:
    text = f"{part}: {counts['pairs']:,} pairs"
    left = [f"{counts['empty']:,} with an empty line"] if counts["empty"] else []
    left += [f"{counts['long']:,} over {longest} pieces"] if counts["long"] else []
    return text + (f", left out {' and '.join(left)}" if left else "")
