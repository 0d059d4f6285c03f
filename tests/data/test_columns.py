"""What the columns of a table are taken for."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

from quadric.data.columns import learn_column
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
    dropped = {fact["column"]: fact["dropped"] for fact in table.facts if fact["dropped"]}
    numbered = "an identifier: a number for each row"
    assert dropped == {
        "kind": "as asked", "row": numbered, "user_id": numbered, "CustomerId": numbered,
        "code": "an identifier: nearly every value differs", "same": "constant",
        "nothing": "empty",
    }  # fmt: skip


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
    assert {fact["column"]: fact["holes"] for fact in table.facts if fact["holes"]} == {
        "part": 19, "word": 10, "seen": 20,
    }  # fmt: skip
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
    ({}, {"target": "cost"}, r"no column 'cost' .* 'size', 'kind', 'price'"),
    ({}, {"target": "prize"}, r"no column 'prize' .* did you mean 'price'\?"),
    ({"lost power [W]": 1}, {"target": "Lost Power"}, r"did you mean 'lost power \[W\]'\?"),
    ({f"column {i}": 1 for i in range(60)}, {"target": "cost"}, r" and 13 more$"),
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
    ({"width": spoiled(TEXTS, _4="n.k.", _9="x")}, {}, r"row 5 is 'n\.k\.' \(and 1 more\)"),
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


DAY = pd.Timestamp
READ: list[tuple[list[Any], list[Any]]] = [
    (["87%", "9.5 %", "-3%", "−4 %"], [87, 9.5, -3, -4]),
    (["$1,234", "$ 56.50", "-$7", "$-8", "($1,340)"], [1234, 56.5, -7, -8, -1340]),
    (["54.3 kg", "60kg", " 1,200.5 kg "], [54.3, 60, 1200.5]),
    (["1,234", "12,345,678", "99"], [1234, 12345678, 99]),
    (["120 m²", "85 m²"], [120, 85]),
    (["USD 1,660", "USD 20"], [1660, 20]),
    (["€1.659,62", "€20,10", "€1.000"], [1659.62, 20.1, 1000]),
    (["€110.5M", "€560K", "€0"], [110.5e6, 560e3, 0]),
    (["1.2K", "3M", "5"], [1200, 3e6, 5]),
    (["1 659,6", "20,5"], [1659.6, 20.5]),
    (["1'659.60", "20.5"], [1659.6, 20.5]),
    (["12,34", "5,678"], [12.34, 5.678]),
    (["5 years", "1 year", "< 1 year", "10+ years"], [5, 1, 1, 10]),
    (["Yes", "no", "YES"], [1, 0, 1]),
    ([True, False, None], [1, 0, None]),
    ([1, "2", 3.5], [1, 2, 3.5]),
    (["1:23:45", "0:30", "2 days, 1:00:00"], [5025 / 86400, 1 / 48, 49 / 24]),
    (["5", "n.a.", "-", "?", "unknown", "7"], [5, None, None, None, None, 7]),
    (["29-Aug-2019", "3-Sep-2020"], [DAY(2019, 8, 29), DAY(2020, 9, 3)]),
    (["29 August 2019", "n.a."], [DAY(2019, 8, 29), None]),
    (["August 29, 2019", "Apr 05, 2013"], [DAY(2019, 8, 29), DAY(2013, 4, 5)]),
    (["2019-08", "2020-11"], [DAY(2019, 8, 1), DAY(2020, 11, 1)]),
    (["Aug 2019", "May 2020"], [DAY(2019, 8, 1), DAY(2020, 5, 1)]),
    (["Thu, 29 Aug 2019 10:30", "1 Sep 2019"], [DAY(2019, 8, 29, 10, 30), DAY(2019, 9, 1)]),
    (["01.02.2020", "29.08.2019"], [DAY(2020, 2, 1), DAY(2019, 8, 29)]),
]


@pytest.mark.parametrize(("cells", "values"), READ, ids=lambda value: str(value[0]))
def test_text_is_read_as_people_write_it(cells: list[Any], values: list[Any]) -> None:
    column, series = learn_column(pd.Series([*cells, None]), "c", remedy="drop it")
    dates = any(isinstance(value, pd.Timestamp) for value in values)
    assert column.kind == ("date" if dates else "number")
    wanted = pd.Series([*values, None], dtype=series.dtype)
    pd.testing.assert_series_equal(series, wanted, check_names=False)
    # One later cell is read as the whole column was.
    for cell, value in zip(cells, values, strict=True):
        (read,) = column.read(pd.Series([cell]))
        if dates or value is None:
            assert read == value or (pd.isna(read) and value is None)
        else:
            assert read == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    "cells",
    [
        ["1st", "2nd", "3rd"],
        ["A1", "B2"],
        ["5 kg", "5 kg"],  # one value: a label
        ["unknown", "-"],
        ["2011/12", "2012/13"],
        ["May", "June"],
        ["PG-13", "R"],
    ],
)
def test_other_text_is_a_category(cells: list[str]) -> None:
    assert learn_column(pd.Series(cells), "c", remedy="drop it")[0].kind == "category"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["5 kg", "700 g", "6 kg"], "one unit, but row 1 is '5 kg' and row 2 is '700 g': convert"),
        (["$5", "$6", "$7", "$8", "€9"], r"one unit, but row 1 is '\$5' and row 5 is '€9'"),
        ([*"1234", "x5"], "must hold numbers, but row 5 is 'x5': .*na_values"),
        (["1 May 2020", *["2 May 2020"] * 4, "later"], "must hold dates, but row 6 is 'later'"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_cells(cells: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn_column(pd.Series(cells), "c", remedy="drop it")


def test_later_cells_in_another_unit_are_refused() -> None:
    column, _ = learn_column(pd.Series(["5 kg", "6 kg"]), "c", remedy="drop it")
    with pytest.raises(ValueError, match="as in fit, such as '5 kg', but row 2 is '700 g'"):
        column.read(pd.Series(["7 kg", "700 g"]))


def test_own_words_for_holes() -> None:
    cells = pd.Series(["1", "gone", "3", "Gone "])
    _, series = learn_column(cells, "c", remedy="drop it", na_values=["gone"])
    assert series.isna().tolist() == [False, True, False, True]
    _, series = learn_column(pd.Series([1.0, -999.0, 3.0]), "c", remedy="", na_values=[-999])
    assert series.isna().tolist() == [False, True, False]
    _, series = learn_column(pd.Series(["a", "gone", "b"]), "c", remedy="", na_values=["gone"])
    assert series.isna().tolist() == [False, True, False]


def test_ordered_categories_keep_their_order() -> None:
    sizes = pd.Categorical(["S", "L", None, "M"], categories=["S", "M", "L"], ordered=True)
    column, series = learn_column(pd.Series(sizes), "c", remedy="drop it")
    assert (column.kind, column.said) == ("number", "ordered: S < M < L")
    assert series.tolist()[:2] == [0.0, 2.0]
    assert column.read(pd.Series(["M", "huge", "L"])).fillna(-1).tolist() == [1.0, -1.0, 2.0]


def test_how_columns_are_read_is_said() -> None:
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
    assert table.target.name == "price"
    assert table.task == "regression"
    assert table.notes == ["the target 'price' is read as amounts such as '$1,000'"]
    assert [fact["how"] for fact in table.facts] == ["amounts such as '0%'", ""]
    frame.loc[3, "share"] = "many"
    with pytest.raises(ValueError, match="column 'share' must hold numbers, but row 4 is 'many'"):
        make_table("t", frame, "price")
