"""The tool behind the tables of times: which cases it holds, and what is read off."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from quadric.bench import Case
from quadric.layers import QuadraticLayer
from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_tool("speed", monkeypatch)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_the_suite_compiles_only_the_image_network(tool: ModuleType) -> None:
    paths = ("plain", "kernels", "compiled")
    cases = tool.suite_cases(paths, "resnet8", batch=2, sentences=1, shapes=((4, 5, 2),))
    assert len({case.name for case in cases}) == len(cases)
    timed = [(c.group.split(",")[0], c.path) for c in cases if c.neuron == "eigen"]
    assert list(dict.fromkeys(timed)) == [
        *(("resnet8", path) for path in paths),
        *(
            (name, path)
            for name in ("transformer", "perceptron", "helmholtz")
            for path in paths[:2]
        ),
        ("conv 4x5x5", "kernels"),
    ]
    again = {(c.group.split(",")[0], c.neuron) for c in cases if c.neuron.endswith("recompute")}
    networks = ("resnet8", "shared"), ("transformer", "eigen"), ("transformer", "shared")
    assert again == {(name, f"{neuron}, recompute") for name, neuron in networks}


def test_steps_of_small_networks(tool: ModuleType) -> None:
    """One step of Adam changes the weights; the equation's gradients are those of its loss."""
    for case in tool.suite_cases(("plain",), "resnet8", 2, 1, ((4, 5, 2),)):
        kind = case.group.partition(",")[0]
        if kind not in ("perceptron", "helmholtz"):
            continue
        case.training_step()  # the first batch sets the scale of the eigenvalues
        case.module.zero_grad()
        before = [p.detach().clone() for p in case.module.parameters()]
        case.training_step()
        after = list(case.module.parameters())
        assert all(p.grad is not None and bool(p.grad.any()) for p in after)
        moved = [not torch.equal(p, b) for p, b in zip(after, before, strict=True)]
        assert all(moved) if kind == "perceptron" else not any(moved)
        if kind == "helmholtz":
            torch.testing.assert_close(after[-1].grad, bias_gradient(case), rtol=1e-3, atol=1e-6)


def bias_gradient(case: Case) -> torch.Tensor:
    """Of the mean of (u_xx + u_yy + 4 u)^2 with respect to the last bias: 8 times the mean."""
    (points,) = case.inputs

    def u(point: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = case.module(point[None])[0, 0]
        return out

    hessians = torch.func.vmap(torch.func.hessian(u))(points.detach())
    residual = hessians.diagonal(dim1=1, dim2=2).sum(1) + 4 * case.module(points)[:, 0]
    return 8 * residual.mean().detach()[None]


def test_a_summary_takes_the_better_format_of_each(tool: ModuleType) -> None:
    row = {"group": "net", "neuron": "eigen", "path": "kernels", "dtype": "float32"}
    slow = {"training": 1.5, "inference": 1.1, "training_turns": 1.6, "inference_turns": 1.3}
    fast = {"training": 1.2, "inference": 1.4, "training_turns": 1.25, "inference_turns": 1.5}
    rows = [{**row, "format": "nchw", **slow}, {**row, "format": "channels_last", **fast}]
    assert tool.summary(rows).splitlines()[2] == "| net | kernels | 1.25 / 1.30 (1.20 / 1.10) |  |"


def measured(tool: ModuleType, tmp_path: Path, *words: str) -> Any:
    file = tmp_path / "out.json"
    tool.main([*words, "--out", str(file), "--rounds", "2", "--repeats", "1"])
    return json.loads(file.read_text(encoding="utf-8"))


def test_ranks(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "AT_LEAST", 0.0)
    words = ["--ranks", "1", "3", "--shape", "4", "4", "1", "--plot", str(tmp_path / "ranks.png")]
    rows = measured(tool, tmp_path, "ranks", *words)["rows"]
    assert [row["rank"] for row in rows] == [None, 1, 3, 1, 3]
    assert (tmp_path / "ranks.png").stat().st_size > 1000


@pytest.mark.slow
def test_networks_are_exported_and_timed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    for _, build, _, _ in tool.NETWORKS:
        for neuron, rank in tool.EXPORTED.values():
            with torch.device("meta"):
                model = build(neuron, rank)
            layers = [m for m in model.modules() if isinstance(m, QuadraticLayer)]
            assert bool(layers) == (neuron != "linear")
            assert all(layer.rank == rank for layer in layers if rank is not None)
    small = ("small", tool.created("mlp", hidden=(20,)), (8,), (1, 2))
    monkeypatch.setattr(tool, "NETWORKS", [small])
    data = measured(tool, tmp_path, "onnx", "--seconds", "0.05")
    timed = [(row["batch"], row["neuron"]) for row in data["rows"]]
    assert timed == [(batch, name) for batch in (1, 2) for name in tool.EXPORTED]
    assert all(row["seconds"] > 0 and len(row["ratios"]) == 2 for row in data["rows"])
    assert data["versions"]["onnxruntime"]
    header = tool.latency_summary(data["rows"]).splitlines()[0]
    assert header == "| network | batch | linear | eigen | eigen, rank 15 | shared |"


def test_fits_of_tables(tool: ModuleType, tmp_path: Path) -> None:
    data = measured(tool, tmp_path, "tables", "--rows", "60", "--networks", "2")
    assert [row["neuron"] for row in data["rows"]] == ["linear", "eigen", "shared"]
    for row in data["rows"]:
        assert row["ratio"] == row["seconds"] / data["seconds"]["MLPRegressor"]
    assert set(data["seconds"]) >= {"shared", "shared together", "shared one by one"}
