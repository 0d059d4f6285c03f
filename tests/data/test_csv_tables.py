"""A user's table for training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from quadric.data import load
from quadric.data.tables import TableData
from quadric.data.user_dataset import UserDataset
from quadric.errors import InputError
from quadric.train import load as load_model
from quadric.train import run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    count = 200
    frame = pd.DataFrame(
        {
            "size": draw.normal(5e6, 3.0, count),
            "age": draw.uniform(0, 50, count),
            "town": draw.choice(["a", "b", "c"], count),
        }
    )
    frame["price"] = (frame["size"] - 5e6) * 2 + (frame.town == "b") + 100
    frame["sold"] = np.where(frame.age > 25, "yes", "no")
    frame.loc[:9, "age"] = np.nan
    frame.to_csv(tmp_path / "houses.csv", index=False)
    return tmp_path / "houses.csv"


def test_numbers_are_a_table(file: Path) -> None:
    data = load("csv:houses.csv", file.parent, target="price", drop=["sold"], seed=3)
    assert isinstance(data, TableData)
    assert (len(data.train_inputs), len(data.test_inputs)) == (160, 40)
    # Two numbers, the mark of a hole, three towns.
    assert data.num_inputs == 6
    assert {"size", "age", "town_a", "town_b", "town_c"} < set(data.input_names)
    assert data.train_inputs.dtype == torch.float32
    other = load("csv:houses.csv", file.parent, target="price", drop=["sold"], seed=4)
    assert isinstance(other, TableData)
    assert not torch.equal(data.test_targets, other.test_targets)


def test_classes_are_standardized_rows_with_labels(file: Path) -> None:
    data = load(f"csv:{file}", target="sold", test=0.25)
    assert isinstance(data, UserDataset)
    assert data.num_classes == 2
    inputs = data.train_samples.inputs
    assert len(inputs) == 150
    torch.testing.assert_close(inputs.mean(0), torch.zeros(inputs.shape[1]), atol=1e-4, rtol=0)
    # 5,000,000 with a deviation of 3: float32 would have rounded it away.
    column = inputs.std(0, correction=0)
    torch.testing.assert_close(column, torch.ones_like(column), atol=1e-3, rtol=0)
    assert len(inputs[:, 0].unique()) > 140


@pytest.mark.parametrize(("target", "metric"), [("price", "rmse"), ("sold", "accuracy")])
def test_a_table_is_trained_on(file: Path, target: str, metric: str) -> None:
    result = run(
        "law-lorentz",
        dataset="csv:houses.csv",
        data_dir=file.parent,
        dataset_options={"target": target},
        epochs=1,
        neuron="eigen",
        run_dir=file.parent / "run",
        progress=False,
    )
    assert result.metrics[metric] is not None
    assert load_model(result) is not None


def test_a_column_must_be_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"name the column of houses .*; the columns are .*price"):
        load(f"csv:{file}")
    with pytest.raises(InputError, match="no column 'cost' for --target"):
        load(f"csv:{file}", target="cost")
    with pytest.raises(InputError, match="unknown option 'colour' for data set"):
        load(f"csv:{file}", colour=1)
