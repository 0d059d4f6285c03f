"""Estimators take frames as pandas gives them."""

from __future__ import annotations

import datetime
import decimal
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import quadric
from quadric.data.preparation import TablePreparation
from quadric.data.user_table import make_table
from quadric.errors import DroppedColumnWarning, InputError
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::quadric.errors.DroppedColumnWarning"),
]


def small(kind: type[Any] = QuadraticRegressor, **options: Any) -> Any:
    return kind(
        **{"hidden_layer_sizes": (4,), "members": 1, "max_iter": 3, "random_state": 0, **options}
    )


def houses(rows: int = 200) -> tuple[pd.DataFrame, pd.Series]:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": draw.uniform(30, 200, rows),
            "rooms": draw.integers(1, 7, rows),
            "town": draw.choice(["Aix", "Bern", "Cork"], rows),
            "kind": pd.Categorical(draw.choice(["flat", "house"], rows)),
            "garden": draw.random(rows) < 0.4,
            "sold": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(draw.integers(0, 999, rows), unit="D"),
            "country": "here",
            "note": [f"note {i}" for i in range(rows)],
        },
        index=draw.permutation(rows) + 1000,
    )
    price = 1000 * frame["size"] * np.where(frame["town"] == "Bern", 3, 1) + 1e4 * frame["garden"]
    frame.loc[frame.index[::7], "size"] = np.nan
    frame.loc[frame.index[::9], "town"] = None
    return frame, price.rename("price")


def test_columns_of_every_kind() -> None:
    X, y = houses()
    model = small(max_iter=150, learning_rate_init=0.02).fit(X, y)
    assert model.score(X, y) > 0.8
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.n_features_in_ == 8
    assert model.prepared_names_ == [
        "size", "rooms", "garden", "missingindicator_size",
        "town_(missing)", "town_Aix", "town_Bern", "town_Cork", "kind_flat", "kind_house",
        "sold_days", "sold_month", "sold_weekday", "sold_hour",
    ]  # fmt: skip
    assert set(model.dropped_columns_) == {"country", "note"}
    prepared = model.prepare(X)
    assert prepared.shape == (200, 14)
    assert np.isfinite(prepared).all()
    with torch.no_grad():  # the exported network takes the prepared columns
        found = model.to_torch()(torch.tensor(prepared)).numpy()
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-9)


def test_pipelines_and_searches() -> None:
    X, y = houses(120)
    classes = np.where(y > y.median(), "dear", "cheap")
    search = GridSearchCV(
        make_pipeline("passthrough", small()), {"quadraticregressor__alpha": [0, 1]}, cv=2
    )
    assert np.isfinite(search.fit(X, y).cv_results_["mean_test_score"]).all()
    assert np.isfinite(cross_val_score(small(QuadraticClassifier), X, classes, cv=2)).all()


def test_new_categories_holes_and_types_at_prediction() -> None:
    X, y = houses()
    model = small().fit(X, y)
    new = X.head(4).copy()
    new["town"] = ["Rome", None, "Bern", "Cork"]
    new["kind"] = ["castle", "flat", "flat", "flat"]  # text instead of categories
    new["rooms"] = [np.nan, 1, 2, 3]  # no hole in fit
    new["size"] = ["55", "60", "", None]
    new["size"] = new["size"].replace("", None)
    new["sold"] = ["2020-05-01", "2020-05-02", None, "2020-05-04"]
    prepared = pd.DataFrame(model.prepare(new), columns=model.prepared_names_)
    towns = ["town_(missing)", "town_Aix", "town_Bern", "town_Cork"]
    assert prepared[towns].to_numpy().tolist() == [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]
    assert prepared["rooms"][0] == X["rooms"].median()
    assert prepared["size"][:2].tolist() == [55, 60]
    assert prepared["missingindicator_size"].tolist() == [0, 0, 1, 1]
    assert prepared["sold_month"][0] == 5
    assert np.isfinite(model.predict(new)).all()
    assert model.predict(new.head(1)).shape == (1,)
    new["size"] = ["small", "large", "large", "tiny"]
    with pytest.raises(
        ValueError, match="column 'size' must hold numbers as in fit, but row 1 is 'small'"
    ):
        model.predict(new)
    with pytest.raises(ValueError, match=r"(?s)feature names should match.*same order"):
        model.predict(X[X.columns[::-1]])
    with pytest.raises(
        ValueError, match=r"(?s)feature names should match.*unseen at fit time.*Town"
    ):
        model.predict(X.rename(columns={"town": "Town"}))


