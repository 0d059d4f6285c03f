"""Every command has an output on the page of the command line."""

from __future__ import annotations

import json
import shlex

import pytest

from quadric.cli.app import COMMANDS
from tests.test_docs import resolved
from tests.tools.loading import ROOT, load_tool

SHOWN = json.loads((ROOT / "results" / "commands.json").read_text(encoding="utf-8"))["shown"]


def test_every_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    load_tool("evidence_runs", monkeypatch)
    tool = load_tool("command_outputs", monkeypatch)
    assert {name: each["line"] for name, each in SHOWN.items()} == tool.COMMANDS
    # One needs a run of hours.
    assert {command.__name__ for command in COMMANDS} == {*SHOWN, "translate"}
    assert all(each["output"] for each in SHOWN.values())


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_a_command(name: str) -> None:
    words = shlex.split(SHOWN[name]["line"])[1:]
    _, command, rest = resolved(words)
    with command.make_context(words[0], rest) as context:
        assert context.params is not None
