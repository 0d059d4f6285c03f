"""Run every family of the conversion tests and write results/families.json.

    python tools/family_results.py && python tools/readme_tables.py

The table in docs/families.md is made from this file; `pytest -m slow tests/conversion` runs
every cell again and compares.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run all cells."""
    sys.path.insert(0, str(ROOT))
    from tests.conversion.cells import CELLS, run
    from tests.conversion.families import FAMILIES

    warnings.simplefilter("ignore")
    families = {}
    for name in FAMILIES:
        families[name] = {column: run(name, column) for column in CELLS}
        print(name, *families[name].values(), sep=", ", flush=True)
    versions = {package: version(package) for package in ("torch", "transformers")}
    command = "python tools/family_results.py"
    data = {"versions": versions, "families": families, "command": command}
    text = json.dumps(data, indent=2, ensure_ascii=False)
    (ROOT / "results" / "families.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
