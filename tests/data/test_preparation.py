"""Columns become numbers by what the training rows say."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quadric.data.columns import make_table
from quadric.data.preparation import make_preparation, narrow, prepare

FRAME = pd.DataFrame(
    {
        "size": [1.0, 2.0, 3.0, np.nan, 100.0, np.nan],
        "kind": ["a", "b", None, "a", "only in test", "b"],
        "day": pd.to_datetime(
            ["2020-01-01 06:00", "2020-02-03", "2021-05-05", None, "2022-01-01", "2022-01-01"],
            format="mixed",
        ),
        "price": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
    }
)
TABLE = make_table("t", FRAME, "price")
TRAIN, TEST = np.array([0, 1, 2, 3]), np.array([4, 5])


def test_every_column() -> None:
    X, Z = prepare(TABLE, TRAIN, TEST)
    names = list(make_preparation(TABLE).fit(TABLE.inputs.iloc[TRAIN]).get_feature_names_out())
    assert names == [
        "size", "missingindicator_size", "kind_(missing)", "kind_a", "kind_b",
        "day_days", "day_month", "day_weekday", "day_hour",
    ]  # fmt: skip
    assert X[:, 0].tolist() == [1, 2, 3, 2]  # the median of the training rows
    assert X[:, 1].tolist() == [0, 0, 0, 1]
    assert X[:, 2:5].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert X[0, 5:].tolist() == [18262.25, 1, 2, 6]
    assert X.dtype == Z.dtype == np.float32
    # The test rows change nothing, and what is new in them is no category.
    assert Z[:, 0].tolist() == [100, 2]
    assert Z[0, 2:5].tolist() == [0, 0, 0]
    assert np.isfinite(X).all()
    assert np.isfinite(Z).all()


def test_test_rows_do_not_leak() -> None:
    changed = FRAME.copy()
    changed.loc[TEST, "size"] = [1e6, -1e6]
    changed.loc[TEST, "kind"] = ["b", "b"]
    X, _ = prepare(TABLE, TRAIN, TEST)
    Y, _ = prepare(make_table("t", changed, "price"), TRAIN, TEST)
    np.testing.assert_array_equal(X, Y)


def test_rare_categories_share_a_column() -> None:
    kinds = [f"k{i % 50}" for i in range(400)]
    table = make_table("t", pd.DataFrame({"kind": kinds, "y": np.arange(400) * 0.5}), "y")
    X, Z = prepare(table, np.arange(300), np.arange(300, 400))
    assert X.shape[1] == Z.shape[1] == 30
    assert (X.sum(1) == 1).all()


def test_large_offsets_keep_their_digits() -> None:
    values = np.array([[1e9], [1e9 + 1], [1e9 + 2]])
    assert narrow(values).dtype == np.float64
    assert narrow(values - 1e9).dtype == np.float32
    assert narrow(np.array([[1e35], [2e35]])).dtype == np.float64


def test_a_large_offset_of_the_target_keeps_its_digits() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40)})
    train, test = np.arange(30), np.arange(30, 40)

    def dtypes(y: np.ndarray, task: str) -> set[np.dtype]:
        table = make_table("t", frame.assign(y=y), "y", task=task)
        return {part.dtype for part in prepare(table, train, test)}

    offset = 1e7 + rng.normal(size=40)
    assert dtypes(offset, "regression") == {np.dtype(np.float64)}
    assert dtypes(1e35 * rng.normal(size=40), "regression") == {np.dtype(np.float64)}
    assert dtypes(offset - 1e7, "regression") == {np.dtype(np.float32)}
    # Names of classes have no digits to keep.
    classes = np.array([10_000_000, 10_000_001] * 20)
    assert dtypes(classes, "classification") == {np.dtype(np.float32)}
