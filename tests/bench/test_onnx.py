"""Latency in ONNX Runtime: real files, really run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from quadric.bench import onnx as latency
from quadric.cli.app import app
from quadric.layers import QuadraticLayer

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SMALL = (
    latency.Network("small", latency._created("mlp", hidden=(20,)), (8,), (1, 2)),
    latency.Network("flat", latency._created("mlp"), (8,)),
)


def test_all_networks_are_there() -> None:
    """What the table in the docs is made of can be built with every neuron."""
    for network in latency.NETWORKS:
        for neuron, rank in latency.NEURONS.values():
            with torch.device("meta"):
                model = network.build(neuron, rank)
            layers = [m for m in model.modules() if isinstance(m, QuadraticLayer)]
            assert bool(layers) == (neuron != "linear")
            assert all(layer.rank == rank for layer in layers if rank is not None)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "NETWORKS", SMALL)
    short = latency.bench_onnx

    def quick(**options: object) -> latency.LatencyReport:
        return short(SMALL, seconds=0.05, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(latency, "bench_onnx", quick)
    file = tmp_path / "onnx.json"
    command = ["bench", "--onnx", "--rounds", "2", "--json", str(file)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    data = json.loads(file.read_text())
    names = set(latency.NEURONS)
    found: dict[tuple[str, int], set[str]] = {}
    for row in data["rows"]:
        found.setdefault((row["network"], row["batch"]), set()).add(row["neuron"])
        assert row["seconds"] > 0
        assert len(row["ratios"]) == 2
        if row["neuron"] == "linear":
            assert row["ratio"] == 1
    assert found == {("small", 1): names, ("small", 2): names, ("flat", 1): names}
    assert data["machine"]["cores"] >= 1
    assert data["versions"]["onnxruntime"]
    assert "eigen, rank 15" in result.output
    old = [*data["rows"], data["rows"][0] | {"neuron": "only the squares"}]
    header = latency.latency_summary(old, markdown=True).splitlines()[0]
    assert header == "| network | batch | linear | eigen | eigen, rank 15 | shared |"
