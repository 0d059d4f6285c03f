"""The bench of fits: its ratios are those of its times, and its cases do the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from quadric.bench.tables import LIMITS, TableBench, bench_tables
from quadric.cli.app import app
from quadric.tables.adam import FlatAdam


def test_ratios() -> None:
    times = {"MLPRegressor": 2.0}
    for neuron in ("linear", "eigen", "shared"):
        times |= {neuron: 3.0, f"{neuron} one by one": 3.2, f"{neuron} together": 0.8}
    settings = {"rows": 1, "columns": 1, "hidden": [2], "batch_size": 1, "epochs": 1,
                "networks": 4, "repeats": 1, "dtype": "float32"}  # fmt: skip
    found = TableBench(times, settings, {}, {})
    assert {row["ratio"] for row in found.rows()} == {1.5}
    assert {row["speedup"] for row in found.rows()} == {4.0}
    assert "4.00 x faster" in str(found)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of networks of every optimizer step that is made."""
    made: list[int] = []
    step = FlatAdam.step

    def counted(self: FlatAdam, rate: float = 1.0) -> None:
        made.append(len(next(iter(self.parameters.values()))))
        step(self, rate)

    monkeypatch.setattr(FlatAdam, "step", counted)
    return made


def test_every_case_does_the_same_work(steps: list[int]) -> None:
    ticks: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # one stack for all networks
    try:
        found = bench_tables(
            rows=450, hidden=(6,), epochs=2, networks=3, repeats=1, tick=lambda: ticks.append(1)
        )
    finally:
        torch.set_num_threads(before)
    assert len(ticks) == 2 * (1 + 3 * 3)
    assert set(found.seconds) == set(found.losses)
    assert all(value > 0 for value in found.seconds.values())
    # 450 rows are three minibatches of 200. Together three networks make as many steps as one.
    each = 2 * 3
    assert steps.count(3) == 2 * len(LIMITS) * each
    assert steps.count(1) == 2 * len(LIMITS) * (1 + 3) * each
    assert len(steps) == steps.count(1) + steps.count(3)
    # A stack ends where its networks end one by one, and nobody stopped early.
    for neuron in LIMITS:
        alone, together = found.losses[f"{neuron} one by one"], found.losses[f"{neuron} together"]
        assert len(together) == 3
        assert len(set(together)) == 3
        assert together == pytest.approx(alone, rel=1e-4)
        assert found.losses[neuron] == alone[:1]
    assert found.epochs == {name: 2 for name in found.seconds}


def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(
        app, ["bench", "--tables", "--rows", "60", "--repeats", "1", "--json", str(file)]
    )
    assert result.exit_code == 0, result.output
    assert "MLPRegressor" in result.stdout
    found = json.loads(file.read_text())
    assert [row["neuron"] for row in found["rows"]] == ["linear", "eigen", "shared"]
    assert found["settings"]["rows"] == 60
    assert len(found["losses"]["eigen together"]) == 15
