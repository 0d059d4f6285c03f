"""The cost report: totals, depth, comparison, and how it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import quadric
from quadric import CostReport, cost, models

X32 = torch.zeros(1, 3, 32, 32)


def test_by_layer_at_a_depth() -> None:
    report = cost(models.create("resnet8", neuron="eigen"), X32)
    top = {row.name: row for row in report.by_layer(depth=1)}
    assert list(top) == ["conv1", "bn1", "layer1", "layer2", "layer3", "fc"]
    assert sum(row.macs for row in top.values()) == report.macs
    assert sum(row.params for row in top.values()) == report.params
    assert sum(row.quadratic_macs for row in top.values()) == report.quadratic_macs
    with pytest.raises(ValueError, match="depth must be >= 1, got 0"):
        report.by_layer(depth=0)


@pytest.fixture
def report() -> CostReport:
    return cost(nn.Sequential(quadric.QuadraticLinear(4, 10), nn.LayerNorm(10)), torch.zeros(2, 4))


def test_text(report: CostReport) -> None:
    assert str(report) == "\n".join(
        [
            "Sequential, input 2x4",
            "layer  type                     output  params  MACs  quadratic",
            "-----  -----------------------  ------  ------  ----  ---------",
            "0      QuadraticLinear (eigen)  2x10        59   116     31.03%",
            "1      LayerNorm                            20     0",
            "total                                       79   116     31.03%",
            "not counted: normalization: native_layer_norm, 20 elements",
        ]
    )


def test_markdown(report: CostReport) -> None:
    lines = report.to_markdown().split("\n")
    assert lines[2:7] == [
        "| layer | type | output | params | MACs | quadratic |",
        "|---|---|---|---:|---:|---:|",
        "| 0 | QuadraticLinear (eigen) | 2x10 | 59 | 116 | 31.03% |",
        "| 1 | LayerNorm |  | 20 | 0 |  |",
        "| total |  |  | 79 | 116 | 31.03% |",
    ]


def test_dict_and_json(report: CostReport, tmp_path: Any) -> None:
    values = report.to_dict()
    assert values["params"] == 79
    assert values["macs"] == 116
    assert values["layers"][0] == {
        "name": "0",
        "type": "QuadraticLinear",
        "neuron": "eigen",
        "output_shape": [2, 10],
        "params": 59,
        "macs": 116,
        "quadratic_macs": 36,
        "quadratic_share": 36 / 116,
        "calls": 1,
    }
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_compare(report: CostReport) -> None:
    other = cost(nn.Linear(4, 10), torch.zeros(2, 4))
    assert report.compare(other) == {
        "params": 79,
        "macs": 116,
        "params_ratio": 79 / 50,
        "macs_ratio": 116 / 80,
    }
    empty = cost(nn.ReLU(), torch.zeros(1))
    assert report.compare(empty)["macs_ratio"] is None
