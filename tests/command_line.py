"""Commands run in this process, and what a user's mistake must look like."""

from __future__ import annotations

import re
from typing import Any

from typer.testing import CliRunner

from quadric import cli


def quadric(*args: str) -> Any:
    return CliRunner().invoke(cli.app, args)


def assert_mistake(result: Any, message: str) -> None:
    """Exit code 2 and one line on stderr that holds the message."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert re.fullmatch(r"Error: [^\n]+\n", result.stderr), result.stderr
    assert message in result.stderr
