"""Which rows are tested on: random ones, later ones, or whole groups.

Random rows are the wrong test where rows near each other are alike: a model then sees the
neighbors of every test row. `order_note` looks for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    TimeSeriesSplit,
)

from quadric.data.columns import CATEGORY, DATE
from quadric.data.user_table import UserTable
from quadric.errors import InputError

RANDOM, TIME, GROUP = "random", "time", "group"

ALIKE = 0.2
"""Neighbors that are more alike than this are worth a warning."""

Parts = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Split:
    """How rows are split.

    Attributes:
        kind: "random", "time" (tested on what comes later) or "group" (tested on new groups).
        column: the groups, or what the time is; None for a table's first date or its row order.
    """

    kind: str = RANDOM
    column: str | None = None

    def __str__(self) -> str:
        return self.kind if self.column is None else f"{self.kind}:{self.column}"

    def test_share(self, folds: int) -> float:
        """Test rows by training rows, averaged over the folds."""
        if self.kind == TIME:  # all parts are of one size, and the i-th fold learns from i of them
            return sum(1 / i for i in range(1, folds + 1)) / folds
        return 1 / (folds - 1)


def parse_split(text: str) -> Split:
    """From "time" or "group:town" to a split."""
    kind, _, column = text.partition(":")
    if kind not in (RANDOM, TIME, GROUP) or bool(column) < (kind == GROUP):
        raise InputError(f"split must be random, time, time:COLUMN or group:COLUMN, got {text!r}")
    if kind == RANDOM and column:
        raise InputError(f"split random takes no column, got {text!r}: write --split random")
    return Split(kind, column or None)


def splits(table: UserTable, folds: int, seed: int, split: Split | None = None) -> Parts:
    """Training and test rows of each fold."""
    split = split or Split()
    labels = table.target.to_numpy()
    classes = table.task == "classification"
    options = {"n_splits": folds, "shuffle": True, "random_state": seed}
    if split.kind == TIME:
        order = time_order(table, split.column)
        places = TimeSeriesSplit(folds).split(order)
        parts = [(np.sort(order[train]), np.sort(order[test])) for train, test in places]
    elif split.kind == GROUP:
        groups = _groups(table, folds)
        grouped = StratifiedGroupKFold(**options) if classes else GroupKFold(**options)
        parts = list(grouped.split(labels, labels, groups))
    else:
        plain = StratifiedKFold(**options) if classes else KFold(**options)
        parts = list(plain.split(np.zeros(len(labels)), labels))
    if classes:
        for number, (train, test) in enumerate(parts):
            if len(set(labels[train])) < 2 or not len(test):
                raise InputError(
                    f"every part to learn from must hold 2 classes of {table.target.name!r}, but "
                    f"that of fold {number + 1} by --split {split} has only {labels[train][0]!r}: "
                    "use fewer --folds or --split random"
                )
    return parts


def time_order(table: UserTable, column: str | None) -> np.ndarray:
    """The rows from the earliest to the latest; rows without a time come first."""
    if column is None:
        dates = [name for name, kind in table.kinds.items() if kind == DATE]
        if not dates:
            return np.arange(len(table.target))
        column = dates[0]
    if table.kinds.get(column, CATEGORY) == CATEGORY:
        raise InputError(
            f"--split time:{column} needs a column of dates or numbers that is learned from, got "
            f"{table.kinds.get(column, 'none of that name')}: use --split time for the row order"
        )
    ordered = table.inputs[column].sort_values(kind="stable", na_position="first")
    return ordered.index.to_numpy()


def _groups(table: UserTable, folds: int) -> np.ndarray:
    assert table.groups is not None
    codes, names = pd.factorize(table.groups)  # a hole is a group of its own, -1
    count = len(names) + int((codes < 0).any())
    if count < folds:
        raise InputError(
            f"--split group:{table.groups.name} needs at least one group per fold, got {count} "
            f"groups for {folds} folds: use fewer --folds or another column"
        )
    return np.asarray(codes)


def likeness(values: np.ndarray) -> float:
    """How much more alike neighbors are than other rows: 0 for not at all, 1 for equal.

    Numbers give the correlation of neighboring ranks, labels their agreement beyond chance.
    """
    if values.dtype.kind == "f":
        ranks = pd.Series(values).rank().to_numpy()
        return float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1])
    shares = pd.Series(values).value_counts(normalize=True)
    chance = float((shares**2).sum())
    return (float(np.mean(values[1:] == values[:-1])) - chance) / (1 - chance)


def order_note(table: UserTable) -> str | None:
    """A warning if a date or the row order tells the target; None if neither does."""
    target = table.target.to_numpy()
    if table.task == "regression":
        target = target.astype(np.float64)
    orders = {f"by {c!r}": time_order(table, c) for c, k in table.kinds.items() if k == DATE}
    orders["in the file"] = np.arange(len(target))
    alike = {where: likeness(target[order]) for where, order in orders.items()}
    where = max(alike, key=lambda key: alike[key])  # of equals a date, which stands first
    if not alike[where] > max(ALIKE, 5 / math.sqrt(len(target))):
        return None
    return (
        f"warning: rows next to each other {where} are alike in {table.target.name!r} "
        f"({alike[where]:.2f}, where 0 is not at all), so random folds may flatter every model: "
        "--split time tests on later rows"
    )