def test_one_date_is_read_as_the_dates_of_fit() -> None:
    dates = [f"{day:02d}/{month:02d}/2020" for day in (1, 5, 20) for month in (1, 2, 3, 4, 5, 6, 7)]
    X = pd.DataFrame({"day": dates})
    model = small().fit(X, np.arange(21.0))
    prepared = model.prepare(pd.DataFrame({"day": ["05/04/2020"]}))
    assert prepared[0, 1] == 4  # the month


def test_numbers_are_exported_with_their_holes(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    draw = np.random.default_rng(0)
    X = pd.DataFrame(draw.normal(size=(60, 3)), columns=["a", "b", "c"], dtype="float32")
    y = X["a"] * X["c"]
    plain = small().fit(X, y)
    assert plain.prepared_names_ == ["a", "b", "c"]
    np.testing.assert_array_equal(
        plain.predict(X), small().fit(X.to_numpy(), y).predict(X.to_numpy())
    )
    X["b"] = np.float32(1)
    X.loc[::5, "c"] = np.nan
    model = small().fit(X, y)
    assert model.prepared_names_ == ["a", "c", "missingindicator_c"]
    predicted = model.predict(X)
    assert predicted.dtype == np.float32
    module = model.to_torch()
    with torch.no_grad():
        torch.testing.assert_close(module(torch.tensor(X.to_numpy())), torch.tensor(predicted))
    quadric.export_onnx(module, tmp_path / "model.onnx", torch.tensor(X.to_numpy()[:4]))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: X.to_numpy()})
    np.testing.assert_allclose(found, predicted, rtol=1e-4, atol=1e-6)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(model.predict(X.to_numpy()), predicted)


def test_partial_fit_keeps_the_columns_of_the_first_call() -> None:
    X, y = houses(60)
    model = small().partial_fit(X, y)
    names = model.prepared_names_
    other = X.assign(town="Rome", size=5.0)
    assert model.partial_fit(other, y).prepared_names_ == names
    # Rows of an array are those of a new table.
    refitted = model.fit(np.ones((4, 2)) * np.arange(4)[:, None], np.arange(4))
    assert refitted.prepared_names_ == ["x0", "x1"]


def test_arrays_do_without_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ImportError('as if it were not installed')")
    script = (
        "import sys, numpy as np\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from quadric.sklearn import QuadraticRegressor\n"
        "X = np.arange(12.0).reshape(6, 2)\n"
        "model = QuadraticRegressor((2,), max_iter=1).fit(X, X[:, 0])\n"
        "assert model.prepare(X).tolist() == X.tolist()\n"
        "assert model.predict(X).shape == (6,)\n"
    )
    options = ["-W", "ignore", "-c", script, str(tmp_path)]
    subprocess.run([sys.executable, *options], check=True)


GOOD = pd.DataFrame({"a": np.arange(30.0), "b": ["x", "y", "z"] * 10})


COUNT = np.arange(30)


