"""What the columns of a table are taken for."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

from quadric.data.columns import strip_unit
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


def test_the_task_and_categories_can_be_given() -> None:
    table = make_table("t", frame(price=[3, 4, 5, 6] * 10), "price", task="regression")
    assert table.target.dtype == np.float64
    assert table.notes == []
    table = make_table("t", frame(price=np.arange(40) % 20), "price", task="classification")
    assert table.target.nunique() == 20
    width = ["1", "2", "3", "4", "x"] * 8
    assert make_table("t", frame(width=width), "price", categories=["width"]).kinds["width"] == (
        "category"
    )


def spoiled(cells: Any, **places: Any) -> list[Any]:
    made = list(cells)
    for place, cell in places.items():
        made[int(place[1:])] = cell
    return made


TEXTS = [str(i / 7) for i in range(40)]
NUMBERS = np.arange(40) * 1.0
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"target": "prize"}, r"no column 'prize' .* 'size', 'kind', 'price'"),
    ({f"column {i}": 1 for i in range(60)}, {"target": "prize"}, r" and 13 more$"),
    ({}, {"drop": ["x"]}, "no column 'x' for --drop"),
    ({}, {"drop": ["price"]}, "cannot be dropped"),
    ({}, {"task": "ranking"}, "task must be one of"),
    ({}, {"task": "classification"}, "too many for classes"),
    ({"price": None}, {"target": "kind", "task": "regression"}, "row 1 is 'a': use --task class"),
    ({"price": pd.date_range("2020", periods=40)}, {}, "holds dates"),
    ({"price": 3.0}, {}, r"at least 2 different values, got only 3\.0: name"),
    ({"price": ["a", " a "] * 20}, {}, "at least 2 different values, got only 'a'"),
    ({"price": "x"}, {}, "got only 'x': name"),
    ({"price": [None] * 40}, {}, "no value at all"),
    ({"price": [[1], [2]] * 20}, {}, "must hold numbers or labels, got a list"),
    ({"price": [f"name {i}" for i in range(40)]}, {}, "has 40 different values in 40 rows, too m"),
    ({"price": spoiled(NUMBERS, _11=np.inf)}, {}, r"column 'price' .* infinite"),
    ({"width": spoiled(TEXTS, _4="n.k.", _9="12 m")}, {}, r"row 5 is 'n\.k\.' \(and 1 more\)"),
    ({"width": spoiled(NUMBERS, _11=np.inf)}, {}, "column 'width' .* row 12 is infinite: correct"),
    ({"width": ["inf", *map(str, range(39))]}, {}, "infinite"),
    ({"width": np.arange(40) * 1j}, {}, "column 'width' must hold real numbers"),
    ({"size": None, "kind": 5}, {}, "no column to learn from"),
]


@pytest.mark.parametrize(("columns", "options", "message"), REFUSED)
def test_what_is_not_clear_is_refused(
    columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_table("t", frame(**columns), **{"target": "price", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["87%", "9.5 %", "-3%"], [87, 9.5, -3]),
        (["$1,234", "$ 56.50", "-$7", "$-8"], [1234, 56.5, -7, -8]),
        (["54.3 kg", "60kg", " 1,200.5 kg "], [54.3, 60, 1200.5]),
        (["1,234", "12,345,678", "99"], [1234, 12345678, 99]),
        (["120 m²", "85 m²"], [120, 85]),
        (["5 €", "1,000 €"], [5, 1000]),
    ],
)
def test_one_unit_is_taken_off(cells: list[str], numbers: list[float]) -> None:
    found = strip_unit(pd.Series([*cells, None]))
    assert found is not None
    assert found[0].tolist()[:-1] == numbers
    assert found[0].isna().tolist()[-1]
    assert found[1] == cells[0].strip()


@pytest.mark.parametrize(
    "cells",
    [
        ["5 kg", "700 g", "6 kg", "80 g"],  # two units: the numbers alone would be wrong
        ["1", "2"],  # plain numbers
        ["1st", "2nd", "3rd"],
        ["A1", "B2"],
        ["2020-01-01", "2020-01-02"],
        ["12,34", "5,678"],  # no thousands
        ["5 kg", "5 kg"],  # one value: a label
        [True, False],
        [],
    ],
)
def test_other_columns_stay(cells: list[object]) -> None:
    assert strip_unit(pd.Series(cells, dtype=object)) is None


def test_a_line_says_so() -> None:
    frame = pd.DataFrame(
        {
            "share": [f"{i % 9}%" for i in range(40)],
            "code": [f"{i % 3} kg" for i in range(40)],
            "price": [f"${1000 + 7 * i:,}" for i in range(40)],
        }
    )
    table = make_table("t", frame, "price", categories=["code"])
    assert table.kinds == {"share": "number", "code": "category"}
    assert table.target.tolist()[:2] == [1000.0, 1007.0]
    assert table.task == "regression"
    assert table.notes == [
        "read as numbers, without their unit: 'price' (such as '$1,000'), 'share' (such as '0%')"
    ]
    frame.loc[3, "share"] = "many"
    with pytest.raises(ValueError, match="column 'share' must hold numbers, but row 4 is 'many'"):
        make_table("t", frame, "price")
