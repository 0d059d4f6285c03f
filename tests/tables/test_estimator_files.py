"""Saved estimators: one file, read whole or refused; and predictions for files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from quadric.errors import InputError
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, load
from quadric.support.tensor_files import read_tensors, write_tensors
from quadric.tables.predicting import predict_file
from tests.command_line import quadric

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::quadric.errors.DroppedColumnWarning"),
]


def sales(rows: int = 240) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    size = draw.uniform(30, 200, rows)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, rows), unit="D")
    return pd.DataFrame(
        {
            "code": draw.choice(["01", "02", "x"], rows),
            "size": size,
            "sold": day.strftime("%b %d, %Y"),
            "paid": [f"$ {1000 * value:,.0f}" for value in size],
            "garden": draw.choice(["yes", "no"], rows),
            "country": "here",
            "price": 5 * size + draw.normal(size=rows),
        }
    )


@pytest.fixture(scope="module")
def model() -> QuadraticRegressor:
    frame = sales()
    fitted = QuadraticRegressor((4,), members=2, max_iter=5, random_state=0, solver="adam")
    return fitted.fit(frame.drop(columns="price"), frame["price"])


@pytest.mark.parametrize("place", [0, 9, 200, -1, -500])
def test_a_flipped_bit_is_an_error(model: QuadraticRegressor, place: int, tmp_path: Path) -> None:
    file = tmp_path / "model.quadric"
    model.save(file)
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.quadric (is damaged|must be)") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(model: QuadraticRegressor, tmp_path: Path) -> None:
    file = tmp_path / "model.quadric"
    model.save(file)
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"truncated, damaged or foreign|is damaged"):
            load(file)
    save_file({"a": torch.ones(2)}, file)
    with pytest.raises(InputError, match="must be a saved estimator, got a file of tensors alone"):
        load(file)
    file.write_bytes(whole)
    tensors, metadata = read_tensors(file)
    header = json.loads(metadata["quadric_estimator"])
    for change, message in (
        ({"format": 99}, "format 99 of a later Quadric"),
        ({"kind": "os.system"}, "does not describe an estimator"),
        ({"dtype": "nothing"}, "does not describe an estimator"),
    ):
        write_tensors(file, tensors, {"quadric_estimator": json.dumps(header | change)})
        with pytest.raises(InputError, match=message):
            load(file)
    del tensors["input_mean"]
    write_tensors(file, tensors, {"quadric_estimator": json.dumps(header)})
    with pytest.raises(InputError, match="does not describe an estimator"):
        load(file)


def entries(state: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every mapping in a header, with each of its keys."""
    if isinstance(state, dict):
        yield from ((state, key) for key in list(state))
        for value in state.values():
            yield from entries(value)
    elif isinstance(state, list):
        for value in state:
            yield from entries(value)


def test_a_file_without_one_entry_is_refused_or_predicts_the_same(
    model: QuadraticRegressor, tmp_path: Path
) -> None:
    file = tmp_path / "model.quadric"
    model.save(file)
    frame = sales(20).drop(columns="price")
    wanted = model.predict(frame)
    tensors, metadata = read_tensors(file)
    header = json.loads(metadata["quadric_estimator"])
    refused = 0
    for state, key in entries(header):
        value = state.pop(key)
        write_tensors(file, tensors, {"quadric_estimator": json.dumps(header)})
        state[key] = value
        again = None
        with contextlib.suppress(InputError):
            again = load(file)
        if again is None:
            with pytest.raises(InputError, match=r"does not describe an estimator .*: save it"):
                load(file)
            refused += 1
        else:
            np.testing.assert_array_equal(again.predict(frame), wanted, err_msg=key)
            assert list(again.columns_["dropped"]) == list(model.columns_["dropped"]), key
    assert refused > 60


