"""Which torch is installed where: the decision, and pip's real answers to a small package index."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "install_torch.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_torch", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(*names: str) -> dict[str, Any]:
    """The part that matters of a report of `pip install --dry-run --report`."""
    return {"version": "1", "install": [{"metadata": {"name": name}} for name in names]}


@pytest.mark.parametrize(
    ("names", "cuda"),
    [
        (["torch", "filelock", "sympy", "MarkupSafe"], False),
        (["torch", "nvidia-cublas-cu12", "triton"], True),
        (["torch", "nvidia_cudnn_cu13"], True),
        (["torch", "cuda-bindings"], True),
        (["torch", "NVIDIA-NCCL-cu13"], True),
        # names that only look like it
        (["torch", "cudatools", "pynvidia-smi"], False),
        ([], False),
    ],
)
def test_report_has_cuda(tool: ModuleType, names: list[str], cuda: bool) -> None:
    assert tool.report_has_cuda(report(*names)) is cuda


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("Collecting nvidia-cuda-nvrtc-cu12==12.8.93 (from torch==2.13.0)", True),
        ("Collecting cuda-toolkit", True),
        ("Collecting torch==2.13.0", False),
        ("  Downloading nvidia.txt", False),
        ("", False),
    ],
)
def test_line_has_cuda(tool: ModuleType, line: str, cuda: bool) -> None:
    assert tool.line_has_cuda(line) is cuda


def test_wanted_version_is_that_of_the_constraints(tool: ModuleType) -> None:
    assert tool.wanted_version("# torch==1.0\nnumpy==2\ntorch==2.13.0\n") == "2.13.0"
    with pytest.raises(ValueError, match="must hold a line torch==VERSION"):
        tool.wanted_version("numpy==2\n")
    assert tool.wanted_version(tool.CONSTRAINTS.read_text(encoding="utf-8"))[0].isdigit()


def make_wheel(folder: Path, name: str, *requirements: str) -> None:
    """A wheel that installs nothing but its requirements."""
    info = f"{name}-9.9.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 9.9"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requirements]
    wheel = ["Wheel-Version: 1.0", "Generator: test", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    with zipfile.ZipFile(folder / f"{name}-9.9-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(f"{info}/WHEEL", "\n".join(wheel) + "\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[str]]]:
    """A package index on this machine, with a folder for each package, and what was fetched."""
    fetched: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            fetched.append(self.path)

    address = ("127.0.0.1", 0)
    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(address, handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{running.server_address[1]}")
        try:
            yield tmp_path, fetched
        finally:
            running.shutdown()
            thread.join()


def test_pip_is_stopped_before_it_fetches_cuda(
    tool: ModuleType, server: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, fetched = server
    for name, requirements in (
        ("torch", ["nvidia_zzz", "after"]),
        ("nvidia_zzz", []),
        ("after", []),
    ):
        (folder / name.replace("_", "-")).mkdir()
        make_wheel(folder / name.replace("_", "-"), name, *requirements)
    # A wheel that cannot be read: pip would fail if it were let to go on.
    (folder / "after" / "after-9.9-py3-none-any.whl").write_bytes(b"")
    assert tool.plain_install_brings_cuda("torch==9.9") is True
    assert any("torch-9.9" in path for path in fetched)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of packages."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_pip_is_asked_and_answers(
    tool: ModuleType, index: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "torch", "filelock", "nvidia_cublas; python_version < '3'")
    make_wheel(index, "filelock")
    assert tool.plain_install_brings_cuda("torch==9.9") is False
    make_wheel(index, "torch", "filelock", "nvidia_cublas")
    make_wheel(index, "nvidia_cublas")
    assert tool.plain_install_brings_cuda("torch==9.9") is True
    with pytest.raises(SystemExit, match=r"pip cannot install torch==1\.2"):
        tool.plain_install_brings_cuda("torch==1.2")