def test_a_number_for_each_row_is_dropped_as_compare_drops_it() -> None:
    frame = pd.DataFrame({"count": COUNT, "user_id": COUNT * 7, "a": np.sin(COUNT)})
    with pytest.warns(DroppedColumnWarning, match="an identifier: a number for each row"):
        model = small().fit(frame, np.cos(COUNT))
    assert list(model.dropped_columns_) == ["count", "user_id"]
    assert make_table("table", frame.assign(y=np.cos(COUNT)), "y").inputs.columns.tolist() == ["a"]
    alone = frame[["count"]]
    assert small().fit(alone, np.cos(COUNT)).dropped_columns_ == {}
    assert "count" in make_table("table", alone.assign(y=np.cos(COUNT)), "y").inputs


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (GOOD.iloc[:0], [], "X must have at least 1 row, got a frame of shape (0, 2)"),
        (GOOD[[]], COUNT, "X must have at least 1 column, got a frame of shape (30, 0)"),
        (GOOD.assign(a=[*range(29), "no"]), COUNT, "column 'a' must hold numbers, but row 30 is"),
        (GOOD.assign(a=[np.inf, *range(29)]), COUNT, "'a' must hold finite numbers, but row 1"),
        (GOOD.assign(a=[1j] * 30), COUNT, "column 'a' must hold real numbers, got complex ones"),
        (GOOD.assign(a=1.0, b="x"), COUNT, "no column to learn from: 'a' (constant), 'b' (con"),
        (GOOD.assign(a=COUNT * 1e200), COUNT, "'a' must hold numbers below 1e+150, got 2.9e+201"),
        (GOOD.set_axis(["a", "a"], axis=1), COUNT, "two columns of X have the name 'a'"),
        (GOOD.set_axis(["a", 1], axis=1), COUNT, "names that are all text, or all numbers"),
        (GOOD, [*range(29), np.nan], "Input y contains NaN: row 30 has no target: leave such"),
        (GOOD, [None, *range(28), pd.NA], "Input y contains NaN: row 1 has no target (and 1 more)"),
        (GOOD, [*range(29), np.inf], "Input y contains infinity"),
        (GOOD, ["a"] * 30, "y must hold numbers, got the text"),
        (GOOD, COUNT[:29], "inconsistent numbers of samples: [30, 29]"),
    ],
)  # fmt: skip
def test_bad_frames(X: pd.DataFrame, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        small().fit(X, y)
    assert "\n" not in str(caught.value)


def column(draw: Any, rows: int, seed: int) -> Any:
    """A column of some kind, with or without holes."""
    random = np.random.default_rng(seed)
    number = random.normal(size=rows)
    whole = random.integers(-3, 9, rows)
    words = random.choice(["a", "b", "c d", "", "1", "(missing)"], rows)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(whole, unit="D")
    made: dict[str, Any] = {
        "float": number,
        "float32": number.astype("float32"),
        "huge": number * 1e200,
        "int": whole,
        "bool": whole > 2,
        "Int64": pd.array(whole, dtype="Int64"),
        "boolean": pd.array(whole > 2, dtype="boolean"),
        "words": words.astype(object),
        "string": pd.array(words, dtype="string"),
        "category": pd.Categorical(words),
        "numbered": pd.Categorical(whole),
        "dates": days,
        "zones": days.tz_localize("UTC"),
        "written": [f"{d:%d/%m/%Y}" for d in days],
        "days": [d.date() for d in days],
        "spans": pd.to_timedelta(whole, unit="h"),
        "texts": [f"{v:.3f}" for v in number],
        "decimals": [decimal.Decimal(int(v)) for v in whole],
        "mixed": [v if v % 2 else str(v) for v in whole.tolist()],
        "lists": [[v] for v in whole.tolist()],
        "times": [datetime.time(abs(v)) for v in whole.tolist()],
        "periods": pd.PeriodIndex(days, freq="M"),
        "sparse": pd.arrays.SparseArray(number),
        "constant": np.full(rows, 7),
        "empty": np.full(rows, np.nan),
        "nothing": [None] * rows,
        "infinite": np.full(rows, np.inf),
        "complex": number + 1j,
    }
    series = pd.Series(made[draw(st.sampled_from(sorted(made)))])
    if draw(st.booleans()):
        series = series.mask(random.random(rows) < 0.3)
    return series


@st.composite
def frames(draw: Any, columns: int | None = None) -> pd.DataFrame:
    rows = draw(st.sampled_from([0, 1, 2, 3, 10, 25, 30, 40]))
    number = columns or draw(st.integers(1, 4))
    made = {f"c{i}": column(draw, rows, draw(st.integers(0, 99))) for i in range(number)}
    return pd.DataFrame(made)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(frames(), st.data())
def test_any_frame_gives_predictions_or_one_clear_error(frame: pd.DataFrame, data: Any) -> None:
    kind = data.draw(st.sampled_from([QuadraticRegressor, QuadraticClassifier]))
    random = np.random.default_rng(len(frame))
    y = random.integers(0, 3, len(frame)) * (1.0 if kind is QuadraticRegressor else 1)
    other = data.draw(st.one_of(frames(len(frame.columns)), st.just(frame), st.just(frame.head(1))))
    if data.draw(st.booleans()):
        other = other[data.draw(st.permutations(list(other.columns)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            model = small(kind, max_iter=1).fit(frame, y)
            predicted = model.predict(frame)
            assert predicted.shape == (len(frame),)
            assert np.isfinite(predicted).all()
            assert model.prepare(frame).shape == (len(frame), len(model.prepared_names_))
            assert model.predict(other).shape == (len(other),)
        except ValueError as error:  # InputError is one
            text = str(error)
            assert "\n" not in text or "feature names should match" in text
            assert 20 < len(text) < 400


def test_a_pipeline_that_leaves_the_frame() -> None:
    X, y = houses(60)
    numbers = X[["size", "rooms"]]
    model = make_pipeline(SimpleImputer(), small()).fit(numbers, y)
    assert model.predict(numbers).shape == (60,)


def test_blanks_are_holes_and_units_are_read_also_in_one_row() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"a": draw.normal(size=200)})
    frame["text"] = [str(i * 3.5) if i != 8 else " " for i in range(200)]
    frame["price"] = [f"${i + 1},{i:03}" for i in range(200)]
    frame["share"] = [f"{i % 90}%" if i else "unknown" for i in range(200)]
    frame.loc[0, "share"] = None
    model = QuadraticRegressor((4,), max_iter=2, random_state=0).fit(frame, frame["a"])
    assert model.prepared_names_[:4] == ["a", "text", "price", "share"]
    one = pd.DataFrame({"a": [0.0], "text": [""], "price": ["$1,234"], "share": ["87%"]})
    assert model.prepare(one)[0, 2:4].tolist() == [1234.0, 87.0]


def test_rows_of_weight_zero_teach_nothing_about_columns() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(200, 2)), columns=["a", "b"])
    target, weights = frame["a"].copy(), np.ones(200)
    masked = frame.copy()
    masked.loc[:99, "a"], masked.loc[:20, "b"], weights[:100] = 1000.0, np.nan, 0.0
    model = QuadraticRegressor((4,), max_iter=2, random_state=0)
    found = model.fit(masked, target, sample_weight=weights).predict(frame)
    alone = model.fit(frame[100:], target[100:]).predict(frame)
    np.testing.assert_array_equal(found, alone)


