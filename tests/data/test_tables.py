from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quadric.data import TableData


def table(**changes) -> TableData:
    whole = TableData(
        "toy",
        torch.randn(50, 3, dtype=torch.float64) * 4 + 7,
        torch.randn(50, 1, dtype=torch.float64) * 9 - 2,
        torch.randn(5, 3, dtype=torch.float64) + 100,
        torch.randn(5, 1, dtype=torch.float64),
        ("a", "b", "c"),
        "y",
    )
    return replace(whole, **changes)


def test_standardization_sees_the_training_part_alone() -> None:
    data = table()
    assert data.num_inputs == 3
    assert data.train_size == 50
    standard = data.standardization()
    for values in (standard.inputs(data.train_inputs), standard.targets(data.train_targets)):
        torch.testing.assert_close(values.mean(0), torch.zeros_like(values[0]))
        torch.testing.assert_close((values**2).mean(0), torch.ones_like(values[0]))
    torch.testing.assert_close(
        standard.inputs(data.test_inputs),
        (data.test_inputs - standard.input_mean) / standard.input_std,
    )
    back = standard.restore_targets(standard.targets(data.test_targets))
    torch.testing.assert_close(back, data.test_targets)


def test_a_constant_column_stays_finite() -> None:
    data = table()
    data.train_inputs[:, 1] = 0.1
    standard = data.standardization()
    assert standard.input_std[1] == 1
    torch.testing.assert_close(
        standard.inputs(data.train_inputs)[:, 1], torch.zeros(50, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_inputs": torch.zeros(50, 2)}, r"train_inputs must be a tensor \(N, 3\)"),
        ({"test_targets": torch.zeros(5)}, r"test_targets must be a tensor \(5, 1\), got \(5,\)"),
        (
            {"train_inputs": torch.zeros(0, 3), "train_targets": torch.zeros(0, 1)},
            "table 'toy' has no training rows",
        ),
    ],
)
def test_bad_tables(changes: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        table(**changes)
