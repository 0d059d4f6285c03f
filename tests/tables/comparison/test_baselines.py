"""Models of other libraries, and the columns they take."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadric.data.user_table import UserTable, make_table
from quadric.tables.comparison import baselines
from quadric.tables.comparison.baselines import (
    OTHERS,
    Baseline,
    TreeColumns,
    absent_others,
    choose_others,
)
from quadric.tables.comparison.fits import run_fits
from quadric.tables.comparison.plan import ComparisonPlan, parse_neurons


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
    plan = ComparisonPlan(
        table.task,
        parse_neurons("eigen"),
        (4,),
        max_iter=1,
        folds=3,
        seeds=1,
        others=(OTHERS["lightgbm"],),
    )
    fits = run_fits(table, plan, directory=tmp_path / "run").frame().groupby("model")
    for label in ("HistGradientBoosting", "LightGBM"):
        found = fits.get_group(label)
        assert len(found) == 3
        assert (found["score"] > 0.6).all()
        assert (found["seconds"] > 0).all()


def test_trees_learn_categories_from_training_rows() -> None:
    inputs = mixed_table(classes=False).inputs
    inputs["town"] = pd.Categorical([f"town {i % 300}" for i in range(239)] + ["never seen"])
    columns = TreeColumns().fit(inputs[:239])
    train, test = columns.transform(inputs[:239]), columns.transform(inputs[239:])
    assert list(train) == ["c0", "c1", "c2_0", "c2_1", "c2_2", "c2_3"]  # a date is four numbers
    assert train["c0"].isna().sum() == inputs["a {b}"].isna()[:239].sum()
    assert isinstance(train["c1"].dtype, pd.CategoricalDtype)
    assert test["c1"].isna().all()
    assert train["c2_0"].iloc[0] == 18262  # days from 1970 to 2020
    # More categories than trees take: the rarest are holes.
    many = pd.DataFrame({"town": pd.Categorical([f"town {i % 300}" for i in range(480)])})
    assert TreeColumns().fit_transform(many)["c0"].nunique() == baselines.MAX_LEVELS


def test_lightgbm_takes_part_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = OTHERS["lightgbm"].is_installed
    assert choose_others([], usual=True) == ((OTHERS["lightgbm"],) if there else ())
    assert choose_others([], usual=False) == ()
    monkeypatch.setattr(baselines.importlib.util, "find_spec", lambda name: None)
    assert choose_others([], usual=True) == ()
    with pytest.raises(ImportError, match=r"lightgbm needs .* pip install 'quadric\[rivals\]'"):
        choose_others(["lightgbm"], usual=True)
    with pytest.raises(ImportError, match="opponent tabm needs a package: pip install pytabkit"):
        choose_others(["tabm"], usual=True)
    with pytest.raises(ValueError, match=r"opponents must be of all, lightgbm, .* got 'forest'"):
        choose_others(["forest"], usual=True)


def test_all_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Baseline("TabM", lambda *_: None, package="no_such_package")
    monkeypatch.setitem(OTHERS, "tabm", missing)
    chosen = [other.label for other in choose_others(["all"], usual=True)]
    assert "Gaussian process" in chosen
    assert "TabM" not in chosen
    assert "TabM" in absent_others(["all"])[0]
    assert "pip install" in absent_others(["all"])[0]
    assert "no_such_package" in absent_others(["all"])[0]
    assert absent_others(["gp"]) == []


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_gaussian_process_learns_a_curve(task: str) -> None:
    x = np.linspace(-3, 3, 80)
    y = np.sin(2 * x) + 0.01 * np.cos(50 * x)
    model = OTHERS["gp"].make(task, 0, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(pd.DataFrame({"x": x}), y if task == "regression" else y > 0)
    assert model.score(pd.DataFrame({"x": x}), y if task == "regression" else y > 0) > 0.95
