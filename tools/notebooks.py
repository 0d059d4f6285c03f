"""Run the notebooks of examples/notebooks/ and write them as pages of the site.

    python tools/notebooks.py            # all of them
    python tools/notebooks.py pinn       # one

Each script is a notebook in jupytext's percent format. It runs in a new kernel in an empty folder.
Its text, code, output and pictures go to docs/notebooks/NAME.md and docs/notebooks/NAME_files/.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "notebooks"


def run(name: str) -> None:
    """Runs one notebook and writes its page."""
    script = SCRIPTS / f"{name}.py"
    notebook = jupytext.read(script)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            resources=resources,
            coalesce_streams=True,  # lines that one cell prints stay together
        ).execute()
    for cell in notebook.cells:
        # Warnings name paths of the machine that ran it.
        outputs = cell.get("outputs", [])
        cell["outputs"] = [output for output in outputs if output.get("name") != "stderr"]
    text, extra = MarkdownExporter().from_notebook_node(
        notebook, {"unique_key": name, "output_files_dir": f"{name}_files"}
    )
    note = f"*Made by `make notebooks` from `examples/notebooks/{name}.py`.*"
    title, _, rest = text.lstrip().partition("\n")
    page = f"{title}\n\n{note}\n{rest}"
    PAGES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(PAGES / f"{name}_files", ignore_errors=True)  # pictures of earlier cells
    for path, data in extra["outputs"].items():
        (PAGES / path).parent.mkdir(exist_ok=True)
        (PAGES / path).write_bytes(data)
    (PAGES / f"{name}.md").write_text(page.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    for name in names:
        start = time.perf_counter()
        print(f"{name} …", end=" ", flush=True)
        run(name)
        print(f"{time.perf_counter() - start:.0f} s")
