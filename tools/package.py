"""Build wheel and sdist into dist/, install each in an empty environment, and try it.

    python tools/package.py              # both; takes a few minutes, most of them pip's
    python tools/package.py --kind whl   # one

What is tried runs in an empty folder, so that nothing of the checkout is found: the version, the
list of recipes, the demo and a short training run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "train,demo"
TRIED = (
    "quadric --version",
    "quadric neurons",
    "quadric recipes digits",
    "quadric demo --quick",
    "quadric train digits --quick --neuron shared",
    "quadric results runs",
)


def build(kinds: Sequence[str]) -> list[Path]:
    """Builds the files and returns their paths."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made = sorted(Path(folder).iterdir())
        (ROOT / "dist").mkdir(exist_ok=True)
        found = [Path(shutil.move(file, ROOT / "dist" / file.name)) for file in made]
    return [file for file in found if file.name.endswith(tuple(kinds))]


def try_out(file: Path) -> None:
    """Installs a file in an empty environment and runs the commands in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        bin_folder = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = str(bin_folder / "python")
        subprocess.run([python, str(ROOT / "tools" / "install_torch.py")], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = str(ROOT / "constraints.txt")
        subprocess.run([*pip, "-c", constraints, f"{file}[{EXTRAS}]"], check=True)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env["PATH"] = f"{bin_folder}{os.pathsep}{env['PATH']}"
        empty = home / "empty"
        empty.mkdir()
        for command in TRIED:
            print(f"$ {command}", flush=True)
            done = subprocess.run(
                command.split(), cwd=empty, env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{file.name}: {command} failed\n{done.stdout}{done.stderr}")
            print("\n".join(done.stdout.splitlines()[-3:]), flush=True)


def main() -> None:
    """Builds and tries what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=["whl", "tar.gz"], action="append")
    kinds = parser.parse_args().kind or ["whl", "tar.gz"]
    for file in build(kinds):
        print(f"{file.name}: installing it in an empty environment", flush=True)
        try_out(file)
        print(f"{file.name}: installs and works")


if __name__ == "__main__":
    main()
