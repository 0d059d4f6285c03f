"""The command line: parse, call, print.

How a command is written (`quadric/cli/demo.py` is the pattern):

1. It is one function in a file of `quadric/cli`, and stands in `COMMANDS` below.
2. The docstring's first line is one sentence that says what the command does. Its last line is
   `Example: quadric NAME ...`. `quadric` shows both; `quadric NAME --help` begins with the example.
3. A command that needs an extra begins with `require("train", "quadric train")`. Everything heavy
   is imported inside the function, so that `quadric --help` answers at once.
4. The function parses, calls the library and prints with `show`. With `--json -` nothing but strict
   JSON goes to stdout.
5. A user's mistake needs no code here. A `QuadricError`, and an error of the system that names a
   file, become one line on stderr and exit code 2. Every other error is a bug and keeps its
   traceback.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from quadric.cli.analysis import analyze, figures, report
from quadric.cli.bench import bench
from quadric.cli.demo import demo
from quadric.cli.discover import discover
from quadric.cli.encrypted import encrypted
from quadric.cli.export import export
from quadric.cli.neurons import convert, cost, neurons
from quadric.cli.tables import compare, predict
from quadric.cli.train import evaluate, recipe_fields, recipes, results, sweep, train, with_fields
from quadric.cli.translate import translate
from quadric.errors import QuadricError
from quadric.support.texttable import printable
from quadric.support.writing import DISK

COMMANDS = (
    demo,
    neurons,
    cost,
    convert,
    recipes,
    train,
    evaluate,
    translate,
    results,
    sweep,
    analyze,
    figures,
    report,
    bench,
    compare,
    predict,
    discover,
    export,
    encrypted,
)
SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": 100}
LONGEST = 2000
"""Letters of an error that are printed."""
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells count."""


def _mistake(error: Exception) -> str | None:
    """The one line that tells a user their mistake; None if the error is a bug."""
    if hasattr(error, "format_message"):  # of the parser: unknown option, missing argument
        message = str(error.format_message())
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"{error.strerror}: {error.filename}"
    elif isinstance(error, QuadricError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in DISK:  # while a file was being written
        message = f"the disk refused ({error.strerror}): make room, or choose another place"
    else:
        return None
    message = printable(" ".join(message.split()))
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"


def _close_output() -> None:
    """Forgets what could not be written, or Python would try once more and report it."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _example_and_text(command: Any) -> tuple[str, str]:
    """The example in the last line of a command's docstring, and the rest of it."""
    text, _, example = inspect.cleandoc(command.help or "").rpartition("Example: ")
    return example.strip(), text.strip()


class Command(TyperCommand):
    """A command whose help begins with an example; `--json` alone means stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments."""
        last = [*args[1:], "--"]
        pairs = zip(args, last, strict=False)
        alone = [a == "--json" and b.startswith("-") and b != "-" for a, b in pairs]
        whole = [
            w for a, bare in zip(args, alone, strict=True) for w in ([a, "-"] if bare else [a])
        ]
        return list(super().parse_args(ctx, whole))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the example, the usage, the text and the options."""
        example, text = _example_and_text(self)
        formatter.write(f"Example: {example}\n\n")
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        self.format_options(ctx, formatter)


class Commands(TyperGroup):
    """All commands: shows them with their examples, and turns a user's mistake into one line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes one sentence and one example for each command."""
        formatter.write("Quadric: quadratic neurons as drop-in PyTorch layers.\n\n")
        formatter.write("Usage: quadric COMMAND [OPTIONS]\n\n")
        for name in self.list_commands(ctx):
            example, text = _example_and_text(self.get_command(ctx, name))
            summary = " ".join(text.split("\n\n")[0].split())
            formatter.write(f"  {name:<10} {summary}\n  {'':<10} $ {example}\n")
        formatter.write("\nquadric COMMAND --help explains a command; quadric --version.\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds a command to be run; that of training gets the options of its recipe only now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name == train.__name__:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name, cls=Command, context_settings=SETTINGS)(
                with_fields(train, recipe_fields())
            )
            command = typer.main.get_command(alone)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; the parser would make a failure of an output that is no longer read."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _close_output()
            return 0

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command, and exits with its code unless `standalone_mode` is False."""
        standalone = kwargs.get("standalone_mode", True)
        if sys.stderr is None:  # closed: what we tell must not go into a file that is opened next
            sys.stderr = open(os.devnull, "w")
        if sys.stdout is None:
            print(
                "Error: the standard output is closed: open it, or use >/dev/null", file=sys.stderr
            )
            sys.exit(2)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a result is never lost to that
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()  # an output that cannot be written is a mistake like others
        except typer.Abort:
            code = INTERRUPTED
        except BrokenPipeError:  # who reads has had enough, as in `| head -1`
            _close_output()
            code = 0
        except Exception as error:
            message = _mistake(error)
            if message is None:
                raise
            _close_output()
            print(f"Error: {message}", file=sys.stderr)
            code = 2
        if not standalone:
            return code
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)
for _command in COMMANDS:
    app.command(cls=Command)(with_fields(_command, {}) if _command is train else _command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from quadric import __version__

        print(f"quadric {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Quadratic neurons as drop-in PyTorch layers."""
    if context.invoked_subcommand is None:
        print(context.get_help())


if __name__ == "__main__":
    app()
