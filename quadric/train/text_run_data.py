"""Sentence pairs as the data of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric import data as datasets
from quadric import models
from quadric.data.batches import Batches, make_generator
from quadric.data.text import TextData, Tokenizer
from quadric.data.text.lines import inspect_pair, read_lines
from quadric.data.text.sentences import from_lists
from quadric.data.text.token_batches import Pairs, TokenBatches
from quadric.errors import InputError
from quadric.support.writing import whole_file
from quadric.train.recipe import Recipe
from quadric.train.run_data import LIMIT_SEED, RunData
from quadric.train.translation import LONGEST, TOKENIZER, Translation

CHECKSUMS = "text.sha256"


class TextRunData(RunData):
    """Sentence pairs."""

    def __init__(
        self, recipe: Recipe, data: TextData | None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.recipe = recipe
        self.data = self.source = data
        self.input_shape = models.input_shape(recipe.model)
        if len(models.example_inputs(recipe.model)) != 2:
            raise InputError(
                f"the text {recipe.dataset!r} needs a network for translation, got model "
                f"{recipe.model!r}: choose transformer or transformer_tiny"
            )
        if recipe.validation:
            raise InputError(
                f"validation is a share of other data, got {recipe.validation} for text: give it "
                "val files, or leave it out"
            )
        if tokenizer is None:
            assert data is not None
            tokenizer = data.tokenizer
        self.tokenizer = tokenizer
        self.test_files: tuple[Path, Path] | None = None if data is None else data.test_files
        self.test_limit = recipe.limit
        self.task = Translation(tokenizer, self._test_lines, recipe.label_smoothing)

    @property
    def evaluated_part(self) -> str:
        """The validation files."""
        return "val"

    @property
    def accumulate(self) -> int:
        """So many that no process has more than `pass_tokens` at once."""
        processes = self.recipe.devices * self.recipe.nodes
        return math.ceil(self.recipe.batch_size / (processes * self.recipe.pass_tokens))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was counted when the files were read."""
        return () if self.data is None else self.data.notes

    def model_options(self) -> dict[str, Any]:
        """How many pieces there are."""
        return {"vocabulary": self.tokenizer.size}

    def example_inputs(self) -> tuple[Any, ...]:
        """A source and a target sentence."""
        return models.example_inputs(self.recipe.model)

    def more_counts(self, network: nn.Module, macs: int) -> dict[str, int]:
        """Parameters without embeddings, and MACs for one token of each sentence."""
        embeddings = [m.weight.numel() for m in network.modules() if isinstance(m, nn.Embedding)]
        params = sum(p.numel() for p in network.parameters()) - sum(embeddings)
        return {
            "params_without_embeddings": params,
            "macs_per_token": macs // math.prod(self.input_shape),
        }

    def keep(self, folder: Path) -> None:
        """Writes the tokenizer, and what tells the text from another one."""
        assert self.data is not None
        files = {
            TOKENIZER: self.tokenizer.content,
            CHECKSUMS: "\n".join(self.data.checksums).encode(),
        }
        known = {name: (folder / name).read_bytes() for name in files if (folder / name).is_file()}
        if any(known[name] != files[name] for name in known) and any(folder.glob("checkpoints/*")):
            raise InputError(
                f"the text must be the one that the run in {folder} began with, and has changed: "
                "bring the old text back, or start again with --overwrite"
            )
        for name, content in files.items():
            with whole_file(folder / name) as partial:
                partial.write_bytes(content)

    def set_test_files(self, source: Path, target: Path) -> None:
        """Tests on other files, and on all of their lines."""
        self.test_files, self.test_limit = (source, target), None

    def first_inputs(self) -> Any:
        """The inputs of the first process's first step."""
        return next(iter(self.train(0, self.recipe.devices * self.recipe.nodes)))[0]

    def train(self, rank: int, world_size: int) -> Batches:
        """The batches that one of several processes learns from."""
        recipe, steps = self.recipe, self.recipe.epoch_steps
        assert self.data is not None
        return TokenBatches(
            _limited(self.data.train, recipe.limit),
            max(1, recipe.batch_size // (world_size * self.accumulate)),
            seed=recipe.seed,
            rank=rank,
            world_size=world_size,
            multiple=self.accumulate,
            epoch_batches=None if steps is None else steps * self.accumulate,
        )

    def weight(self, batches: Any, number: int) -> float:
        """So that the loss of a step is the mean over all of its target tokens."""
        share: float = batches.weights[number]
        return share

    def validation(self, rank: int, world_size: int) -> Batches:
        """The batches of the validation files."""
        assert self.data is not None
        tokens = self.recipe.pass_tokens
        return TokenBatches(self.data.val, tokens, rank=rank, world_size=world_size)

    def test(self, rank: int, world_size: int) -> Batches:
        """The batches of the test files; without them, of the validation files."""
        lines = self._test_lines()
        if lines is None and self.data is None:
            raise InputError(
                f"the test files of {self.recipe.dataset!r} must be in {self.recipe.data_dir}, and "
                "are not: name two files with --test, or their directory with --data-dir"
            )
        if lines is None:
            return self.validation(rank, world_size)
        full = [pair for pair in zip(*lines, strict=True) if all(pair)]
        if not full:
            raise InputError(f"{self.test_files} must hold pairs of sentences, got empty lines")
        encode = self.tokenizer.encode
        source, target = (
            from_lists([row[:LONGEST] for row in encode(side)]) for side in zip(*full, strict=True)
        )
        tokens = self.recipe.pass_tokens
        return TokenBatches(Pairs(source, target), tokens, rank=rank, world_size=world_size)

    def _test_lines(self) -> tuple[list[str], list[str]] | None:
        """The lines of the test files."""
        if self.test_files is None and self.data is None:
            recipe = self.recipe
            languages = recipe.source or "en", recipe.target or "de"
            self.test_files = datasets.test_files(recipe.dataset, recipe.data_dir, *languages)
        if self.test_files is None:
            return None
        inspect_pair(*self.test_files, "name two text files")
        source, target = ([*read_lines(path)][: self.test_limit] for path in self.test_files)
        return source, target


def _limited(pairs: Pairs, limit: int | None) -> Pairs:
    if limit is None or limit >= len(pairs):
        return pairs
    order = torch.randperm(len(pairs), generator=make_generator(LIMIT_SEED, len(pairs)))
    return pairs.take(order[:limit].sort().values)
