"""Translating with a finished run, from Python and for `quadric translate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from quadric.data.text.lines import decode_lines, inspect, read_lines
from quadric.errors import InputError
from quadric.support.process import keep_freed_memory
from quadric.train.network import device_of, load_run
from quadric.train.text_run_data import TextRunData
from quadric.train.translation import Translator, Warn, warn_on_screen

CHUNK = 512
"""Lines of a file that are translated, and written, at once."""


def translator(path: str | Path, warn: Warn | None = None, **environment: Any) -> Translator:
    """Loads a finished translation run.

    Args:
        path: the run directory.
        warn: takes one line on what was cut, or looks wrong; by default a warning of Python.
        **environment: `accelerator`, if another one than when it was trained; `code` for a run
            with code of your own, as in `quadric.train.load`.

    Returns:
        What translates: `translator(path).translate(["Two men are playing guitar."])`.

    Raises:
        InputError: if the run is not finished, is for other data, or lacks a file.
    """
    run = load_run(path, **environment)
    if not isinstance(run.data, TextRunData):
        raise InputError(
            f"{path} must be a translation run, got one of the data set {run.recipe.dataset!r}: "
            "name another run"
        )
    device = device_of(run.recipe)
    return Translator(run.network.to(device).eval(), run.data.tokenizer, device, warn)


def translate_file(
    run: str | Path,
    source: Path | None,
    write: Callable[[str], Any],
    progress: Callable[[int], Any],
    *,
    beams: int = 4,
    penalty: float = 0.6,
    **environment: Any,
) -> None:
    """Translates a file, or standard input line by line."""
    keep_freed_memory()
    loaded = translator(run, warn=warn_on_screen, **environment)
    name = "standard input" if source is None else str(source)
    lines = _lines(source, name)
    chunk = 1 if source is None else CHUNK
    done = 0
    for translated in loaded.stream(lines, chunk, beams=beams, penalty=penalty):
        write("".join(f"{line}\n" for line in translated))
        progress(len(translated))
        done += len(translated)
    if not done:
        raise InputError(f"{name} must hold a sentence on each line, got an empty file")


def _lines(source: Path | None, name: str) -> Iterator[str]:
    if source is None:
        # readline, because iteration would wait for a block.
        stream: BinaryIO = sys.stdin.buffer
        yield from decode_lines(iter(stream.readline, b""), name)
    else:
        yield from read_lines(source)


def count_lines(source: Path | None) -> int | None:
    """Lines of a file; None for standard input."""
    return None if source is None else inspect(source, "name a text file").lines
