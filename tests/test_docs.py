"""The pages of docs/ and the README: their code runs, their commands exist, the site builds."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from quadric.cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# The pages of notebooks are made by running them.
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "notebooks")
# These have tests of their own, with the names that their code needs (test_docs_*.py).
ELSEWHERE = {"neurons.md", "training.md", "own_parts.md"}
SLOW = {"analysis.md", "deployment.md"}
# What a page needs beyond all extras.
NEEDS = {"integrations.md": ("peft", "optuna"), "private_predictions.md": ("tenseal",)}
RUN = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.name in SLOW else [])
    for page in PAGES
    if page.name not in ELSEWHERE and "```python\n" in page.read_text("utf-8")
]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def commands(page: Path) -> list[str]:
    """The `quadric …` lines of a page's blocks, without comments."""
    found = []
    for language, block in re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        if language in ("", "sh"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.split(" #")[0].strip() for line in lines if line.startswith("quadric ")]
    return found


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")  # of others
@pytest.mark.parametrize("page", RUN)
def test_code_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page run one after the other; `print(…)  # value` promises a value."""
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason=f"{page.name} shows it")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), names)
        printed = capsys.readouterr().out
        for promise in re.findall(r"^print\(.*\)  # (.+)$", block, flags=re.MULTILINE):
            assert promise in printed, page.name


def resolved(words: list[str]) -> Any:
    """A command with all of its options: that of training gets those of its recipe late."""
    group: Any = get_command(app)
    return group.resolve_command(group.make_context("quadric", ["demo"]), words)


@pytest.mark.parametrize(
    "line", sorted({line for page in [ROOT / "README.md", *PAGES] for line in commands(page)})
)
def test_commands_exist(line: str) -> None:
    """The command line takes each command with its options; it is parsed, not run."""
    words = shlex.split(line.replace("…", "x").split(" | ")[0].split(" > ")[0])[1:]
    if words == ["--version"]:
        return
    _, command, rest = resolved(words)
    with command.make_context(words[0], rest, resilient_parsing=False) as context:
        assert context.params is not None


# Of torchrun, srun, tensorboard and other programs.
FOREIGN = {
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--logdir", "--nodes",
    "--ntasks-per-node", "--gpus-per-node", "--requeue", "--backend-store-uri",
}  # fmt: skip


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_options_in_the_text_are_options(page: Path) -> None:
    group: Any = get_command(app)
    commands = [group, *(resolved([name])[1] for name in group.commands)]
    known = {option for c in commands for p in c.params for option in p.opts}
    known |= FOREIGN | {"--help"}
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    prose = re.sub(r"python tools/[^`]*", "", prose)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) <= known


def test_defaults_in_the_tables_are_those_of_the_estimator() -> None:
    from quadric.sklearn import QuadraticRegressor

    parameters = inspect.signature(QuadraticRegressor).parameters
    text = (DOCS / "estimators.md").read_text("utf-8") + (DOCS / "tables.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    assert len(rows) >= 10
    for name, written in rows:
        assert eval(written) == parameters[name].default, name


@pytest.mark.parametrize("page", [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"])
def test_files_and_folders_that_a_page_names_are_there(page: Path) -> None:
    """Below quadric/ or the repository; names in capitals stand for a file to be written."""
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", page.read_text("utf-8")))
    assert len(named) > 10
    for name in named:
        here = (ROOT / "quadric" / name).exists() or (ROOT / name).exists()
        assert here or "NAME" in name or name in ("site/", "dist/", "tests/"), name


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """A broken link or a missing public name fails; no page loads anything from elsewhere."""
    pytest.importorskip("mkdocs", reason="the site needs the docs extra")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "reference" / "cli.html").is_file()
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*"(https?:[^"]*)"', page.read_text("utf-8"))
        assert loaded == [], page.name


@pytest.mark.parametrize(
    "page",
    [ROOT / "CONTRIBUTING.md", *(p for p in PAGES if p.parent.name != "reference")],
    ids=lambda page: page.stem,
)
def test_pages_are_short(page: Path) -> None:
    """At most 1,200 words beside code and generated tables; the reference may be longer."""
    text = re.sub(
        r"```.*?```|<!-- table:.*?/table -->", "", page.read_text("utf-8"), flags=re.DOTALL
    )
    assert len(text.split()) <= 1200
