"""Write the tables of README.md from the result files.

    python tools/readme_tables.py           # rewrite what stands between the markers
    python tools/readme_tables.py --check   # change nothing, exit with 1 if a table is out of date

A table stands between the lines `<!-- table: NAME -->` and `<!-- /table -->`; NAME is a key of
`TABLES`, which says from which files in results/ it is made. So no number in the README is typed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quadric.demo.table import demo_table

ROOT = Path(__file__).resolve().parent.parent


def _demo(results: Path) -> str:
    return demo_table(
        json.loads((results / "demo.json").read_text(encoding="utf-8")), markdown=True
    )


TABLES: Mapping[str, Callable[[Path], str]] = {"demo": _demo}

_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", flags=re.DOTALL)
_MARKER = re.compile(r"<!-- (?:table: \S+|/table) -->")


def fill(page: str, results: Path) -> str:
    """The page with each table made anew."""

    def replace(block: re.Match[str]) -> str:
        name = block.group(2)
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r} in a marker: choose from {', '.join(TABLES)}")
        return f"{block.group(1)}\n{TABLES[name](results).strip()}\n\n{block.group(3)}"

    filled, count = _BLOCK.subn(replace, page)
    # A marker without its partner would leave an old table standing for ever.
    if len(_MARKER.findall(page)) != 2 * count:
        raise ValueError("each <!-- table: NAME --> needs its own <!-- /table --> after it")
    return filled


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    parser.add_argument("--page", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args(arguments)
    page = options.page.read_text(encoding="utf-8")
    filled = fill(page, options.results)
    if filled == page:
        return 0
    if options.check:
        print(f"{options.page.name} is out of date: run python tools/readme_tables.py")
        return 1
    options.page.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
