"""What a fitted estimator learned of each column of its table: importance, effects, couplings."""

from __future__ import annotations

import html
import io
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.inspection import permutation_importance

from quadric.data.columns import CATEGORY
from quadric.errors import InputError
from quadric.support.extras import load_extra
from quadric.support.texttable import text_table
from quadric.support.writing import write_text

ROWS = 400
"""Rows on which effects and couplings are measured."""

GRID = 24
COLUMNS = 6
"""Columns of which couplings are measured: the most important ones."""

_REPEATS = 5


@dataclass(frozen=True)
class Explanation:
    """What a fitted estimator learned of each column.

    Attributes:
        importance: by how much the score falls when a column is shuffled, and its standard
            deviation, the most important column first.
        effects: for each column a frame of its values and the mean prediction with that value in
            every row.
        couplings: pairs of columns: how far the effect of one depends on the other, in the unit of
            what is predicted.
        predicted: what is predicted: the target, or the probability of a class.
    """

    importance: pd.DataFrame
    effects: dict[str, pd.DataFrame]
    couplings: pd.DataFrame
    predicted: str

    def __str__(self) -> str:
        rows = [
            [str(name), f"{row['importance']:.4f}", f"{row['deviation']:.4f}"]
            for name, row in self.importance.iterrows()
        ]
        pairs = [
            [f"{row['first']} x {row['second']}", f"{row['strength']:.4g}"]
            for _, row in self.couplings.head(10).iterrows()
        ]
        parts = [text_table(["column", "importance", "±"], rows, "lrr")]
        if pairs:
            parts.append(text_table(["coupling", f"in {self.predicted}"], pairs, "lr"))
        return "\n\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one page of HTML with the tables and a curve for each column.

        Args:
            path: the file, named .html or .htm.

        Raises:
            InputError: if the name is that of another format.
            MissingExtraError: if matplotlib is not installed.
        """
        if not os.fspath(path).lower().endswith((".html", ".htm")):
            raise InputError(
                f"an explanation is a page of HTML, got {os.fspath(path)!r}: name it .html"
            )
        picture = self._drawn()
        title = f"What {html.escape(self.predicted)} depends on"
        write_text(
            path,
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            '<body style="font-family: sans-serif; max-width: 60rem; margin: 2rem auto">'
            f"<h1>{title}</h1><pre>{html.escape(str(self))}</pre>{picture}</body></html>\n",
        )

    def _drawn(self) -> str:
        load_extra("matplotlib", "a page of effects", "plots")
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        shown = [name for name in self.importance.index if name in self.effects][:12]
        rows = -(-len(shown) // 3)
        figure = Figure(figsize=(10, 2.6 * rows), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, 3, squeeze=False).ravel()
        for name, place in itertools.zip_longest(shown, axes):
            if name is None:
                place.set_axis_off()
                continue
            curve = self.effects[name]
            if curve["value"].dtype.kind in "fM":
                place.plot(curve["value"], curve["effect"], color="#c2410c")
                place.tick_params(axis="x", rotation=25, labelsize=7)
            else:
                labels = [str(value)[:14] for value in curve["value"]]
                place.barh(labels, curve["effect"] - curve["effect"].mean(), color="#c2410c")
                place.set_xlabel("above the mean", fontsize=8)
            place.set_title(name, fontsize=9)
        made = io.StringIO()
        figure.savefig(made, format="svg")
        return made.getvalue()[made.getvalue().index("<svg") :]


def explain(model: Any, X: Any, y: Any, random_state: int = 0) -> Explanation:
    """Measures what a fitted estimator learned; rows that it did not learn from say most."""
    if not isinstance(X, pd.DataFrame):
        X = pd.DataFrame(np.asarray(X), columns=_names(model, np.shape(X)[1]))
        given: Callable[[pd.DataFrame], Any] = lambda frame: frame.to_numpy()  # noqa: E731
    else:
        given = lambda frame: frame  # noqa: E731
    X = X.reset_index(drop=True)
    if len(X) < 2:
        raise InputError(f"explain needs at least 2 rows, got {len(X)}: give more")
    target = getattr(model, "target_name_", None) or "the target"
    classes = getattr(model, "classes_", None)
    if classes is not None:
        target = f"the probability of {target} = {classes[-1]}"

    def predict(frame: pd.DataFrame) -> np.ndarray:
        rows = given(frame)
        return model.predict(rows) if classes is None else model.predict_proba(rows)[:, -1]

    shuffled = permutation_importance(
        model, given(X), y, n_repeats=_REPEATS, random_state=random_state
    )
    importance = pd.DataFrame(
        {"importance": shuffled.importances_mean, "deviation": shuffled.importances_std},
        index=pd.Index(X.columns.map(str), name="column"),
    ).sort_values("importance", ascending=False)
    rows = X.sample(min(ROWS, len(X)), random_state=random_state).reset_index(drop=True)
    every = [name for name in X.columns if str(name) not in model.dropped_columns_]
    effects = {str(name): _effect(model, predict, rows, X[name]) for name in every}
    own = {str(name): name for name in X.columns}
    top = [own[name] for name in importance.index if name in effects][:COLUMNS]
    return Explanation(importance, effects, _couplings(predict, rows, top), str(target))


def _names(model: Any, count: int) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    return [f"x{i}" for i in range(count)] if names is None else list(map(str, names))


def _effect(
    model: Any, predict: Callable[[pd.DataFrame], np.ndarray], rows: pd.DataFrame, cells: pd.Series
) -> pd.DataFrame:
    """The mean prediction with each of some cells of a column in every row."""
    reader = None
    if model._preparation is not None:
        reader = model._preparation.encodings_[str(cells.name)].column
    values = cells if reader is None else reader.read(cells)
    present = values.dropna()
    if reader is not None and reader.kind == CATEGORY:
        common = present.value_counts().index[:GRID]
        chosen = present[present.isin(common)].drop_duplicates()
    else:
        ordered = present.drop_duplicates().sort_values()
        chosen = ordered.iloc[np.unique(np.linspace(0, len(ordered) - 1, GRID).round().astype(int))]
    means = []
    for place in chosen.index:  # the cell as it is written, in every row
        made = rows.copy()
        made[cells.name] = cells.iloc[np.full(len(rows), place)].set_axis(rows.index)
        means.append(float(predict(made).mean()))
    return pd.DataFrame({"value": chosen.to_numpy(), "effect": means})


def _couplings(
    predict: Callable[[pd.DataFrame], np.ndarray], rows: pd.DataFrame, top: list[Any]
) -> pd.DataFrame:
    """Mixed differences: both columns taken from other rows, less each of them alone."""
    other = rows.sample(len(rows), random_state=1).set_axis(rows.index)

    def swapped(names: tuple[Any, ...]) -> np.ndarray:
        made = rows.copy()
        for name in names:
            made[name] = other[name]
        return predict(made).astype(np.float64)

    plain = swapped(())
    alone = {name: swapped((name,)) for name in top}
    found = []
    for a, b in itertools.combinations(top, 2):
        mixed = swapped((a, b)) - alone[a] - alone[b] + plain
        found.append((str(a), str(b), float(np.sqrt(np.mean(mixed**2)))))
    frame = pd.DataFrame(found, columns=["first", "second", "strength"])
    return frame.sort_values("strength", ascending=False, ignore_index=True)
