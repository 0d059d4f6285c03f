"""Latency in ONNX Runtime: real files, really run, beside bounds that hold less than they do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from quadric.exporting.bounds import PARTS, reduced
from typer.testing import CliRunner

import quadric
from quadric.bench import onnx as latency
from quadric.cli.app import app
from quadric.nn import QuadraticLayer

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SMALL = (
    latency.Network("small", latency._created("resnet8"), (3, 32, 32), (1, 2)),
    latency.Network("flat", latency._created("mlp"), (8,)),
)


def kinds(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(file).graph.node)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    model = latency._quadratic("eigen", SMALL[0].build)
    quadric.export_onnx(model, tmp_path / "eigen.onnx", torch.randn(1, 3, 32, 32))
    return tmp_path / "eigen.onnx"


@pytest.mark.parametrize("part", PARTS)
def test_a_bound_holds_one_part_of_the_squares(exported: Path, part: str, tmp_path: Path) -> None:
    import onnxruntime

    assert reduced(exported, tmp_path / "part.onnx", part)
    before, after = kinds(exported), kinds(tmp_path / "part.onnx")
    squares = before["Mul"]
    assert squares == 7  # one for each convolution of a network of eight layers
    mixing = before["Conv"] - squares
    assert mixing == squares + 2  # the two with the most channels mix them in two steps
    assert after["Mul"] == (squares if part == "squares" else 0)
    assert after["Conv"] == before["Conv"] - (mixing if part == "squares" else 0)
    assert after["Add"] == before["Add"] - squares
    session = onnxruntime.InferenceSession(tmp_path / "part.onnx")
    (out,) = session.run(None, {session.get_inputs()[0].name: torch.randn(2, 3, 32, 32).numpy()})
    assert out.shape == (2, 10)


@pytest.mark.parametrize(("hidden", "products"), [((48, 48), 1), ((64, 64), 2)])
@pytest.mark.parametrize("part", PARTS)
def test_a_bound_of_dense_layers(
    hidden: tuple[int, ...], products: int, part: str, tmp_path: Path
) -> None:
    import onnxruntime

    model = latency._quadratic("eigen", latency._created("mlp", in_features=8, hidden=hidden))
    quadric.export_onnx(model, tmp_path / "eigen.onnx", torch.randn(1, 8))
    assert reduced(tmp_path / "eigen.onnx", tmp_path / "part.onnx", part)
    before, after = kinds(tmp_path / "eigen.onnx"), kinds(tmp_path / "part.onnx")
    assert before["Mul"] == 2
    assert before["Gemm"] + before["MatMul"] == 3 + 2 * products
    assert after["Mul"] == (2 if part == "squares" else 0)
    assert after["Gemm"] + after["MatMul"] == 3 + (0 if part == "squares" else 2 * products)
    session = onnxruntime.InferenceSession(tmp_path / "part.onnx")
    (out,) = session.run(None, {session.get_inputs()[0].name: torch.randn(2, 8).numpy()})
    assert out.shape == (2, 1)


def test_there_is_no_bound_of_a_linear_network(tmp_path: Path) -> None:
    model = latency._quadratic("linear", SMALL[0].build)
    quadric.export_onnx(model, tmp_path / "linear.onnx", torch.randn(1, 3, 32, 32))
    assert not reduced(tmp_path / "linear.onnx", tmp_path / "part.onnx", "squares")


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
    bounded = names | set(PARTS.values())
    assert found == {("small", 1): bounded, ("small", 2): bounded, ("flat", 1): bounded}
    assert data["machine"]["cores"] >= 1
    assert data["versions"]["onnxruntime"]
    assert "only the squares" in result.output
    assert latency.latency_summary(data["rows"], markdown=True).startswith("| network | batch |")
