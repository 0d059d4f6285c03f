"""Measure what batches and cached keys and values save when a run translates a file.

    python tools/decoding_speed.py runs/multi30k-transformer-linear-s0 multi30k/test_2016_flickr.en

The file is translated with four beams as `quadric translate` does it; then every n-th sentence
alone, with the network run from the beginning at each step. Processor time, as other work may run
beside it. Writes results/bench/decoding.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from evidence_runs import write_piece
from torch import Tensor

from quadric.models.beam_search import END, beam_search
from quadric.train import translator

ROOT = Path(__file__).resolve().parent.parent


class Uncached:
    """A network that forgets keys and values: it reads source and target anew for each token."""

    def __init__(self, network: Any, source: Tensor) -> None:
        self.network, self.source, self.encode = network, source, network.encode

    def empty_past(self, rows: int) -> object:
        """The tokens so far, where a network has keys and values: none."""
        none = torch.empty(rows, 0, dtype=torch.int64)
        return ((none, none),)

    def step(self, tokens: Tensor, past: Any, _: object) -> tuple[Tensor, object]:
        """The logits of the next token, and the tokens so far."""
        beams = tokens.shape[1]
        kept = torch.cat([past[0][0], tokens.reshape(-1, 1)], 1)
        logits = self.network(self.source.repeat_interleave(beams, 0), kept)[:, -1]
        return logits.unflatten(0, (-1, beams)), ((kept, kept),)


def timed(work: Callable[[], list[str]]) -> tuple[float, list[str]]:
    """Processor seconds, and what the work gave."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a translation run")
    parser.add_argument("file", type=Path, help="one sentence a line")
    parser.add_argument("--every", type=int, default=10, help="sentence is translated alone")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "decoding.json")
    given = parser.parse_args(arguments)
    lines = given.file.read_text(encoding="utf-8").splitlines()
    made = translator(given.run)
    tokenizer, network = made.tokenizer, made.network
    some = lines[:: given.every]

    def alone() -> list[str]:
        found = []
        for row in tokenizer.encode(some):
            source = torch.tensor([[*row, END]])
            with torch.no_grad():
                found += beam_search(Uncached(network, source), source)
        return tokenizer.decode(found)

    made.translate(some[:10])  # the first call is slower
    fast, whole = timed(lambda: made.translate(lines))
    slow, each = timed(alone)
    same = sum(a == b for a, b in zip(whole[:: given.every], each, strict=True))
    facts = {
        "run": given.run.name, "sentences": len(lines), "sentences_alone": len(some), "beams": 4,
        "cached_seconds": fast, "uncached_seconds": slow, "same_text": same,
        "ratio": (slow / len(some)) / (fast / len(lines)),
    }  # fmt: skip
    write_piece(given.out, facts)
    print(facts)


if __name__ == "__main__":
    main()
