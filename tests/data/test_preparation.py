"""Columns become numbers by what the training rows say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quadric.data.preparation import TablePreparation

FRAME = pd.DataFrame(
    {
        "size": [1.0, 2.0, 3.0, np.nan, 100.0, np.nan],
        "kind": ["a", "b", None, "a", "only in test", "b"],
        "day": ["2020-01-01 06:00", "2020-02-03", "2021-05-05", None, "2022-01-01", "2022-01-01"],
    }
)
NAMES = ["size", "missingindicator_size", "kind_(missing)", "kind_a", "kind_b"]
NAMES += ["day_days", "day_month", "day_weekday", "day_hour"]


def prepared(train: pd.DataFrame, test: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, list[str]]:
    preparation = TablePreparation()
    X = preparation.fit_transform(train)
    # What is learned from rows and what is applied to them later is the same.
    np.testing.assert_array_equal(preparation.transform(train), X)
    return X, preparation.transform(test), list(preparation.get_feature_names_out())


def test_every_kind_of_column() -> None:
    X, Z, names = prepared(FRAME[:4], FRAME[4:])
    assert names == NAMES
    assert X[:, 0].tolist() == [1, 2, 3, 2]  # the median, 2, of the training rows
    assert X[:, 1].tolist() == [0, 0, 0, 1]
    assert X[:, 2:5].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert X[0, 5:].tolist() == [18262.25, 1, 2, 6]
    # The test rows change nothing, and what is new in them is no category.
    assert Z[:, 0].tolist() == [100, 2]
    assert Z[0, 2:5].tolist() == [0, 0, 0]
    assert np.isfinite(X).all()
    assert np.isfinite(Z).all()


def test_what_a_prepared_column_is_made_of_is_plain_data() -> None:
    made = TablePreparation().fit(FRAME[:4]).describe()
    assert [row["column"] for row in made] == [name.split("_")[-1 if "miss" in name[:4] else 0]
                                               for name in NAMES]  # fmt: skip
    assert made[0] == {"column": "size", "kind": "number", "if_missing": 2.0}
    assert made[1] == {"column": "size", "kind": "1 if missing, else 0"}
    assert made[3] == {"column": "kind", "kind": "1 if 'a', else 0"}
    assert made[6]["kind"] == "date: month"
    numbers = TablePreparation().fit(FRAME[["size"]][:4])
    assert numbers.describe() == made[:2]


def test_rare_categories_share_a_column() -> None:
    frame = pd.DataFrame({"kind": [f"k{i % 50}" for i in range(400)]})
    X, Z, _ = prepared(frame[:300], frame[300:])
    assert X.shape[1] == Z.shape[1] == 30
    assert (X.sum(1) == 1).all()
    assert len(TablePreparation().fit(frame).describe()[-1]["rare"]) == 21


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"a": "float32", "b": "float32"}, "float32"),
        ({"a": "float32", "b": "float64"}, "float64"),
        ({"a": "float32", "b": "int32"}, "float64"),
        ({"a": "float32", "b": "category"}, "float32"),
    ],
)
def test_the_dtype_is_that_of_the_numbers(columns: dict[str, str], dtype: str) -> None:
    frame = pd.DataFrame({name: np.arange(6) % 4 for name in columns}).astype(columns)
    assert TablePreparation().fit_transform(frame).dtype == dtype


def test_holes_of_numbers_become_the_median() -> None:
    """Of a table of numbers alone, which has a preparation of its own."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 99.0, np.nan], "b": [4.0, 3.0, 2.0, 1.0]})
    preparation = TablePreparation()
    prepared = preparation.fit_transform(frame)
    assert preparation.names_ == ["a", "b", "missingindicator_a"]
    assert prepared.tolist() == [[1, 4, 0], [2, 3, 0], [99, 2, 0], [2, 1, 1]]
    assert preparation.describe()[0]["if_missing"] == 2
