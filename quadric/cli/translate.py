"""The command `quadric translate`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.writing import check_writable


def translate(
    run: Path = Argument(help="A run directory of a translation recipe."),
    source: Path | None = Argument(None, help="A text file; by default standard input."),
    output: Path | None = Option(None, "--output", "-o", help="By default standard output."),
    beams: int = Option(4, help="Translations that are followed at once.", min=1),
    penalty: float = Option(0.6, help="Exponent of the length; 0 prefers short translations."),
    greedy: bool = Option(False, "--greedy", help="The same as --beams 1, and fastest."),
    code: options.Code = None,
) -> None:
    """Translate text with a finished run: a file, or standard input line by line.

    One line of text gives one line. Lines that are written stay if a later one is refused.

    Example: quadric translate runs/multi30k-transformer-linear-s0 input.en -o output.de
    """
    require("train", "quadric translate")
    require("text", "quadric translate")
    from quadric.train.translating import count_lines, translate_file

    if output is not None:
        check_writable("--output", output)
        if source is not None and output.exists() and output.samefile(source):
            raise InputError(f"--output must not be the text itself, got {output}: name another")
    total = count_lines(source)
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(options.progress_bar(total, "translating"))
        file: Any = None

        def write(text: str) -> None:
            nonlocal file
            if file is None:  # only now: a mistake must not cost an earlier translation
                file = sys.stdout.buffer
                if output is not None:
                    file = stack.enter_context(output.open("wb"))
            file.write(text.encode())
            file.flush()

        beams = 1 if greedy else beams
        translate_file(run, source, write, advance, beams=beams, penalty=penalty, code=code or [])
