"""Commands run in this process, and what a user's mistake must look like."""

from __future__ import annotations

import re
from typing import Any

from typer.testing import CliRunner

from quadric.cli.app import app


def quadric(*args: object) -> Any:
    """Runs a command."""
    return CliRunner().invoke(app, [str(arg) for arg in args])


def output(*args: object) -> str:
    """What a command that ends well prints."""
    result = quadric(*args)
    if result.exit_code != 0:
        raise AssertionError(result.output + result.stderr) from result.exception
    return str(result.stdout)


def assert_mistake(result: Any, message: str) -> None:
    """Exit code 2 and one line on stderr that holds the message, after what was being written."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert re.fullmatch(r"(writing [^\n]+\n)?Error: [^\n]+\n", result.stderr), result.stderr
    assert message in result.stderr
