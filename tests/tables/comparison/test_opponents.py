"""Models of other libraries, and the columns they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quadric.sklearn.comparison import opponents

from quadric.data.columns import UserTable, make_table
from quadric.tables.comparison.models import Plan, parse_neurons
from quadric.tables.comparison.opponents import RIVALS, choose_rivals, native_frames
from quadric.tables.comparison.run import run_fits


def mixed_table(classes: bool) -> UserTable:
    """The target hangs on a category; a column has a name that LightGBM refuses."""
    draw = np.random.default_rng(0)
    town = draw.choice(["Ulm", "Bern", "Graz"], 240)
    value = pd.Series(town).map({"Ulm": 5.0, "Bern": -5.0, "Graz": 0.0}) + draw.normal(size=240)
    frame = pd.DataFrame(
        {
            "a {b}": draw.normal(size=240),
            "town": town,
            "day": pd.date_range("2020-01-01", periods=240),
            "y": np.where(value > 0, "up", "down") if classes else value,
        }
    )
    frame.loc[::11, "town"] = None
    frame.loc[::7, "a {b}"] = np.nan
    return make_table("mixed", frame, "y")


@pytest.mark.parametrize("classes", [False, True])
def test_trees_learn_from_categories_and_holes_as_they_are(classes: bool, tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    table = mixed_table(classes)
    plan = Plan(
        table.task, parse_neurons("eigen"), (4,), max_iter=1, folds=3, seeds=1, rivals=("lightgbm",)
    )
    records = run_fits(table, plan, directory=tmp_path / "run")
    for label in ("HistGradientBoosting", "LightGBM"):
        fits = records.of(label)
        assert len(fits) == 3
        assert all((fit.score or 0) > 0.6 and fit.seconds > 0 for fit in fits), fits


def test_frames_keep_holes_and_learn_categories_from_training_rows() -> None:
    table = mixed_table(classes=False)
    names = [f"town {i % 300}" for i in range(239)] + ["never seen"]
    table.inputs["town"] = names
    train, test = native_frames(table, np.arange(239), np.arange(239, 240))
    assert list(train) == ["c0", "c1", "c2", "c3", "c4", "c5"]  # a date is four numbers
    assert train["c0"].isna().sum() == table.inputs["a {b}"].isna()[:239].sum()
    assert isinstance(train["c1"].dtype, pd.CategoricalDtype)
    assert test["c1"].isna().all()
    assert train["c2"].iloc[0] == 18262  # days from 1970 to 2020
    # More categories than trees take: the rarest are holes.
    table.inputs = pd.concat([table.inputs] * 2, ignore_index=True)
    table.inputs["town"] = [f"town {i % 300}" for i in range(480)]
    train, _ = native_frames(table, np.arange(480), np.arange(1))
    assert train["c1"].nunique() == opponents.MAX_LEVELS


def test_lightgbm_takes_part_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = RIVALS["lightgbm"].is_installed
    assert choose_rivals([], usual=True) == (("lightgbm",) if there else ())
    assert choose_rivals([], usual=False) == ()
    monkeypatch.setattr(opponents.importlib.util, "find_spec", lambda name: None)
    assert choose_rivals([], usual=True) == ()
    with pytest.raises(ImportError, match=r"lightgbm needs .* pip install 'quadric\[rivals\]'"):
        choose_rivals(["lightgbm"], usual=True)
    with pytest.raises(ImportError, match="opponent tabm needs a package: pip install pytabkit"):
        choose_rivals(["tabm"], usual=True)
    with pytest.raises(ValueError, match=r"opponents must be of lightgbm, .* got 'forest'"):
        choose_rivals(["forest"], usual=True)
