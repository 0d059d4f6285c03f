"""What a column of a user's table is, and how it is read: numbers, categories or dates.

Only what can be told without looking at the target happens here; filling holes and encoding are
fitted later, on the training part of each fold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quadric.data.cells import (
    AMOUNT,
    ANSWER,
    DATE_TEXT,
    MARKS,
    PLAIN,
    SPAN,
    Form,
    mixed_units,
    possible_forms,
)
from quadric.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

NUMBER, CATEGORY, DATE = "number", "category", "date"

# A text column is meant to have a form, such as that of numbers, if this share of its cells have.
_MOSTLY = 0.8
# A text column names rows instead of describing them if at least this share of its cells differ.
_MOSTLY_DISTINCT = 0.9
_FEW_ROWS = 20
_IDENTIFIER = re.compile(
    r"(?i:(^|[ _.-])(id|index|key|uuid|row)$|^unnamed(: ?\d+)?$)|[a-z](Id|ID)$"
)


@dataclass(frozen=True)
class Column:
    """How a column is read; learned from one table, applied to later ones.

    Attributes:
        name: its name.
        kind: "number", "category" or "date".
        form: how its text becomes numbers or dates; None where it was none.
        sample: a cell as it was, where the form takes a unit off.
        levels: the labels of an ordered category, from the lowest.
        na_values: what stands for a hole besides the usual words.
        text: whether it held text.
    """

    name: str
    kind: str
    form: Form | None = None
    sample: str | None = None
    levels: tuple[str, ...] = ()
    na_values: tuple[str, ...] = ()
    text: bool = False

    def read(self, values: pd.Series, first_row: int = 0) -> pd.Series:
        """A column of a later table, in the type that it had when it was learned."""
        values = values.set_axis(range(first_row, first_row + len(values)))
        values = without_blanks(values, self.na_values)
        if self.kind == CATEGORY:
            return as_labels(values)
        if self.levels:
            ranks = {label: float(rank) for rank, label in enumerate(self.levels)}
            return as_labels(values).map(ranks).astype(np.float64)
        if values.dtype == "category":
            values = values.astype(object).infer_objects()
        if is_text(values) and not _all_booleans(values):
            form = self.form or Form(PLAIN if self.kind == NUMBER else DATE_TEXT)
            if form.kind == PLAIN and is_boolean_text(values):
                form = Form(ANSWER)
            text = stripped(values)
            text = text[~text.str.lower().isin(MARKS)]
            series = form.read(text)
            if series.isna().any():
                place = series.index[series.isna()][0]
                raise self._misfit(int(place), text.loc[place])
            kind = DATE if form.kind == DATE_TEXT else NUMBER
            series = series.reindex(values.index)
        else:
            kind, series = _native(values, self.name) or (CATEGORY, values)
        if series.isna().all():
            return series.astype("datetime64[ns]" if self.kind == DATE else np.float64)
        if kind != self.kind:
            present = values.dropna()
            raise self._misfit(int(present.index[0]), present.iloc[0])
        return _finite(series, self.name) if kind == NUMBER else series

    def _misfit(self, place: int, cell: Any) -> InputError:
        like = "" if self.sample is None else f", such as {self.sample!r}"
        return InputError(
            f"column {self.name!r} must hold {self.kind}s as in fit{like}, but row {place + 1} is "
            f"{str(cell)!r}: correct it, or leave the cell empty"
        )

    @property
    def said(self) -> str:
        """How it is read where that is not plain; empty where it is."""
        if self.levels:
            return "ordered: " + " < ".join(self.levels)
        kind = "" if self.form is None else self.form.kind
        return {
            AMOUNT: f"amounts such as {self.sample!r}",
            SPAN: f"spans of time such as {self.sample!r}, in days",
            ANSWER: f"yes or no: {self.sample!r} is {1 if self._is_yes() else 0}",
            DATE_TEXT: f"dates such as {self.sample!r}",
        }.get(kind, "")

    def _is_yes(self) -> bool:
        return str(self.sample).lower() in ("yes", "true", "y")


def learn_column(
    values: pd.Series,
    name: str,
    *,
    as_category: bool = False,
    remedy: str,
    na_values: Sequence[str] = (),
) -> tuple[Column, pd.Series]:
    """What a column is, and the column in the type of its kind; rows are counted by its index."""
    import pandas as pd

    marks = tuple(str(mark).strip().lower() for mark in na_values)
    values = without_blanks(values, marks)
    text = is_text(values)
    ordered = isinstance(values.dtype, pd.CategoricalDtype) and values.dtype.ordered
    if ordered and not as_category:
        levels = tuple(as_labels(pd.Series(values.cat.categories, dtype=object)))
        column = Column(name, NUMBER, levels=levels, na_values=marks)
        codes = values.cat.codes.astype(np.float64)
        return column, pd.Series(codes, index=values.index).where(values.notna())
    if as_category or isinstance(values.dtype, pd.CategoricalDtype):
        return Column(name, CATEGORY, na_values=marks, text=text), as_labels(values)
    native = _native(values, name)
    if native is not None:
        return Column(name, native[0], na_values=marks), native[1]
    if not values.map(lambda cell: isinstance(cell, str)).where(values.notna(), True).all():
        found = _read_text(values, name, remedy, plain=True)
    else:
        found = _read_text(values, name, remedy)
    if found is None:
        return Column(name, CATEGORY, na_values=marks, text=True), as_labels(values)
    form, series, sample = found
    kind = DATE if form.kind == DATE_TEXT else NUMBER
    if kind == NUMBER:
        series = _finite(series, name)
    return Column(name, kind, form, sample, na_values=marks, text=True), series


def _read_text(
    values: pd.Series, name: str, remedy: str, plain: bool = False
) -> tuple[Form, pd.Series, str] | None:
    """The form that all cells have but the holes, what they are, and the first one as it is."""
    every = stripped(values)
    text = every[~every.str.lower().isin(MARKS)]
    if not len(text):
        return None
    best: tuple[float, Form, pd.Series] | None = None
    for form in [Form(PLAIN)] if plain and _is_numeric(text) else possible_forms(text):
        series = form.read(text)
        share = float(series.notna().mean())
        if share == 1:
            return form, series.reindex(values.index), str(text.iloc[0])
        if best is None or share > best[0]:
            best = share, form, series
    _refuse_mixed(text, name, remedy)
    if best is None or best[0] < _MOSTLY:
        return None
    series = best[2]
    wrong = series.index[series.isna()]
    kind = "dates" if best[1].kind == DATE_TEXT else "numbers"
    raise InputError(
        f"column {name!r} must hold {kind}, but row {int(wrong[0]) + 1} is "
        f"{text.loc[wrong[0]]!r}{_more(len(wrong))}: correct it, leave the cell empty, name it "
        f"with na_values (--na-values) if it stands for a hole, or {remedy}"
    )


def _is_numeric(text: pd.Series) -> bool:
    return bool(Form(PLAIN).read(text).notna().mean() >= _MOSTLY)


def _refuse_mixed(text: pd.Series, name: str, remedy: str) -> None:
    places = mixed_units(text)
    if places is not None:
        cells = " and ".join(f"row {int(p) + 1} is {text.loc[p]!r}" for p in places)
        raise InputError(
            f"column {name!r} must have one unit, but {cells}: convert them to one, or {remedy}"
        )


def _native(values: pd.Series, name: str) -> tuple[str, pd.Series] | None:
    """Kind and values of a column that is no text; None for text."""
    import pandas as pd
    from pandas.api import types

    if types.is_complex_dtype(values):
        raise InputError(
            f"column {name!r} must hold real numbers, got complex ones: split them into two columns"
        )
    if types.is_timedelta64_dtype(values):
        return NUMBER, values / pd.Timedelta(days=1)
    if types.is_datetime64_any_dtype(values):
        return DATE, values.dt.tz_convert(None) if values.dt.tz is not None else values
    if not is_text(values) and types.is_numeric_dtype(values):  # booleans too
        return NUMBER, _finite(values.astype(np.float64), name)
    if not values.notna().any():
        return NUMBER, pd.Series(np.full(len(values), np.nan), index=values.index)
    if _all_booleans(values):  # with holes
        return NUMBER, values.map({True: 1.0, False: 0.0}).astype(np.float64)
    if not is_text(values):  # of a type that has no numbers, such as periods
        return CATEGORY, as_labels(values)
    return None


def _all_booleans(values: pd.Series) -> bool:
    return all(isinstance(cell, bool | np.bool_) for cell in values.dropna().head(1000))


def is_boolean_text(values: pd.Series) -> bool:
    """Whether a column holds nothing but the words true and false."""
    return set(stripped(values).str.lower()) <= {"true", "false"}


def without_blanks(values: pd.Series, na_values: Sequence[str] = ()) -> pd.Series:
    """A column in pandas' own memory; text of nothing but blanks, and `na_values`, are holes."""
    import pandas as pd

    if isinstance(values.dtype, pd.ArrowDtype):
        values = values.astype(object).where(values.notna(), None).infer_objects()
    if not is_text(values):
        if na_values:
            marks = pd.to_numeric(pd.Series(list(na_values)), errors="coerce").dropna()
            words = values.astype(str).str.lower().isin(na_values)
            values = values.mask(words | values.isin(marks.tolist()))
        return values
    holes = {"", *na_values}
    blank = [isinstance(cell, str) and cell.strip().lower() in holes for cell in values]
    return values.mask(np.array(blank, dtype=bool))


