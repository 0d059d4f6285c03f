"""Numbers that are written with a unit: `87%`, `$1,234`, `54.3 kg`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+"
_WITH_UNIT = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<before>[$€£¥]?)\s*(?P<minus>[-+]?)(?P<number>{_NUMBER})"
    r"\s*(?P<after>%|‰|°?[A-Za-zµΩ€£¥$][A-Za-z/²³]*|°)?"
)
# A column has a unit if at least this share of its cells have the same one.
_MOSTLY = 0.8


def strip_unit(values: pd.Series) -> tuple[pd.Series, str] | None:
    """Takes the unit off a column of text.

    Only one unit is taken off: in a column of grams and kilograms the numbers alone would be wrong.
    """
    cells = values.dropna().map(lambda cell: cell.strip() if isinstance(cell, str) else "")
    if not any(_WITH_UNIT.fullmatch(cell) for cell in cells.head(100)):
        return None
    found = cells.map(_WITH_UNIT.fullmatch)
    units = found.map(lambda m: (m["before"], m["after"] or "") if m else None)
    counts = units.value_counts()
    unit = counts.index[0]
    with_unit = units == unit
    # Without a unit only the commas between thousands are left to take off.
    plain = unit == ("", "") and not cells[with_unit].str.contains(",").any()
    if plain or counts.iloc[0] < _MOSTLY * len(cells):
        return None
    numbers = found[with_unit].map(_number)
    if numbers.nunique() < 2:
        return None
    stripped = values.astype(object)
    stripped[numbers.index] = numbers.astype(object)
    return stripped, str(cells[with_unit].iloc[0])


def without_unit(values: pd.Series) -> pd.Series:
    """The column with numbers where there is one with a unit, and other cells as they are."""

    def read(cell: Any) -> Any:
        match = _WITH_UNIT.fullmatch(cell.strip()) if isinstance(cell, str) else None
        return cell if match is None else _number(match)

    return values.astype(object).map(read)


def _number(match: re.Match[str]) -> float:
    sign = -1 if "-" in (match["sign"], match["minus"]) else 1
    return sign * float(match["number"].replace(",", ""))
