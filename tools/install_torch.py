"""Install the torch of constraints.txt, without CUDA packages where there is no GPU.

`pip install torch` on Linux may bring several GB of CUDA libraries, on machines without a GPU too.
So on a machine without one the index of CPU builds is used. Where pip is configured to take its
packages from elsewhere, that source decides. Standard library only: this runs before anything is
installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
PIP = [sys.executable, "-m", "pip"]


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU with its driver."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def has_own_source() -> bool:
    """Whether pip is configured, in a file or the environment, to take packages from elsewhere."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    return re.search(r"index|find-links", listed.stdout) is not None


def main() -> None:
    """Install torch into the environment of the Python that runs this."""
    pinned = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    try:
        # A local part such as +cpu names the build, not the version.
        if importlib.metadata.version("torch").split("+")[0] == pinned[1]:
            return
    except importlib.metadata.PackageNotFoundError:
        pass
    command = [*PIP, "install", pinned[0]]
    if sys.platform == "linux" and not has_gpu() and not has_own_source():
        command += ["--index-url", CPU_INDEX]
    print(" ".join(command), flush=True)
    raise SystemExit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
