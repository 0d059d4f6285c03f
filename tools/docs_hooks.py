"""Pages of the site made from the project itself, and a check for missing public names.

mkdocs calls `on_files` (see `hooks` in mkdocs.yml).
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

import quadric
from quadric.analysis.page import report
from quadric.cli.app import COMMANDS, app

ROOT = Path(__file__).resolve().parent.parent
COMMAND_OUTPUTS = json.loads((ROOT / "results" / "commands.json").read_text(encoding="utf-8"))
LONGEST = 36
"""Lines of a command's output on the page."""
PACKAGES = (
    *("quadric.analysis", "quadric.analysis.figures", "quadric.data", "quadric.exporting"),
    *("quadric.functional", "quadric.models", "quadric.sklearn", "quadric.train", "quadric.layers"),
)


def output_of(name: str) -> str:
    """What a command printed when tools/command_outputs.py ran it; long ones are cut."""
    shown = COMMAND_OUTPUTS["shown"].get(name)
    if shown is None:
        return ""
    lines = shown["output"].splitlines()
    cut = [*lines[:LONGEST], "…"] if len(lines) > LONGEST else lines
    return "\n".join(["```text", f"$ {shown['line']}", *cut, "```", ""])


def commands_page() -> str:
    """Every command with its help, as `quadric COMMAND --help` prints it, and an output."""

    def help_of(*words: str) -> str:
        printed = CliRunner().invoke(app, [*words, "--help"], prog_name="quadric")
        return f"```text\n{printed.output.strip()}\n```\n"

    # Without its own contents the page is wide enough for lines of help.
    first = """---
hide: [toc]
---

# Command line

Each command prints its part of this page with `--help`. Results go to stdout, and what is said
while you wait goes to stderr. `--json -` prints nothing but JSON. A mistake in what you typed, or
in a file, gives one line and exit code 2. The outputs are of one run on a busy machine
(`python tools/command_outputs.py`); long ones are cut.
"""
    names = [command.__name__ for command in COMMANDS]
    links = ", ".join(f"[{name}](#quadric-{name})" for name in names)
    return "\n".join(
        [
            first,
            f"{links}\n",
            help_of(),
            *(f"## quadric {n}\n\n{help_of(n)}\n{output_of(n)}" for n in names),
        ]
    )


def contributing_page() -> str:
    """CONTRIBUTING.md with its links turned to pages of the site."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    # What is not a page of the site is named, not linked.
    return re.sub(
        r"\[([^\]]+)\]\((?!https?:|[^)]*\.md(?:#[^)]*)?\))[^)]*\)",
        r"\1",
        re.sub(r"\[([^\]]+)\]\((quadric/[^)]*)\)", r"`\2`", text),
    )


def public_names() -> dict[str, object]:
    """Every public class and function by its full name: those of `quadric` and of its packages."""
    found = {f"quadric.{name}": getattr(quadric, name) for name in vars(quadric)["__all__"]}
    for module in map(import_module, PACKAGES):
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if value.__module__.startswith(module.__name__):  # not what it only uses
                found[f"{module.__name__}.{name}"] = value
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}


def report_page() -> bytes | None:
    """The report of the published runs, if there are any."""
    folders = [ROOT / "results" / part for part in ("images", "translation")]
    found = [folder for folder in folders if any(folder.glob("*.json"))]
    if not found:
        return None
    with tempfile.TemporaryDirectory() as place:
        return report(found, Path(place) / "report.html", title="Published runs").read_bytes()


def missing_names() -> list[str]:
    """Public names that no page of the reference has, or that say nothing."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    shown = set(re.findall(r"^::: ([\w.]+)", text, re.MULTILINE))
    # One that the top level has, too, is shown there.
    known = {id(value) for name, value in public_names().items() if name in shown}
    return sorted(
        name
        for name, value in public_names().items()
        if not inspect.getdoc(value)
        or not (name in shown or name.rpartition(".")[0] in shown or id(value) in known)
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made here."""
    missing = missing_names()
    if missing:
        raise PluginError(
            f"public names without a docstring or a line in a page of docs/reference/: "
            f"{', '.join(missing)}"
        )
    pages = {"reference/cli.md": commands_page(), "contributing.md": contributing_page()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    runs = report_page()
    if runs is not None:
        files.append(File.generated(config, "report.html", content=runs))
    return files
