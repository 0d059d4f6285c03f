"""What a column of a user's table is, and how it is read: numbers, categories or dates.

Only what can be told without looking at the target happens here; filling holes and encoding are
fitted later, on the training part of each fold.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

NUMBER, CATEGORY, DATE = "number", "category", "date"

# A text column is meant as numbers, or as numbers with one unit, if this share of its cells are.
_MOSTLY = 0.8
# A text column names rows instead of describing them if at least this share of its cells differ.
_MOSTLY_DISTINCT = 0.9
_FEW_ROWS = 20
_IDENTIFIER = re.compile(
    r"(?i:(^|[ _.-])(id|index|key|uuid|row)$|^unnamed(: ?\d+)?$)|[a-z](Id|ID)$"
)
_DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?\s*")
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+"
_WITH_UNIT = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<before>[$€£¥]?)\s*(?P<minus>[-+]?)(?P<number>{_NUMBER})"
    r"\s*(?P<after>%|‰|°?[A-Za-zµΩ€£¥$][A-Za-z/²³]*|°)?"
)


@dataclass(frozen=True)
class Column:
    """How a column is read; learned from one table, applied to later ones.

    Attributes:
        name: its name.
        kind: "number", "category" or "date".
        unit: a cell with the unit that is taken off its numbers, such as "54.3 kg".
        day_first: whether its dates have the day before the month.
    """

    name: str
    kind: str
    unit: str | None = None
    day_first: bool = False

    def read(self, values: pd.Series) -> pd.Series:
        """A column of a later table, in the type that it had when it was learned."""
        values = values.reset_index(drop=True)
        if self.kind == CATEGORY:
            return as_labels(values)
        values = without_blanks(values)
        if self.kind == DATE and is_text(values):
            dates = _as_dates(_stripped(values.dropna()), self.day_first)
            if dates is not None:
                return dates.reindex(values.index)
        if values.dtype == "category":
            values = values.astype(object).infer_objects()
        if self.unit is not None and is_text(values):
            values = values.astype(object).map(_number_or_cell)
        kind, series, _ = _classify(values, self.name, "leave the row out")
        if series.isna().all():
            return series.astype("datetime64[ns]" if self.kind == DATE else np.float64)
        if kind != self.kind:
            present = values.dropna()
            row, cell = present.index[0] + 1, present.iloc[0]
            if self.kind == NUMBER:
                row, cell = first_text(values)
            raise InputError(
                f"column {self.name!r} must hold {self.kind}s as in fit, but row {row} is "
                f"{str(cell)!r}: correct it, or leave the cell empty"
            )
        return series


def learn_column(
    values: pd.Series, name: str, *, as_category: bool = False, remedy: str
) -> tuple[Column, pd.Series]:
    """What a column is, and the column in the type of its kind; rows are counted by its index."""
    values = without_blanks(values)
    if as_category:
        return Column(name, CATEGORY), as_labels(values)
    unit = None
    if is_text(values):
        stripped = strip_unit(values)
        if stripped is not None:
            values, unit = stripped
    kind, series, day_first = _classify(values, name, remedy)
    return Column(name, kind, unit, day_first), series


def _classify(values: pd.Series, name: str, remedy: str) -> tuple[str, pd.Series, bool]:
    """Kind, converted values, and whether dates have the day first."""
    import pandas as pd
    from pandas.api import types

    if types.is_complex_dtype(values):
        raise InputError(
            f"column {name!r} must hold real numbers, got complex ones: split them into two columns"
        )
    if types.is_timedelta64_dtype(values):
        values = values / pd.Timedelta(days=1)
    if types.is_datetime64_any_dtype(values):
        return DATE, values.dt.tz_convert(None) if values.dt.tz is not None else values, False
    if isinstance(values.dtype, pd.CategoricalDtype):
        return CATEGORY, as_labels(values), False
    if not is_text(values) and types.is_numeric_dtype(values):  # booleans too
        return NUMBER, _finite(values.astype(np.float64), name), False
    present = values.dropna()
    if not len(present):
        return NUMBER, pd.Series(np.full(len(values), np.nan), index=values.index), False
    if all(isinstance(cell, bool) for cell in present.head(1000)):  # booleans with holes
        return NUMBER, values.map({True: 1.0, False: 0.0}).astype(np.float64), False
    text = _stripped(present)
    parsed = pd.to_numeric(text, errors="coerce")
    share = float(parsed.notna().mean())
    if share == 1:
        return NUMBER, _finite(parsed.reindex(values.index).astype(np.float64), name), False
    if share >= _MOSTLY:
        places = parsed.index[parsed.isna()]
        raise InputError(
            f"column {name!r} must hold numbers, but row {int(places[0]) + 1} is "
            f"{text.loc[places[0]]!r}{_more(len(places))}: correct it, leave the cell empty, or "
            f"{remedy}"
        )
    day_first = _is_day_first(text)
    dates = _as_dates(text, day_first)
    if dates is not None:
        return DATE, dates.reindex(values.index), day_first
    return CATEGORY, as_labels(values), False


def without_blanks(values: pd.Series) -> pd.Series:
    """A column in pandas' own memory; text of nothing but blanks is a hole."""
    import pandas as pd

    if isinstance(values.dtype, pd.ArrowDtype):
        values = values.astype(object).where(values.notna(), None).infer_objects()
    if not is_text(values):
        return values
    blank = np.array([isinstance(cell, str) and not cell.strip() for cell in values], dtype=bool)
    return values.mask(blank)