def test_what_is_no_plain_value_is_refused_before_writing(tmp_path: Path) -> None:
    X = np.arange(60.0)[:, None]
    model = QuadraticRegressor((2,), max_iter=1).fit(X, X[:, 0])
    model.neuron_options = {"k": object()}
    with pytest.raises(InputError, match="plain values alone, got a object"):
        model.save(tmp_path / "model.quadric")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_are_predicted_in_parts(
    model: QuadraticRegressor, suffix: str, tmp_path: Path
) -> None:
    frame = sales(100)
    frame.loc[50:, "code"] = "01"  # a part of which pandas would make numbers
    wanted = model.predict(frame.drop(columns="price"))
    source, out = tmp_path / f"sales{suffix}", tmp_path / f"out{suffix}"
    frame.to_csv(source, index=False) if suffix == ".csv" else frame.to_parquet(source)
    assert predict_file(model, source, out, rows=30) == 100
    made = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert list(made.columns) == [*frame.columns, "price_predicted", "price_low", "price_high"]
    np.testing.assert_allclose(made["price_predicted"], wanted, rtol=1e-12)
    low, high = model.predict_interval(frame.drop(columns="price")).T
    np.testing.assert_allclose(made["price_low"], low, rtol=1e-12)
    np.testing.assert_allclose(made["price_high"], high, rtol=1e-12)


def test_a_bad_cell_is_named_by_its_row_of_the_file(
    model: QuadraticRegressor, tmp_path: Path
) -> None:
    frame = sales(100)
    frame.loc[70, "paid"] = "a lot"
    frame.to_csv(tmp_path / "sales.csv", index=False)
    with pytest.raises(InputError, match=r"'paid' must hold numbers as in fit.* row 71 is 'a lot'"):
        predict_file(model, tmp_path / "sales.csv", tmp_path / "out.csv", rows=30)
    assert not (tmp_path / "out.csv").exists()


def test_the_command(
    model: QuadraticRegressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = sales(60)
    frame.to_csv("sales.csv", index=False)
    model.save("model.quadric")
    options = ("predict", "model.quadric", "sales.csv", "-o", "out.csv")
    found = quadric(*options, "--coverage", "0.8")
    assert found.exit_code == 0, found.output
    assert found.stdout.strip() == "out.csv: 60 rows"
    made = pd.read_csv("out.csv")
    assert (made["price_low"] < made["price_high"]).all()
    assert quadric(*options, "--coverage", "0.999").exit_code == 2
    frame.drop(columns="size").to_csv("sales.csv", index=False)
    found = quadric(*options)
    assert found.exit_code == 2
    assert "must have the columns of fit, but lacks ['size']" in found.output
    classifier = QuadraticClassifier((2,), max_iter=2, random_state=0)
    classifier.fit(frame[["size", "code"]], frame["garden"]).save("model.quadric")
    frame.to_csv("sales.csv", index=False)
    assert quadric(*options).exit_code == 0
    made = pd.read_csv("out.csv")
    assert list(made.columns[-3:]) == ["garden_predicted", "p(no)", "p(yes)"]
    np.testing.assert_allclose(made["p(no)"] + made["p(yes)"], 1)


@pytest.mark.parametrize("way", ["held out", "cross-fitted"])
def test_intervals_hold_their_share_of_new_targets(way: str) -> None:
    shares = []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        X = draw.normal(size=(4000, 2))
        y = X[:, 0] * X[:, 1] + draw.normal(size=4000)
        rows = 2000 if way == "held out" else 300
        model = QuadraticRegressor(
            (8,), members=1, max_iter=40, random_state=seed, solver="adam", learning_rate_init=0.02
        ).fit(X[:rows], y[:rows])
        if way == "cross-fitted":
            model.calibrate(X[:rows], y[:rows])
        low, high = model.predict_interval(X[rows:], coverage=0.9).T
        shares.append(((low <= y[rows:]) & (y[rows:] <= high)).mean())
    assert abs(np.mean(shares) - 0.9) < 0.02


def test_intervals_need_rows_that_were_held_out() -> None:
    X = np.arange(40.0)[:, None]
    model = QuadraticRegressor((2,), max_iter=1).fit(X, X[:, 0])
    with pytest.raises(InputError, match=r"at least 9 rows that were held out, got 0: call calib"):
        model.predict_interval(X)
    assert model.calibrate(X, X[:, 0]).predict_interval(X).shape == (40, 2)
    with pytest.raises(InputError, match=r"coverage must be a number > 0 and < 1, got 1\.5"):
        model.predict_interval(X, coverage=1.5)