def is_text(values: pd.Series) -> bool:
    """Whether a column holds text, or objects of any kind."""
    from pandas.api import types

    return bool(types.is_object_dtype(values) or types.is_string_dtype(values))


def stripped(values: pd.Series) -> pd.Series:
    """The cells that are no holes, as text without blanks around it."""
    return values.dropna().astype(str).str.strip()


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


def why_useless(series: pd.Series, column: Column, alone: bool) -> str | None:
    """Why nothing can be learned from a column; None if something can, or it is the only one."""
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
    if column.kind == NUMBER and not alone and distinct == len(series):
        counted = bool((np.diff(present.to_numpy()) == 1).all())
        whole = bool((present == present.round()).all())
        if counted or (whole and _IDENTIFIER.search(column.name)):
            return "an identifier: a number for each row"
    return None


FACTS = ("column", "read as", "how", "holes", "dropped")
"""What people are told of a column: how it is read, its holes, why it is dropped."""


def column_facts(
    name: str, column: Column | None, series: pd.Series, dropped: str | None
) -> dict[str, Any]:
    """What people are told of a column, by `FACTS`."""
    kind, said = ("", "") if column is None else (column.kind, column.said)
    return dict(
        zip(FACTS, (name, kind, said, int(series.isna().sum()), dropped or ""), strict=True)
    )


def first_text(values: pd.Series) -> tuple[int, str]:
    """Row and content of the first cell that is no number."""
    text = stripped(values)
    place = int(Form(PLAIN).read(text).isna().argmax())
    return int(text.index[place]) + 1, str(text.iloc[place])
