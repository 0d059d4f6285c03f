"""The README's code runs as it stands, and its pictures are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = re.sub(r"<!-- table: .*?<!-- /table -->", "", README, flags=re.DOTALL)
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_is_code() -> None:
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs_and_prints_what_it_says(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    # `print(...)  # VALUE: why` promises a value.
    promised = re.findall(r"^print\(.*\)  # (.+?)(?:: .*)?$", block, flags=re.MULTILINE)
    assert printed == promised


def test_pictures_and_pages_exist() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).is_file(), link
        assert (ROOT / link).stat().st_size < 200_000, link


def test_every_table_is_generated() -> None:
    """tests/tools/test_readme_tables.py makes them again from results/, and finds no difference."""
    assert "\n|" in README
    assert "\n|" not in TEXT


def test_it_is_short_and_begins_with_what_sells() -> None:
    assert len(README.split()) <= 900
    fold = README.partition("\n## ")[0]
    for part in ("![", "pip install ", "```python"):
        assert part in fold, part
    assert len(fold.splitlines()) <= 32
