"""What stands in cells of text: numbers, amounts with a unit, spans of time, dates, yes and no.

All cells of a column have one form. It is learned from the whole column, as the decimal sign and
the order of day and month cannot be told from one cell.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

PLAIN, AMOUNT, SPAN, ANSWER, DATE_TEXT = "number", "amount", "span", "answer", "date"

MARKS = frozenset(
    "- -- --- – — ? . n.a. n/a na #n/a nan none null nil unknown missing tbd".split()
) | {"not available", "not applicable", "no data", "(missing)"}
"""Words for a hole, in small letters, among cells that are numbers or dates."""

ANSWERS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "y": 1.0, "n": 0.0}
_PAIRS = ({"yes", "no"}, {"true", "false"}, {"y", "n"})

# Cells from which the forms that a column may have are found.
_HEAD = 100
# The share of cells that must match before the form of a column is said to be of amounts.
_MOSTLY = 0.8

_CODES = (
    "USD EUR GBP JPY CHF CAD AUD NZD CNY RMB HKD SGD INR SEK NOK DKK PLN CZK HUF RUB TRY BRL MXN "
    "ZAR KRW ILS"
)
_MONEY = r"(?:US|C|A|NZ|HK|R)?\$|[€£¥₹]|" + "|".join(_CODES.split())
_DIGITS = "\\d[\\d.,'’\u00a0\u2009\u202f ]*\\d|\\d|[.,]\\d+"
_AMOUNT = re.compile(
    rf"(?P<open>\()?(?P<limit>[<>≤≥])?\s*(?P<sign>[-+−]?)\s*(?P<before>{_MONEY})?\s*(?P<minus>[-+−]?)"
    rf"\s*(?P<number>{_DIGITS})[.,]?\+?\s*(?P<after>%|‰|°?[A-Za-zµΩ€£¥₹$][A-Za-z/²³€£¥₹$]*|°)?"
    r"(?P<late>-)?(?(open)\))"
)
_SPACES = re.compile("(?<=\\d)['’\u00a0\u2009\u202f ](?=\\d{3}(?!\\d))")
_DECIMAL = {
    ".": re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?|\d+(\.\d+)?|\.\d+"),
    ",": re.compile(r"\d{1,3}(\.\d{3})+(,\d+)?|\d+(,\d+)?|,\d+"),
}
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "million": 1e6}
_SCALES |= {"b": 1e9, "bn": 1e9, "billion": 1e9, "t": 1e12, "trillion": 1e12}
# Units of one family in one column: the numbers alone would be wrong.
_FAMILIES = [
    set(words.split())
    for words in (
        "mg g kg t lb lbs oz", "mm cm m km in ft mi yd", "ml cl l L", "B KB MB GB TB kB",
        "ms s sec second min minute h hr hour day week month year", "°C °F °",
        "$ € £ ¥ ₹ " + _CODES,
    )
]  # fmt: skip

_SPAN = re.compile(
    r"(?P<minus>-)?(?:(?P<days>\d+) days?,? )?(?P<hours>\d{1,4}):(?P<minutes>[0-5]\d)"
    r"(?::(?P<seconds>[0-5]\d(?:\.\d+)?))?"
)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CLOCK = r"([ T,]\s*\d{1,2}:\d{2}.*)?"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}{_CLOCK}|\d{{4}}[-/]\d{{2}}|\d{{1,2}}/\d{{4}}"
    rf"|(?:[a-z]{{3,9}},? )?\d{{1,2}}(?:st|nd|rd|th|\.)?[-/ ]+{_MONTH}"
    rf"[-/, ]+(?:\d{{4}}|\d{{2}}){_CLOCK}"
    rf"|(?:[a-z]{{3,9}},? )?{_MONTH}[-/ ]\d{{1,2}}(?:st|nd|rd|th)?,?[-/ ]\d{{4}}{_CLOCK}"
    rf"|\d{{4}}[-/ ]{_MONTH}[-/ ]\d{{1,2}}{_CLOCK}|{_MONTH}[-/, ]+\d{{4}}|\d{{4}}[-/ ]{_MONTH}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Form:
    """How the cells of a column of text are read.

    Attributes:
        kind: "number", "amount", "span", "answer" or "date".
        unit: of an amount; cells with another one do not fit.
        decimal: the decimal sign of amounts.
        scaled: whether K and M behind an amount are powers of ten.
        day_first: whether dates have the day before the month.
    """

    kind: str
    unit: str = ""
    decimal: str = "."
    scaled: bool = False
    day_first: bool = False

    def read(self, text: pd.Series) -> pd.Series:
        """The cells as numbers or dates; a hole where one does not fit."""
        import pandas as pd

        places, cells = pd.factorize(text)
        parsed = self._parse(pd.Series(cells, dtype=object))
        return pd.Series(parsed.to_numpy()[places], index=text.index)

    def _parse(self, cells: pd.Series) -> pd.Series:
        import pandas as pd

        if self.kind == PLAIN:
            return pd.to_numeric(cells, errors="coerce").astype(np.float64)
        if self.kind == DATE_TEXT:
            return _parse_dates(cells, self.day_first)
        readers: dict[str, Callable[[str], float | None]] = {
            AMOUNT: self._amount,
            SPAN: _days,
            ANSWER: lambda cell: ANSWERS.get(cell.lower()),
        }
        return cells.map(readers[self.kind]).astype(np.float64)

    def _amount(self, cell: str) -> float | None:
        match = _AMOUNT.fullmatch(cell)
        if match is None:
            return None
        unit, scale = _unit(match, self.scaled)
        number = _SPACES.sub("", match["number"])
        if unit not in ("", self.unit) or not _DECIMAL[self.decimal].fullmatch(number):
            return None
        other = "," if self.decimal == "." else "."
        negative = match["open"] or match["late"] or {"-", "−"} & {match["sign"], match["minus"]}
        value = float(number.replace(other, "").replace(",", ".")) * scale
        return -value if negative else value


def possible_forms(text: pd.Series) -> Iterator[Form]:
    """The forms that a column may have, from the plainest on."""
    head = text.head(_HEAD)
    yield Form(PLAIN)
    words = set(head.str.lower())
    if any(words <= pair for pair in _PAIRS):
        yield Form(ANSWER)
    if any(map(_AMOUNT.fullmatch, head)):
        form = _amount_form(text)
        if form is not None:
            yield form
    if any(map(_SPAN.fullmatch, head)):
        yield Form(SPAN)
    if any(map(_DATE.fullmatch, head)):
        yield Form(DATE_TEXT, day_first=_is_day_first(text))


def mixed_units(text: pd.Series) -> tuple[Any, Any] | None:
    """The places of two cells whose units measure the same thing on different scales."""
    counts = text.value_counts()
    seen: dict[str, str] = {}
    matched = 0
    for cell, count in zip(map(str, counts.index), counts, strict=True):
        match = _AMOUNT.fullmatch(cell)
        if match is not None:
            matched += int(count)
            seen.setdefault(_unit(match, bool(match["before"]))[0], cell)
    for family in _FAMILIES:
        both = [cell for unit, cell in seen.items() if unit in family]
        if len(both) > 1 and matched >= _MOSTLY * len(text):
            first, second = sorted(text.index[text == cell][0] for cell in both[:2])
            return first, second
    return None


def _unit(match: re.Match[str], scaled: bool) -> tuple[str, float]:
    """The unit of an amount, and what its number is multiplied by."""
    before, after = match["before"] or "", match["after"] or ""
    for money in ("", "€", "$", "£", *_CODES.split()):  # "5M", "5M€", "5 kEUR"
        word = after.removesuffix(money).lower()
        if scaled and after.endswith(money) and word in _SCALES:
            return before or money, _SCALES[word]
    if len(after) > 2 and after.islower():  # "1 day", "2 days"
        after = after.removesuffix("s")
    return before or after, 1.0


def _amount_form(text: pd.Series) -> Form | None:
    """One unit and one decimal sign for most cells; None if they have none in common."""
    counts = text.value_counts()
    pairs = [(_AMOUNT.fullmatch(str(cell)), int(count)) for cell, count in counts.items()]
    matches = [(match, count) for match, count in pairs if match is not None]
    total = len(text)
    if sum(count for match, count in matches if match["limit"]) > total / 2:
        return None
    after = {match["after"] or "" for match, _ in matches}
    scales = {word for word in after if word.lower() in _SCALES}
    money = any(match["before"] for match, _ in matches)
    scaled = money or (len(scales) > 1 and after <= scales | {""})
    scaled |= any(len(word) > 3 for word in scales)
    units: dict[str, int] = {}
    for match, count in matches:
        unit = _unit(match, scaled)[0]
        units[unit] = units.get(unit, 0) + count
    bare = units.pop("", 0)
    unit = max(units, key=lambda u: units[u], default="")
    numbers = [(_SPACES.sub("", match["number"]), count) for match, count in matches]
    fits = {
        sign: sum(count for number, count in numbers if pattern.fullmatch(number))
        for sign, pattern in _DECIMAL.items()
    }
    form = Form(AMOUNT, unit, "," if fits[","] > fits["."] else ".", scaled)
    if units.get(unit, 0) + bare < _MOSTLY * total:
        return None
    values = form.read(counts.index.to_series()).dropna()
    return form if values.nunique() > 1 else None


def _days(cell: str) -> float | None:
    match = _SPAN.fullmatch(cell)
    if match is None:
        return None
    hours = int(match["hours"]) + int(match["minutes"]) / 60 + float(match["seconds"] or 0) / 3600
    return (-1 if match["minus"] else 1) * (int(match["days"] or 0) + hours / 24)


def _is_day_first(text: pd.Series) -> bool:
    """Whether dates are written with the day before the month, as far as the text tells."""
    starts = (re.match(r"(\d{1,2})[-/.]\d{1,2}[-/.]", cell) for cell in text.unique()[:1000])
    return any(int(match[1]) > 12 for match in starts if match)


def _parse_dates(cells: pd.Series, day_first: bool) -> pd.Series:
    """Dates by universal time; a hole where a cell is none."""
    import pandas as pd
    from pandas.tseries.api import guess_datetime_format

    dates = pd.Series(pd.NaT, index=cells.index, dtype="datetime64[ns, UTC]")
    like = cells.map(lambda cell: _DATE.fullmatch(cell) is not None).astype(bool)
    if not like.any():
        return dates.dt.tz_localize(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual = guess_datetime_format(cells[like].iloc[0], dayfirst=day_first)
        for layout in (usual, "mixed"):  # the second is slow
            rest = like & dates.isna()
            if layout is not None and rest.any():
                found = pd.to_datetime(
                    cells[rest], errors="coerce", format=layout, dayfirst=day_first, utc=True
                )
                dates[rest] = found.astype(dates.dtype)
    return dates.dt.tz_localize(None)
