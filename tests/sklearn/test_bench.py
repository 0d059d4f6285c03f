"""The bench of fits: its ratios are those of its times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quadric import cli
from quadric.sklearn.bench import LIMITS, TableBench, bench_tables


def test_ratios() -> None:
    times = {"MLPRegressor": 2.0}
    for neuron in ("linear", "eigen", "shared"):
        times |= {neuron: 3.0, f"{neuron} one by one": 3.2, f"{neuron} together": 0.8}
    settings = {"rows": 1, "columns": 1, "hidden": [2], "batch_size": 1, "epochs": 1,
                "networks": 4, "repeats": 1, "dtype": "float32"}  # fmt: skip
    found = TableBench(times, dict(times), settings)
    assert {row["ratio"] for row in found.rows()} == {1.5}
    assert {row["speedup"] for row in found.rows()} == {4.0}
    assert "4.00 x faster" in str(found)


def test_every_case_runs_in_turn() -> None:
    ticks: list[int] = []
    found = bench_tables(
        rows=60, hidden=(4,), epochs=1, networks=2, repeats=1, tick=lambda: ticks.append(1)
    )
    assert len(ticks) == 2 * (1 + 3 * 3)
    assert set(found.seconds) == set(found.cpu_seconds)
    assert all(value > 0 for value in found.seconds.values())


def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(
        cli.app, ["bench", "--tables", "--rows", "60", "--repeats", "1", "--json", str(file)]
    )
    assert result.exit_code == 0, result.output
    assert "MLPRegressor" in result.stdout
    found = json.loads(file.read_text())
    assert [row["neuron"] for row in found["rows"]] == ["linear", "eigen", "shared"]
    assert found["settings"]["rows"] == 60


@pytest.mark.slow
def test_fits_keep_their_limits() -> None:
    found = bench_tables(repeats=5)
    for row in found.rows():
        # Processor time: other programs on the machine count less in it.
        assert row["cpu_ratio"] <= LIMITS[row["neuron"]]
        assert row["speedup"] >= 1