def test_an_exported_network_fills_holes_that_fit_did_not_see() -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(50, 2)), columns=["a", "b"])
    model = QuadraticRegressor((4,), max_iter=2, random_state=0).fit(frame, frame["a"])
    frame.loc[0, "a"] = np.nan
    exported = model.to_torch()(torch.tensor(frame.to_numpy()))
    np.testing.assert_allclose(exported.detach(), model.predict(frame), rtol=1e-12)


def test_an_epoch_that_a_scorer_cannot_judge_is_a_bad_one() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = QuadraticRegressor((32,), members=1, max_iter=20, scoring="neg_mean_poisson_deviance")
    model.set_params(random_state=0).fit(X, np.exp(1.2 * X[:, 0]))
    assert min(model.validation_scores_) == -1e30 < model.best_validation_score_


def test_auto_takes_logarithms_whatever_is_held_out() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = np.exp(1.2 * X[:, 0])
    y[7] = 0
    for seed in range(12):
        model = QuadraticRegressor((4,), max_iter=1, target_transform="auto", random_state=seed)
        assert np.isfinite(model.fit(X, y).predict(X)).all()


@pytest.mark.parametrize("kind", ["bool", "boolean", "object"])
def test_booleans_as_labels_come_back_as_given(kind: str) -> None:
    X = pd.DataFrame({"a": np.linspace(-1, 1, 60)})
    y = (X["a"] > 0).astype(kind)
    model = QuadraticClassifier((4,), max_iter=3, random_state=0).fit(X, y, eval_set=(X, y))
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == bool


@pytest.mark.parametrize("kind", ["object", "U9", "category"])
def test_a_target_of_amounts_is_read(kind: str) -> None:
    X = pd.DataFrame({"a": np.arange(40.0)})
    text = [f"${1000 + i:,}" for i in range(40)]
    y = np.array(text) if kind == "U9" else pd.Series(text, dtype=kind)
    model = QuadraticRegressor((4,), max_iter=2, random_state=0).fit(X, y, eval_set=(X, y))
    numbers = np.arange(1000.0, 1040)
    other = QuadraticRegressor((4,), max_iter=2, random_state=0).fit(X, numbers, None, (X, numbers))
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    assert model.score(X, y) == other.score(X, numbers)
    assert np.isfinite(model.score(X[:2], ["$1,000.50", "$ 7"]))
    with pytest.raises(InputError, match=r"y must hold numbers, got the text 'dear': turn it"):
        QuadraticRegressor((4,)).fit(X, ["dear", "cheap"] * 20)
    with pytest.raises(InputError, match=r"y must hold numbers, got the text 'yes': turn it"):
        QuadraticRegressor((4,)).fit(X, ["yes", "no"] * 20)
    with pytest.raises(InputError, match=r"one unit, but row 1 is '\$5'"):
        QuadraticRegressor((4,)).fit(X, ["$5", "€5"] * 20)


