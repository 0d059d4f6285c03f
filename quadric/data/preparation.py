"""From a user's columns to numbers: a ColumnTransformer that is fitted on training rows alone.

Numbers keep their unit (the networks standardize inside), so that an exported network takes the
columns as they are. Holes become the median of the training rows and a column that marks them,
categories become columns of 0 and 1, dates become days, month, weekday and hour.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from quadric.data.columns import CATEGORY, DATE, NUMBER, UserTable

MAX_CATEGORIES = 30
"""Rarer categories of a column share one."""

MISSING = "(missing)"


class DateNumbers(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Dates as numbers: days since 1970, month, weekday, hour."""

    PARTS = ("days", "month", "weekday", "hour")

    def fit(self, X: pd.DataFrame, y: Any = None) -> DateNumbers:
        """Remembers the columns."""
        self.columns_ = list(X.columns)
        return self

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """(rows, 4 a column); holes are NaN."""
        numbers = []
        for column in self.columns_:
            dates = X[column]
            days = (dates - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
            numbers += [days, dates.dt.month, dates.dt.day_of_week, dates.dt.hour]
        return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan)
                                for part in numbers])  # fmt: skip

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """`<column>_days` and so on."""
        names = [f"{column}_{part}" for column in self.columns_ for part in self.PARTS]
        return np.asarray(names, dtype=object)


def make_preparation(table: UserTable) -> ColumnTransformer:
    """The transformer of a table, not fitted; which columns have holes is all it takes from it."""
    return make_transformer(table.inputs, table.kinds)


def make_transformer(
    frame: pd.DataFrame, kinds: dict[str, str], fill_all: bool = False
) -> ColumnTransformer:
    """The transformer of columns whose kinds are known, not fitted."""
    holes = {column for column in kinds if frame[column].isna().any()}

    def of(kind: str) -> list[str]:
        return [column for column, found in kinds.items() if found == kind]

    numbers = of(NUMBER)
    marked = [column for column in numbers if column in holes]
    # keep_empty_features: in a fold all rows with a value may be test rows.
    median = SimpleImputer(strategy="median", keep_empty_features=True)
    parts: list[tuple[str, Any, list[str]]] = []
    if numbers:
        parts.append(("numbers", median if marked or fill_all else "passthrough", numbers))
    if marked:
        parts.append(("holes", MissingIndicator(features="all"), marked))
    if of(CATEGORY):
        encoder = OneHotEncoder(
            max_categories=MAX_CATEGORIES,
            handle_unknown="infrequent_if_exist",
            sparse_output=False,
        )
        fill = SimpleImputer(strategy="constant", fill_value=MISSING, missing_values=np.nan)
        parts.append(("categories", Pipeline([("fill", fill), ("encode", encoder)]), of(CATEGORY)))
    if of(DATE):
        dates = Pipeline([("numbers", DateNumbers()), ("fill", median)])
        parts.append(("dates", dates, of(DATE)))
    transformer = ColumnTransformer(parts, verbose_feature_names_out=False)
    return transformer.set_output(transform="default")  # whatever the user's own setting is


def prepare(table: UserTable, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows as numbers; everything is learned from the training rows."""
    transformer = make_preparation(table)
    fitted = np.asarray(transformer.fit_transform(table.inputs.iloc[train]), dtype=np.float64)
    other = np.asarray(transformer.transform(table.inputs.iloc[test]), dtype=np.float64)
    narrowed = narrow(fitted, learned_target(table, train))
    return narrowed, other.astype(narrowed.dtype)


def learned_target(table: UserTable, rows: np.ndarray | slice = slice(None)) -> np.ndarray | None:
    """Targets of a regression, whose digits `narrow` must keep; None for classes."""
    if table.task != "regression":
        return None
    return np.asarray(table.target.iloc[rows], dtype=np.float64)


def narrow(values: np.ndarray, target: np.ndarray | None = None) -> np.ndarray:
    """float32, unless a column's digits are used up by its mean."""
    learned = values if target is None else np.column_stack([values, target])
    mean, deviation = np.abs(learned.mean(0)), learned.std(0)
    large = np.abs(learned).max() > 1e30
    if large or bool((mean > 1e4 * deviation)[deviation > 0].any()):
        return values
    return values.astype(np.float32)
