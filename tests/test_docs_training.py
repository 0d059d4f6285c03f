"""What the pages on training show is there, and works."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from quadric.layers import unregister
from quadric.train.recipe import FIELDS
from tests.command_line import output
from tests.test_docs_commands import steps

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
         for name in ("training", "recipes", "runs", "own_parts", "neurons")}  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def test_every_field_is_explained_once() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGES["recipes"], re.MULTILINE)
    named = [field for row in rows for field in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(set(FIELDS) - {"name", "title", "reproduces"})


def test_code_of_the_overview_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("training", "python")
    exec(code.replace("epochs=3", "epochs=1, limit=64, progress=False"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("{'accuracy': ")
    assert re.search(r"eigen +0\.\d+ +0\.\d+", printed)


def test_own_parts_of_the_pages_work_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neuron, the network, the data, the command and the recipe, as they are shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (neuron,) = (code for code in blocks("neurons", "python") if "register(" in code)
    (tmp_path / "my_neurons.py").write_text(neuron)
    for name, text in steps(ROOT / "docs" / "own_parts.md"):
        if name:
            (tmp_path / name).write_text(text)
    (line,) = (code for code in blocks("own_parts", "sh") if "quadric sweep" in code)
    (code,) = blocks("own_parts", "python")
    short = ["--set", "epochs=1", "--set", "dataset_options={count: 64}"]
    words = ["--code", "my_neurons.py", "--code", "my_parts"]
    try:
        assert "cubic minus linear" in output(*shlex.split(line.replace("\\\n", " "))[1:], *short)
        assert "cubic" in output("train", "my.yaml", *words, "--quiet", *short)
        exec(code.replace("seeds=3", "seeds=1, epochs=1, progress=False"), {})
    finally:
        unregister("cubic")
        for name in ("my_neurons", "my_parts"):
            sys.modules.pop(name, None)
