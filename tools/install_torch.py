"""Install the torch of constraints.txt, without CUDA packages where there is no GPU.

`pip install torch` on Linux may bring several GB of CUDA libraries, on machines without a GPU too.
So on a machine without one, pip is asked first what it would install; only if that holds CUDA
packages is the index of CPU builds used. A package source that already offers a CPU build, and a
machine with a GPU, are left to decide for themselves. Standard library only: this runs before
anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
# `--report` came with pip 22.2.
OLDEST_PIP = (22, 2)


def wanted_version(constraints: str) -> str:
    """The version in the line `torch==…` of a constraints file."""
    found = re.search(r"^torch==(\S+)", constraints, flags=re.MULTILINE)
    if found is None:
        raise ValueError("constraints.txt must hold a line torch==VERSION, it holds none: add it")
    return found.group(1)


def is_cuda_package(name: str) -> bool:
    """Whether a distribution of this name is part of CUDA."""
    return re.match(r"(nvidia|cuda)[-_.]", name.lower()) is not None


def report_has_cuda(report: Mapping[str, Any]) -> bool:
    """Whether a report of `pip install --dry-run --report` would install CUDA packages."""
    return any(is_cuda_package(item["metadata"]["name"]) for item in report["install"])


def line_has_cuda(line: str) -> bool:
    """Whether a line of pip's output says that a CUDA package is being looked up."""
    found = re.match(r"\s*Collecting ([\w.-]+)", line)
    return found is not None and is_cuda_package(found.group(1))


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU with its driver."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def plain_install_brings_cuda(requirement: str) -> bool:
    """Ask pip, without installing anything, whether a plain install brings CUDA packages."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), requirement]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:
            # pip looks up all names before it downloads the first wheel, which it does even in a
            # dry run: stop at the first CUDA name and nothing large is fetched.
            if pip.stdout is not None and any(line_has_cuda(line) for line in pip.stdout):
                pip.terminate()
                return True
        if pip.returncode != 0:
            raise SystemExit(f"pip cannot install {requirement}: see its message above")
        return report_has_cuda(json.loads(report.read_text(encoding="utf-8")))


def upgrade_old_pip() -> None:
    """Make sure that pip knows `--report`."""
    version = importlib.metadata.version("pip")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PIP:
        subprocess.run([sys.executable, "-m", "pip", "install", "--upgrade", "pip"], check=True)


def main() -> None:
    """Install torch into the environment of the Python that runs this."""
    version = wanted_version(CONSTRAINTS.read_text(encoding="utf-8"))
    try:
        # A local part such as +cpu names the build, not the version.
        if importlib.metadata.version("torch").split("+")[0] == version:
            return
    except importlib.metadata.PackageNotFoundError:
        pass
    upgrade_old_pip()
    requirement = f"torch=={version}"
    command = [sys.executable, "-m", "pip", "install", requirement]
    if not has_gpu() and plain_install_brings_cuda(requirement):
        command += ["--index-url", CPU_INDEX]
    print(f"installing {requirement}", flush=True)
    raise SystemExit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
