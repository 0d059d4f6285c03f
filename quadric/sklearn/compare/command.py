"""What `quadric compare` does with a table: it compares, and writes what it found."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from quadric.data.columns import UserTable
from quadric.sklearn.compare.report import Comparison
from quadric.sklearn.compare.run import Options, Progress, compare
from quadric.sklearn.compare.saving import save_best


def compare_and_write(
    table: UserTable,
    options: Options,
    *,
    directory: Path | None = None,
    save: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Comparison, list[str]]:
    """Compares networks on a table, and writes the numbers, a picture and the best network.

    Args:
        table: checked by `check_table`.
        options: what is compared.
        directory: where the fits are kept; None for one under runs/compare.
        save: the file of the best quadratic network, or None.
        progress: called with the number of new fits and what is being fitted.

    Returns:
        The comparison, and lines on what was written.

    Raises:
        InputError: if the directory holds another comparison, or there is no network to save.
    """
    records = compare(table, options, directory=directory, progress=progress)
    found = Comparison(table, options, records)
    found.write()
    written = [f"{records.path / 'compare.json'}: all numbers"]
    if importlib.util.find_spec("matplotlib") is not None:
        from quadric.sklearn.compare.picture import draw

        draw(found, records.path / "compare.png")
        written.append(f"{records.path / 'compare.png'}: the picture")
    else:
        written.append("no picture: pip install 'quadric[plots]'")
    if save is not None:
        written += save_best(found, save)
    return found, written
