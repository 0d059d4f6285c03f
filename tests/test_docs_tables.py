"""What the pages on tables show is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from quadric.cli.app import app
from quadric.sklearn import QuadraticRegressor

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [
    (DOCS / name).read_text(encoding="utf-8") for name in ("tables.md", "compare.md", "compared.md")
]
TEXT = "".join(PAGES)


def test_pages_stay_short() -> None:
    assert all(len(page.split()) <= 1200 for page in PAGES)


def test_defaults_in_the_table_are_those_of_the_estimator() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(QuadraticRegressor).parameters.items()
    }
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", TEXT, re.MULTILINE)
    assert len(rows) >= 10
    for name, written in rows:
        assert eval(written) == defaults[name], name


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    X = draw.normal(size=(60, 3))
    names: dict[str, Any] = {"X": X, "y": X[:, 0] * X[:, 1], "X_new": X[:5]}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
    assert names["model"].predict(names["X_new"]).shape == (5,)
    assert all(hasattr(model, "module_") for model in names["models"])
    assert (tmp_path / "runs" / "diabetes" / "compare.json").is_file()


def test_options_and_examples_exist() -> None:
    command = get_command(app).commands["compare"]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"`(--[\w-]+)", TEXT)) - {"--tables"}
    assert named
    assert named <= options
