"""Which torch is installed where: pip is replaced by a program that says what it was asked."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = load_tool("install_torch", monkeypatch)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(found, "has_gpu", lambda: False)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return found


@pytest.mark.parametrize(
    ("gpu", "source", "cpu"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"PIP_INDEX_URL": "https://mirror"}, False),
        (False, {"PIP_FIND_LINKS": "/wheels"}, False),
    ],
)
def test_the_index_of_cpu_builds(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    gpu: bool,
    source: dict[str, str],
    cpu: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(tool, "has_gpu", lambda: gpu)
    for name, value in source.items():
        monkeypatch.setenv(name, value)
    run = tool.subprocess.run

    def asked(command: list[str], **options: object) -> object:
        return run(command if "config" in command else ["true"], **options)

    monkeypatch.setattr(tool.subprocess, "run", asked)
    with pytest.raises(SystemExit) as ended:
        tool.main()
    assert ended.value.code == 0
    said = capfd.readouterr().out
    assert "pip install torch==2." in said
    assert ("--index-url https://download.pytorch.org/whl/cpu" in said) is cpu


def test_a_torch_that_is_there_stays(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "constraints.txt").write_text("# torch==1.0\nnumpy==2\ntorch==2.13.0\n")
    monkeypatch.setattr(tool, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    tool.main()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    monkeypatch.setattr(tool, "PIP", ["echo"])
    with pytest.raises(SystemExit):
        tool.main()
