"""Random rows, later rows, whole groups; and the warning where random rows flatter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from quadric.data.user_table import UserTable, make_table
from quadric.tables.comparison.splitting import Split, order_note, parse_split, splits


def table(rows: int = 60, group: str | None = None, **columns: Any) -> UserTable:
    draw = np.random.default_rng(0)
    made = {"x": draw.normal(size=rows), "y": draw.normal(size=rows), **columns}
    return make_table("t", pd.DataFrame(made), "y", group=group)


def test_words() -> None:
    assert parse_split("time") == Split("time")
    assert str(parse_split("group:the town")) == "group:the town"
    assert parse_split("time:year").column == "year"
    for text in ("group", "group:", "week", "random:x", ""):
        with pytest.raises(ValueError, match="split"):
            parse_split(text)


def test_by_time_every_test_row_is_later() -> None:
    days = np.random.default_rng(1).permutation(60)
    made = table(day=pd.Timestamp(2020, 1, 1) + pd.to_timedelta(days, unit="D"))
    for split in (Split("time"), Split("time", "day")):
        parts = splits(made, 4, 0, split)
        assert [len(test) for _, test in parts] == [12] * 4
        for train, test in parts:
            assert days[train].max() < days[test].min()
    shares = [len(test) / len(train) for train, test in parts]
    assert Split("time").test_share(4) == pytest.approx(np.mean(shares))
    for train, test in splits(table(), 4, 0, Split("time")):  # without dates by the rows
        assert train.max() < test.min()


@pytest.mark.parametrize("classes", [False, True])
def test_groups_are_in_one_part(classes: bool) -> None:
    town = np.random.default_rng(1).choice(list("abcdefg"), 60)
    target = {"y": ["p", "q"] * 30} if classes else {}
    made = table(group="town", town=town, **target)
    assert list(made.inputs) == ["x"]
    assert made.facts[-1]["dropped"] == "the groups"
    parts = splits(made, 3, 0, Split("group", "town"))
    for train, test in parts:
        assert not set(town[train]) & set(town[test])
    assert sorted(np.concatenate([test for _, test in parts])) == list(range(60))


def test_what_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="got 2 groups for 3 folds: use fewer --folds"):
        splits(table(group="town", town=["a", "b"] * 30), 3, 0, Split("group", "town"))
    with pytest.raises(ValueError, match="got none of that name"):
        splits(table(), 3, 0, Split("time", "day"))
    with pytest.raises(ValueError, match="dates or numbers that is learned from, got category"):
        splits(table(town=["a", "b"] * 30), 3, 0, Split("time", "town"))
    with pytest.raises(ValueError, match="that of fold 1 by --split time has only 'p'"):
        splits(table(y=["p"] * 30 + ["q"] * 30), 3, 0, Split("time"))
    with pytest.raises(ValueError, match="no column 'town' for --split group"):
        table(group="town")
    with pytest.raises(ValueError, match="the target 'y' cannot be the group"):
        table(group="y")


def test_a_warning_where_order_tells_the_target() -> None:
    draw = np.random.default_rng(2)
    wandering = np.cumsum(draw.normal(size=900))
    assert order_note(table(900)) is None
    note = order_note(table(900, y=wandering))
    assert note is not None
    assert note.startswith("warning: rows next to each other in the file are alike in 'y' (0.9")
    assert "--split time" in note
    shuffled = draw.permutation(900)
    days = pd.Timestamp(2020, 1, 1) + pd.to_timedelta(shuffled, unit="D")
    note = order_note(table(900, day=days, y=wandering[shuffled]))
    assert "by 'day'" in (note or "")
    labels = np.where(wandering > np.median(wandering), "up", "down")
    assert "alike in 'y'" in (order_note(table(900, y=labels)) or "")
    assert order_note(table(900, y=draw.permutation(labels))) is None
