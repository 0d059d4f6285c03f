"""Numbers that are written with a unit."""

from __future__ import annotations

import pandas as pd
import pytest

from quadric.data.columns import strip_unit
from quadric.data.user_table import make_table


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
