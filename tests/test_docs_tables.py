"""What the pages on tables show is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from typer.main import get_command

from quadric.cli.app import app
from quadric.sklearn import QuadraticRegressor

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("tables.md", "estimators.md", "compare.md", "compared.md")
TEXT = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)


def test_defaults_in_the_table_are_those_of_the_estimator() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(QuadraticRegressor).parameters.items()
    }
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", TEXT, re.MULTILINE)
    assert len(rows) >= 10
    for name, written in rows:
        assert eval(written) == defaults[name], name


def test_options_and_examples_exist() -> None:
    command = get_command(app).commands["compare"]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"`(--[\w-]+)", TEXT)) - {"--tables"}
    assert named
    assert named <= options