def is_text(values: pd.Series) -> bool:
    """Whether a column holds text, or objects of any kind."""
    from pandas.api import types

    return bool(types.is_object_dtype(values) or types.is_string_dtype(values))


def _stripped(present: pd.Series) -> pd.Series:
    return present.astype(str).str.strip()


def as_labels(values: pd.Series) -> pd.Series:
    """Labels as text, holes kept; whole numbers have no point, however they are stored."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):  # a label each, not a cell each
        known = as_labels(pd.Series(values.cat.categories, dtype=object))
        labels = np.array([*known, np.nan], dtype=object)
        return pd.Series(labels[values.cat.codes], index=values.index)
    values = without_blanks(values)
    # One kind of hole: scikit-learn cannot compare with pandas' own NA.
    labels = values.astype(object).where(values.notna(), np.nan)
    present = labels.notna()
    labels[present] = labels[present].map(_label)
    return labels


def _label(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip()


def _is_day_first(text: pd.Series) -> bool:
    """Whether dates are written with the day before the month, as far as the text tells."""
    return any(
        int(re.split(r"[-/.]", cell)[0]) > 12
        for cell in text.head(1000)
        if _DATE.fullmatch(cell) and not re.match(r"\d{4}", cell)
    )


def _as_dates(text: pd.Series, day_first: bool) -> pd.Series | None:
    """Text as dates by universal time; None if it holds something else."""
    import pandas as pd

    if not all(_DATE.fullmatch(cell) for cell in text.head(100)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dates = pd.to_datetime(text, errors="coerce", format="mixed", dayfirst=day_first, utc=True)
    return dates.dt.tz_localize(None) if float(dates.notna().mean()) >= 0.99 else None


def _finite(numbers: pd.Series, name: str) -> pd.Series:
    infinite = np.isinf(numbers.to_numpy())
    if infinite.any():
        raise InputError(
            f"column {name!r} must hold finite numbers, but row "
            f"{int(numbers.index[infinite.argmax()]) + 1} is infinite{_more(int(infinite.sum()))}: "
            "correct it or leave the cell empty"
        )
    return numbers


def _more(count: int) -> str:
    return f" (and {count - 1:,} more)" if count > 1 else ""


def why_useless(series: pd.Series, column: Column, keep_numbers: bool = False) -> str | None:
    """Why nothing can be learned from a column; None if something can."""
    present = series.dropna()
    if not len(present):
        return "empty"
    distinct = present.nunique()
    # A column with one value may still tell by its holes.
    if distinct == 1 and len(present) == len(series):
        return "constant"
    if len(series) < _FEW_ROWS:
        return None
    if column.kind == CATEGORY and distinct >= _MOSTLY_DISTINCT * len(present):
        return "an identifier: nearly every value differs"
    if column.kind == NUMBER and not keep_numbers and distinct == len(series):
        counted = bool((np.diff(present.to_numpy()) == 1).all())
        whole = bool((present == present.round()).all())
        if counted or (whole and _IDENTIFIER.search(column.name)):
            return "an identifier: a number for each row"
    return None


def first_text(values: pd.Series) -> tuple[int, str]:
    """Row and content of the first cell that is no number."""
    import pandas as pd

    text = _stripped(values)
    place = int(np.flatnonzero(pd.to_numeric(text, errors="coerce").isna().to_numpy())[0])
    return int(values.index[place]) + 1, str(values.iloc[place])


def strip_unit(values: pd.Series) -> tuple[pd.Series, str] | None:
    """Takes the unit off a column of text, if it has one; also gives a cell as it was.

    Only one unit is taken off: in a column of grams and kilograms the numbers alone would be wrong.
    """
    cells = values.dropna().map(lambda cell: cell.strip() if isinstance(cell, str) else "")
    if not any(_WITH_UNIT.fullmatch(cell) for cell in cells.head(100)):
        return None
    matches = cells.map(_WITH_UNIT.fullmatch)
    units = matches.map(lambda m: (m["before"], m["after"] or "") if m else None)
    counts = units.value_counts()
    with_unit = units == counts.index[0]
    # Without a unit only the commas between thousands are left to take off.
    plain = counts.index[0] == ("", "") and not cells[with_unit].str.contains(",").any()
    if plain or counts.iloc[0] < _MOSTLY * len(cells):
        return None
    numbers = matches[with_unit].map(_number)
    if numbers.nunique() < 2:
        return None
    stripped = values.astype(object)
    stripped[numbers.index] = numbers.astype(object)
    return stripped, str(cells[with_unit].iloc[0])


def _number(match: re.Match[str]) -> float:
    sign = -1 if "-" in (match["sign"], match["minus"]) else 1
    return sign * float(match["number"].replace(",", ""))


def _number_or_cell(cell: Any) -> Any:
    match = _WITH_UNIT.fullmatch(cell.strip()) if isinstance(cell, str) else None
    return cell if match is None else _number(match)
