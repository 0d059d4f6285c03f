"""What several commands share: their options, and how a result is printed and written as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from quadric.errors import FileError, InputError


def check_writable(option: str, path: Path) -> None:
    """Refuses a file that cannot be written, before the work whose result it would hold.

    Args:
        option: the option that names the file.
        path: the file.

    Raises:
        FileError: if the folder is missing, or the file cannot be written.
    """
    if not path.parent.is_dir():
        raise FileError(
            f"{option} {path}: there is no directory {path.parent}: make it, or name another file"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FileError(f"{option} {path} cannot be written: name another file")


def _check_json(file: str | None) -> str | None:
    if file not in (None, "-"):
        check_writable("--json", Path(str(file)))
    return file


JsonFile = Annotated[
    str | None,
    Option("--json", metavar="FILE", callback=_check_json, help="Write JSON; - for stdout."),
]
Markdown = Annotated[bool, Option("--markdown", help="Print markdown.")]
Neuron = Annotated[str, Option(help="A neuron, see quadric neurons.")]
Rank = Annotated[int | None, Option(help="Its rank; by default its own.")]
Include = Annotated[
    list[str] | None,
    Option(help="Convert only these layers: a name, a suffix or re:REGEX (repeatable)."),
]
Exclude = Annotated[
    list[str] | None,
    Option(help="Leave these layers linear: a name, a suffix or re:REGEX (repeatable)."),
]
Layers = Annotated[str | None, Option(help="Convert only the first layers, such as first:3.")]
Inputs = Annotated[
    list[str] | None,
    Option(help="Input shape without the batch: 3x32x32, or 128:int64 (repeatable)."),
]
NetworkOptions = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Option of the network (repeatable)."),
]
Imports = Annotated[
    list[str] | None,
    Option(
        "--import",
        metavar="FILE.py|MODULE",
        help="Code of your own, such as neurons; it is run (repeatable).",
    ),
]
Trust = Annotated[
    bool,
    Option("--trust", help="Run the code that a run directory, or a file of others, names."),
]
DataDir = Annotated[Path | None, Option(help="Where the data set is.")]
Quick = Annotated[bool, Option("--quick", help="Take minutes, not the paper's settings.")]


def place(data_dir: Path | None) -> dict[str, str]:
    """The field of a recipe that `--data-dir` changes."""
    return {} if data_dir is None else {"data_dir": str(data_dir)}


def given(context: typer.Context) -> dict[str, Any]:
    """The parameters that stand on the command line, by name, as they were parsed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: context.params[name] for name in named}


def words(text: str) -> list[str]:
    """The words of a list such as `a,b`."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(what: str, text: str, separator: str = ",", count: int | None = None) -> list[int]:
    """The positive whole numbers of a list such as `64,64` or `20x32x128`.

    Args:
        what: the option, the subject of the message.
        text: the list.
        separator: what stands between two numbers.
        count: how many there must be; None for any number but zero.

    Raises:
        InputError: if it is not such a list.
    """
    parts = [part.strip() for part in text.split(separator)]
    found = [int(part) for part in parts if part.isdecimal()]
    if len(found) != len(parts) or min(found) < 1 or count not in (None, len(found)):
        raise InputError(
            f"{what} must be positive whole numbers joined by {separator!r}, got {text!r}"
        )
    return found


def show(text: object, data: Any, json_file: str | None) -> None:
    """Prints a result, and writes it as strict JSON where that is asked for.

    Args:
        text: what a person reads. It is not printed if JSON goes to stdout.
        data: what a program reads; None if there is no result, and the text says why.
        json_file: the value of `--json`.
    """
    if data is None:
        print(text, file=sys.stderr if json_file == "-" else sys.stdout)
        return
    content = json.dumps(data, indent=2, allow_nan=False) if json_file is not None else ""
    if json_file not in (None, "-"):
        Path(str(json_file)).write_text(content + "\n", encoding="utf-8")
    print(content if json_file == "-" else text)


@contextmanager
def progress_bar(total: int | None, what: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, where that is a terminal.

    Args:
        total: the number of steps, or None if the first step says it.
        what: what is being done.

    Yields:
        A function of the steps that were done, by default 1, what is done next, and the total.
    """
    from rich.console import Console
    from rich.progress import Progress

    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=total)

        def advance(done: int = 1, now: str = "", total: int | None = total) -> None:
            bar.update(task, advance=done, description=now or what, total=total)

        yield advance