def test_scores_take_booleans_of_any_type() -> None:
    X = pd.DataFrame({"a": np.linspace(-1, 1, 60)})
    y = X["a"] > 0
    model = QuadraticClassifier((4,), max_iter=3, random_state=0).fit(X, y)
    assert model.score(X, y.astype(object)) == model.score(X, y.to_numpy())


def test_one_table_says_how_every_column_is_read() -> None:
    X, y = houses()
    X["paid"] = [f"${i + 1},{i:03}" for i in range(200)]
    said = r"from the columns 'country' \(constant\), 'note' \(an identifier: n"
    with pytest.warns(DroppedColumnWarning, match=said) as caught:
        model = small().fit(X, y)
    assert caught[0].filename == __file__
    columns = model.columns_
    assert list(columns.index) == list(X.columns)
    assert columns.loc["town"].to_dict() == {
        "read as": "category", "how": "", "holes": 23, "becomes": 4, "dropped": "",
    }  # fmt: skip
    assert columns.loc["paid", "how"] == "amounts such as '$1,000'"
    assert columns.loc["country", "becomes"] == 0
    assert columns.loc["country", "dropped"] == "constant"
    assert columns["becomes"].sum() == len(model.prepared_names_)
    assert small().fit(np.ones((5, 2)), np.arange(5)).columns_.shape == (2, 5)


@pytest.mark.parametrize("package", ["polars", "pyarrow"])
def test_other_frames_are_those_of_pandas(package: str) -> None:
    module = pytest.importorskip(package)
    X, y = houses(60)
    X = X.drop(columns=["kind"]).reset_index(drop=True)
    other = module.from_pandas(X) if package == "polars" else module.Table.from_pandas(X)
    wanted = small().fit(X, y.to_numpy()).predict(X)
    np.testing.assert_array_equal(small().fit(other, y.to_numpy()).predict(other), wanted)


def test_a_number_of_few_values_is_a_category_too() -> None:
    draw = np.random.default_rng(0)
    X = pd.DataFrame({"hour": draw.integers(0, 24, 1500), "size": draw.normal(size=1500)})
    model = small().fit(X, X["size"])
    assert model.prepared_names_ == ["hour", "size", *(f"hour_{hour}" for hour in range(24))]
    new = pd.DataFrame({"hour": [5.0, np.nan, 99], "size": 0.0})
    prepared = model.prepare(new)
    assert prepared[0, 2:].argmax() == 5
    assert prepared[:, 2:].sum(1).tolist() == [1, 0, 0]
    with torch.no_grad():
        exported = model.to_torch()(torch.tensor(new.to_numpy()))
    np.testing.assert_allclose(exported, model.predict(new), rtol=1e-12)


def test_means_of_the_target_do_not_tell_a_row_its_own() -> None:
    draw = np.random.default_rng(0)
    X = pd.DataFrame({"who": [f"w{i % 300}" for i in range(900)], "size": draw.normal(size=900)})
    noise = draw.normal(size=900)
    model = small().fit(X, noise)
    place = model.prepared_names_.index("who_mean")
    learned = TablePreparation().fit_transform(X, noise)[:, place]
    assert abs(np.corrcoef(learned, noise)[0, 1]) < 0.1
    seen = model.prepare(X)[:, place]  # of all rows: of use for new ones alone
    assert np.corrcoef(seen, noise)[0, 1] > 0.3
    new = model.prepare(pd.DataFrame({"who": ["nobody"], "size": [0.0]}))
    assert new[0, place] == pytest.approx(noise.mean())


MEMORY = """
import threading, time, warnings
import numpy as np, pandas as pd
from quadric.sklearn import QuadraticRegressor
warnings.simplefilter("ignore")
options = dict(max_iter=1, solver="adam", batch_size=2000, random_state=0)
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
def frame(rows):
    draw = np.random.default_rng(0)
    made = pd.DataFrame({f"c{i}": draw.normal(size=rows) for i in range(20)})
    made.loc[::7, "c1"] = np.nan
    return made.assign(town=draw.choice(["a", "b"], rows))
first = frame(500)
QuadraticRegressor((8,), **options).fit(first, first["c0"])
X = frame(300_000)
y, before, most, done = X["c0"].to_numpy(), resident(), [0], []
def watch():
    while not done:
        most[0] = max(most[0], resident())
        time.sleep(0.005)
thread = threading.Thread(target=watch)
thread.start()
QuadraticRegressor((8,), **options).fit(X, y)
done.append(True)
thread.join()
print((most[0] - before) / X.memory_usage().sum())
"""


@pytest.mark.slow
def test_a_fit_takes_at_most_three_times_the_frame() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 3
