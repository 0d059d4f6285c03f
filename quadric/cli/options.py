"""What several commands share: their options, and how a result is printed and written as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from quadric.errors import FileError, InputError
from quadric.support.progress import progress_bar as progress_bar
from quadric.support.texttable import printable
from quadric.support.writing import check_writable, write_text


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
First = Annotated[int | None, Option(help="Convert only this many layers, the first ones.", min=1)]
Inputs = Annotated[
    list[str] | None,
    Option(help="Input shape without the batch: 3x32x32, or 128:int64 (repeatable)."),
]
NetworkOptions = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Option of the network (repeatable)."),
]
Code = Annotated[
    list[str] | None,
    Option(
        metavar="FILE.py|MODULE",
        help="Code of your own, such as neurons; it is run (repeatable).",
    ),
]
DataDir = Annotated[Path | None, Option(help="Where the data set is.")]
Quick = Annotated[bool, Option("--quick", help="Take minutes, not the paper's settings.")]


def environment(data_dir: Path | None) -> dict[str, str]:
    """The field of a recipe that `--data-dir` changes."""
    return {} if data_dir is None else {"data_dir": str(data_dir)}


def selection(entries: list[str]) -> Any:
    """The layers that `--include` or `--exclude` names, as a recipe keeps them."""
    from quadric.models.weight_files import parse_selection

    return parse_selection(entries)


def words(text: str) -> list[str]:
    """The words of a list such as `a,b`."""
    return [word.strip() for word in text.split(",") if word.strip()]


def is_run(source: Path, model: str | None, inputs: Any, set_: Any) -> bool:
    """Whether the network is that of a run, which knows it, or of a file of weights."""
    if not source.exists():
        raise FileError(
            f"there is no run directory or file {source}: name one of quadric train, or a file of "
            "quadric.save"
        )
    if source.is_dir() and (model is not None or inputs or set_):
        raise InputError(
            f"{source} is a run directory, which knows its network: leave --model, --input and "
            "--set out"
        )
    return source.is_dir()


def numbers(what: str, text: str, separator: str = ",", count: int | None = None) -> list[int]:
    """The positive whole numbers of a list such as `64,64` or `20x32x128`."""
    parts = [part.strip() for part in text.split(separator)]
    values = [int(part) for part in parts if part.isdecimal()]
    if len(values) != len(parts) or min(values) < 1 or count not in (None, len(values)):
        raise InputError(
            f"{what} must be positive whole numbers joined by {separator!r}, got {text!r}"
        )
    return values


def show(text: object, data: Any, json_file: str | None) -> None:
    """Prints a result, and writes it as strict JSON where that is asked for."""
    if data is None:
        print(printable(text), file=sys.stderr if json_file == "-" else sys.stdout)
        return
    content = json.dumps(data, indent=2, allow_nan=False) if json_file is not None else ""
    if json_file not in (None, "-"):
        write_text(str(json_file), content + "\n")
    print(content if json_file == "-" else printable(text))
