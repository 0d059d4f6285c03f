"""What the columns of a table are taken for."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

from quadric.data.user_table import make_table


def frame(**columns: Any) -> pd.DataFrame:
    made = {
        "size": np.linspace(1, 9, 40),
        "kind": ["a", "b"] * 20,
        "price": np.arange(40) * 1.7,
        **columns,
    }
    return pd.DataFrame({k: v for k, v in made.items() if v is not None})


def test_numbers_categories_and_dates() -> None:
    table = make_table(
        "t",
        frame(
            flag=[True, False] * 20,
            text_number=[" 1.5 ", "2"] * 20,
            day=["2020-01-31", "2021-12-01 12:30"] * 20,
            european=["31.01.2020", "02.12.2021"] * 20,
            stamp=pd.date_range("2020-01-01", periods=40, tz="UTC"),
            levels=pd.Categorical(["x", "y"] * 20),
        ),
        "price",
    )
    assert table.kinds == {
        "size": "number", "kind": "category", "flag": "number", "text_number": "number",
        "day": "date", "european": "date", "stamp": "date", "levels": "category",
    }  # fmt: skip
    assert table.inputs["text_number"].tolist()[:2] == [1.5, 2.0]
    assert table.inputs["flag"].tolist()[:2] == [1.0, 0.0]
    assert table.inputs["european"].iloc[1] == pd.Timestamp(2021, 12, 2)
    assert table.task == "regression"
    assert table.notes == []
    assert table.target.tolist() == (np.arange(40) * 1.7).tolist()


def test_columns_of_rarer_types() -> None:
    arrow = pd.ArrowDtype(pyarrow.date32())
    table = make_table(
        "t",
        frame(
            words=pd.array(["a", None, "b", "a"] * 10, dtype="string"),
            days=pd.array([datetime.date(2020, 1, 31), None] * 20, dtype=arrow),
            lasted=pd.to_timedelta([12, 36] * 20, unit="h"),
            zones=["2020-01-01T10:00:00+02:00", "2020-07-01T10:00:00+01:00"] * 20,
            berlin=pd.to_datetime(["2020-01-01 10:00", "2020-07-01 10:00"] * 20).tz_localize(
                "Europe/Berlin"
            ),
            parts=[[1, 2], [3]] * 20,
        ),
        "price",
    )
    assert table.kinds == {
        "size": "number", "kind": "category", "words": "category", "days": "date",
        "lasted": "number", "zones": "date", "berlin": "date", "parts": "category",
    }  # fmt: skip
    # A hole is one that scikit-learn knows, too.
    assert table.inputs["words"].tolist()[0] == "a"
    assert isinstance(table.inputs["words"][1], float)
    assert table.inputs["days"][0] == pd.Timestamp(2020, 1, 31)
    assert table.inputs["lasted"].tolist()[:2] == [0.5, 1.5]
    assert table.inputs["zones"].tolist()[:2] == [
        pd.Timestamp(2020, 1, 1, 8),
        pd.Timestamp(2020, 7, 1, 9),
    ]
    assert table.inputs["berlin"].tolist()[:2] == [
        pd.Timestamp(2020, 1, 1, 9),
        pd.Timestamp(2020, 7, 1, 8),
    ]
    with pytest.raises(ValueError, match="column 'width' must hold real numbers"):
        make_table("t", frame(width=np.arange(40) * 1j), "price")
    with pytest.raises(ValueError, match="must hold numbers or labels, got a list"):
        make_table("t", frame(price=[[1], [2]] * 20), "price")


def test_what_cannot_be_learned_from_is_dropped_with_a_line() -> None:
    table = make_table(
        "t",
        frame(
            row=range(1, 41),
            user_id=np.random.default_rng(0).permutation(1000)[:40],
            CustomerId=np.random.default_rng(1).permutation(1000)[:40],
            grid=np.random.default_rng(2).permutation(1000)[:40],
            code=[f"k{i}" for i in range(40)],
            same=7,
            nothing=[None] * 40,
            sizes=np.random.default_rng(0).permutation(1000)[:40],
        ),
        "price",
        drop=["kind"],
    )
    assert list(table.inputs) == ["size", "grid", "sizes"]
    (note,) = table.notes
    assert note == (
        "dropped: 'kind' (as asked), 'row' (an identifier: a number for each row), 'user_id' (an "
        "identifier: a number for each row), 'CustomerId' (an identifier: a number for each row), "
        "'code' (an identifier: nearly every value differs), "
        "'same' (constant), 'nothing' (empty)"
    )


def test_holes_are_counted() -> None:
    table = make_table(
        "t",
        frame(
            part=[None, 1.0] * 20,
            word=["x", None, "y", "x"] * 10,
            seen=[True, None] * 20,
            price=[None, *np.arange(39) * 1.5],
        ),
        "price",
    )
    assert len(table.target) == len(table.inputs) == 39
    assert "1 rows without 'price' are left out" in table.notes
    assert any("'part' 19, 'word' 10, 'seen' 20" in note for note in table.notes)
    assert table.kinds["part"] == "number"  # one value, but its holes may tell something
    assert table.kinds["seen"] == "number"


@pytest.mark.parametrize(
    ("target", "task", "labels"),
    [
        (["no", "yes"] * 20, "classification", {"no", "yes"}),
        ([True, False] * 20, "classification", {"True", "False"}),
        ([0.0, 1.0] * 20, "classification", {"0", "1"}),
        ([3, 4, 5, 6] * 10, "classification", {"3", "4", "5", "6"}),
        (list(range(40)), "regression", None),
        ([0.5, 1.5, 2.5, 3.5] * 10, "regression", None),
    ],
)
def test_the_task_follows_from_the_target(
    target: list[Any], task: str, labels: set[str] | None
) -> None:
    table = make_table("t", frame(price=target), "price")
    assert table.task == task
    if labels is not None:
        assert set(table.target) == labels
    if task == "classification" and isinstance(target[0], (int, float)) and target[0] is not True:
        assert any("--task regression" in note for note in table.notes)


def test_the_task_can_be_given() -> None:
    table = make_table("t", frame(price=[3, 4, 5, 6] * 10), "price", task="regression")
    assert table.target.dtype == np.float64
    assert table.notes == []
    table = make_table("t", frame(price=np.arange(40) % 20), "price", task="classification")
    assert table.target.nunique() == 20
    with pytest.raises(ValueError, match="too many for classes"):
        make_table("t", frame(), "price", task="classification")
    with pytest.raises(ValueError, match="row 1 is 'a': use --task classification"):
        make_table("t", frame(price=None), "kind", task="regression")
    with pytest.raises(ValueError, match="task must be one of"):
        make_table("t", frame(), "price", task="ranking")
    with pytest.raises(ValueError, match="holds dates"):
        make_table("t", frame(price=pd.date_range("2020", periods=40)), "price")


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"no column 'prize' .* 'size', 'kind', 'price'"):
        make_table("t", frame(), "prize")
    wide = pd.DataFrame(np.ones((3, 1000)), columns=[f"column {i}" for i in range(1000)])
    with pytest.raises(ValueError, match=r"'column 49' and 950 more$"):
        make_table("t", wide, "prize")
    with pytest.raises(ValueError, match="no column 'x' for --drop"):
        make_table("t", frame(), "price", drop=["x"])
    with pytest.raises(ValueError, match="cannot be dropped"):
        make_table("t", frame(), "price", drop=["price"])


def test_a_target_with_one_value() -> None:
    with pytest.raises(ValueError, match=r"at least 2 different values, got only 3\.0: name"):
        make_table("t", frame(price=3.0), "price")
    with pytest.raises(ValueError, match="at least 2 different values, got only 'a'"):
        make_table("t", frame(price=["a", " a "] * 20), "price")
    with pytest.raises(ValueError, match="got only 'x': name"):
        make_table("t", frame(price="x"), "price")
    with pytest.raises(ValueError, match="no value at all"):
        make_table("t", frame(price=[None] * 40), "price")


def test_text_in_a_number_column() -> None:
    cells = [str(i / 7) for i in range(40)]
    cells[4], cells[9] = "n.k.", "12 m"
    with pytest.raises(ValueError, match=r"column 'width' .* row 5 is 'n\.k\.' \(and 1 more\)"):
        make_table("t", frame(width=cells), "price")
    table = make_table(
        "t", frame(width=["1", "2", "3", "4", "x"] * 8), "price", categories=["width"]
    )
    assert table.kinds["width"] == "category"


def test_rows_are_those_of_the_file_even_if_some_are_left_out() -> None:
    price: list[Any] = [None, *np.arange(39) * 1.5]
    cells = [str(i / 7) for i in range(40)]
    cells[4] = "n.k."
    with pytest.raises(ValueError, match=r"row 5 is 'n\.k\.'"):
        make_table("t", frame(width=cells, price=price), "price")
    values = np.arange(40) * 1.0
    values[11] = np.inf
    with pytest.raises(ValueError, match="row 12 is infinite"):
        make_table("t", frame(width=values, price=price), "price")
    words = [None, "a", *"bcdefg", *["h"] * 32]
    with pytest.raises(ValueError, match="row 2 is 'a'"):
        make_table("t", frame(price=words), "price", task="regression")
    # The index of a frame that was read from a Parquet file is no row number.
    shuffled = frame(width=values, price=price).set_index(pd.Index(range(40, 0, -1)))
    with pytest.raises(ValueError, match="row 12 is infinite"):
        make_table("t", shuffled, "price")
    kept = make_table("t", frame(price=price), "price")
    assert list(kept.inputs.index) == list(kept.target.index) == list(range(39))


def test_classes_that_are_mostly_numbers() -> None:
    names = ["1", "2", "3", "4", "4a"] * 8
    table = make_table("t", frame(price=names), "price")
    assert (table.task, set(table.target)) == ("classification", set(names))
    many = [str(i % 15) for i in range(39)] + ["x"]
    table = make_table("t", frame(price=many), "price", task="classification")
    assert set(table.target) == set(many)
    with pytest.raises(ValueError, match=r"row 40 is 'x': .*--task classification") as caught:
        make_table("t", frame(price=many), "price")
    assert "--drop" not in str(caught.value)


def test_labels_have_no_blanks_around_them() -> None:
    table = make_table("t", frame(price=["a", " a", "b", "b "] * 10), "price")
    assert set(table.target) == {"a", "b"}


def test_texts_that_all_differ_are_no_classes() -> None:
    with pytest.raises(ValueError, match="has 40 different values in 40 rows, too many for"):
        make_table("t", frame(price=[f"name {i}" for i in range(40)]), "price")


def test_infinite_values() -> None:
    values = np.arange(40) * 1.0
    values[11] = np.inf
    with pytest.raises(ValueError, match=r"column 'width' .* row 12 is infinite: correct"):
        make_table("t", frame(width=values), "price")
    with pytest.raises(ValueError, match="infinite"):
        make_table("t", frame(width=["inf", *map(str, range(39))]), "price")
    with pytest.raises(ValueError, match=r"column 'price' .* infinite"):
        make_table("t", frame(price=values), "price")


def test_nothing_left() -> None:
    with pytest.raises(ValueError, match="no column to learn from"):
        make_table("t", frame(size=None, kind=5), "price")
