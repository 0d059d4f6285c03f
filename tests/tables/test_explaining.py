"""What an estimator learned of each column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadric.errors import InputError
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def sales(rows: int = 600) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    size, town = draw.uniform(30, 200, rows), draw.choice(["Aix", "Bern"], rows)
    return pd.DataFrame(
        {
            "paid": [f"$ {value:,.2f}" for value in 1000 * size],
            "town": town,
            "noise": draw.normal(size=rows),
            "price": size * np.where(town == "Bern", 3, 1),
        },
        index=draw.permutation(rows),
    )


def test_importance_effects_and_couplings(tmp_path: Path) -> None:
    frame = sales()
    X, y = frame.drop(columns="price"), frame["price"]
    model = QuadraticRegressor((16,), members=1, max_iter=150, random_state=0, solver="adam").fit(
        X, y
    )
    found = model.explain(X, y)
    assert found.predicted == "price"
    assert list(found.importance.index)[2] == "noise"
    assert found.importance["importance"]["noise"] < 0.02
    assert found.importance["importance"]["town"] > 0.3
    effect = found.effects["paid"]
    assert effect["value"].is_monotonic_increasing
    # The mean of both towns rises by about 2 for each unit of size.
    slope = np.polyfit(effect["value"] / 1000, effect["effect"], 1)[0]
    assert slope == pytest.approx(2, abs=0.3)
    assert set(found.effects["town"]["value"]) == {"Aix", "Bern"}
    first = found.couplings.iloc[0]
    assert {first["first"], first["second"]} == {"paid", "town"}
    # Of differences of two sizes where the towns differ: 2 sqrt(2) deviations in half of the rows.
    wanted = (
        2 * np.sqrt(2 * 0.5) * X["paid"].str.replace("[$, ]", "", regex=True).astype(float).std()
    )
    assert first["strength"] == pytest.approx(wanted / 1000, rel=0.15)
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 1
    assert "What price depends on" in page
    with pytest.raises(InputError, match=r"a page of HTML, got .*page\.png"):
        found.save(tmp_path / "page.png")


def test_arrays_and_classes() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 2))
    y = np.where(X[:, 1] > 0, "up", "down")
    model = QuadraticClassifier((4,), max_iter=60, random_state=0).fit(X, y)
    found = model.explain(X, y)
    assert found.predicted == "the probability of the target = up"
    assert list(found.importance.index) == ["x1", "x0"]
    effect = found.effects["x1"]["effect"]
    assert effect.iloc[-1] > 0.8 > 0.2 > effect.iloc[0]
