"""The command line as a whole: its overview, its examples, and how it words a user's mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from quadric.cli.app import Command, Commands, app
from quadric.errors import FileError, InputError, InputTypeError, MissingExtraError
from quadric.support.extras import EXTRAS
from tests.command_line import assert_mistake, quadric

QUADRIC = Path(sys.executable).parent / "quadric"
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def test_no_argument_lists_every_command_with_an_example() -> None:
    result = quadric()
    assert result.exit_code == 0
    assert result.stderr == ""
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S.*\n +\$ quadric {name}\b", result.stdout, re.MULTILINE), (
            name
        )
    assert quadric("--help").stdout.strip() == result.stdout.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_an_example(name: str) -> None:
    result = quadric(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Example: quadric {name}")
    assert f"Usage: quadric {name}" in result.stdout.replace("root", "quadric")
    assert quadric(name, "-h").stdout == result.stdout


@pytest.mark.parametrize("command", [[str(QUADRIC)], [sys.executable, "-m", "quadric"]])
def test_version_in_a_real_process(command: list[str]) -> None:
    run = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"quadric {version('quadric')}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["dmo"], "No such command 'dmo'"),
        (["demo", "--sed", "1"], "No such option: --sed"),
        (["demo", "--seed", "many"], "--seed"),
        (["demo", "--seed", "-1"], "seed must be between 0 and 2147483647, got -1"),
        (["demo", "--out", __file__], "out must be a folder, got the file"),
    ],
)
def test_a_mistake_is_one_line(args: list[str], message: str) -> None:
    assert_mistake(quadric(*args), message)


def test_a_missing_extra_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # None is how Python itself marks a module that must not be found.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "demo"
    result = quadric("demo", "--out", str(out))
    assert_mistake(result, "quadric demo needs the extra 'demo': pip install 'quadric[demo]'")
    assert not out.exists()


def test_extras_are_those_of_the_package() -> None:
    extras: dict[str, set[str]] = {}
    for requirement in requires("quadric") or []:
        found = re.fullmatch(r"([\w.-]+).*; extra == ['\"](\w+)['\"]", requirement)
        if found is not None:
            extras.setdefault(found[2], set()).add(found[1].lower())
    modules = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
    modules["pina-mathlab"] = "pina"
    declared = {
        extra: {modules.get(name, name) for name in names}
        for extra, names in extras.items()
        if extra not in ("all", "dev", "docs")
    }
    assert declared == {extra: set(names) for extra, names in EXTRAS.items()}


@pytest.fixture
def probe() -> Any:
    """Runs a function as a command of an app that words mistakes as `quadric` does."""

    def run(command: Any) -> Any:
        probe = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
        probe.callback()(lambda: None)
        probe.command("probe", cls=Command)(command)
        return CliRunner().invoke(probe, ["probe"])

    return run


@pytest.mark.parametrize(
    "error",
    [
        InputError("rank must be >= 1, got 0"),
        InputTypeError("rank must be an integer"),
        FileError("there is no file"),
        MissingExtraError("quadric probe needs an extra"),
    ],
)
def test_a_mistake_is_told_by_its_class(probe: Any, error: Exception) -> None:
    def command() -> None:
        """Example: quadric probe"""
        raise error

    assert_mistake(probe(command), f"Error: {error}\n")


def test_an_error_of_the_system_that_names_a_file(probe: Any, tmp_path: Path) -> None:
    def missing() -> None:
        """Example: quadric probe"""
        Path("no/such/file").read_text(encoding="utf-8")

    assert_mistake(probe(missing), "Error: No such file or directory: no/such/file\n")

    def folder() -> None:
        """Example: quadric probe"""
        tmp_path.write_text("no", encoding="utf-8")

    assert_mistake(probe(folder), f"Error: Is a directory: {tmp_path}\n")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("raised by another library"),
        ModuleNotFoundError("No module named 'quadrc'", name="quadrc"),
        RuntimeError("a bug"),
        OSError("without a file"),
    ],
)
def test_a_bug_keeps_its_traceback(probe: Any, error: Exception) -> None:
    def command() -> None:
        """Example: quadric probe"""
        raise error

    assert probe(command).exception is error


def test_ctrl_c_ends_a_command_without_a_traceback(probe: Any) -> None:
    def command() -> None:
        """Example: quadric probe"""
        raise KeyboardInterrupt

    result = probe(command)
    assert result.exit_code == 130
    assert isinstance(result.exception, SystemExit)


def test_help_and_version_do_not_load_torch() -> None:
    for word in ("--version", "--help", "train --help"):
        code = (
            "import sys\nfrom quadric.cli import main\n"
            f"sys.argv = ['quadric', *{word.split()}]\n"
            "try:\n    main()\n"
            "finally:\n    sys.stderr.write(str('torch' in sys.modules))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "False")
        assert run.stdout
