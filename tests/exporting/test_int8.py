"""A trained network in int8: smaller, and as good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadric
from quadric import data
from quadric.exporting import Int8Report, export_int8
from quadric.exporting.int8 import square_nodes
from quadric.exporting.onnx_file import open_session, run_session
from tests.exporting.networks import small_cnn

Batches = list[tuple[Tensor, Tensor]]
PICTURE = torch.zeros(1, 1, 8, 8)


def digits() -> tuple[Batches, Batches]:
    found: Any = data.load("digits", augment=False)
    train = found.train_batches(64, seed=0, shuffle=True, augment=False)
    return list(train), list(found.test_batches(360))


@pytest.fixture(scope="module")
def trained() -> Any:
    torch.manual_seed(0)
    model = quadric.models.create("digits_cnn", neuron="eigen")
    optimizer = torch.optim.Adam(quadric.param_groups(model, 1e-2, quadratic_lr=1e-2))
    for _ in range(5):
        for x, y in digits()[0]:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def report(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Int8Report:
    train, test = digits()
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    return export_int8(trained, path, PICTURE, calibration=[x for x, _ in train[:5]], test=test)


def test_accuracy_before_and_after(trained: Any, report: Int8Report) -> None:
    _, test = digits()
    with torch.no_grad():
        right = sum(int((trained(x).argmax(1) == y).sum()) for x, y in test)
    count = sum(len(y) for _, y in test)
    assert report.float_accuracy == pytest.approx(right / count, abs=0.003)
    assert report.float_accuracy is not None
    assert report.int8_accuracy is not None
    assert report.float_accuracy > 0.9
    assert abs(report.int8_accuracy - report.float_accuracy) < 0.02
    assert report.calibrated_on == 320
    assert 0 < report.difference < 0.1


def test_the_file(report: Int8Report) -> None:
    assert [file.name for file in report.path.parent.iterdir()] == ["model.onnx"]
    assert report.size == report.path.stat().st_size
    assert report.size < 0.6 * report.float_report.size
    graph = onnx.load(str(report.path))
    assert {entry.domain for entry in graph.opset_import} == {""}
    assert any(node.op_type == "QuantizeLinear" for node in graph.graph.node)
    session = open_session(report.path)
    for batch in (1, 6):
        assert run_session(session, [torch.randn(batch, 1, 8, 8)])[0].shape == (batch, 10)


def test_the_report(report: Int8Report) -> None:
    facts = report.to_dict()
    assert facts["int8_accuracy"] == report.int8_accuracy
    assert facts["float"]["size"] == report.float_report.size
    assert f"squares in {report.squares}" in str(report)
    assert "test accuracy" in str(report)


def squares_of(path: Path) -> set[bool]:
    """For each product z * z in a file, whether it reads a dequantized number."""
    graph = onnx.load(str(path)).graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    products = [n for n in graph.node if n.op_type == "Mul" and n.input[0] == n.input[1]]
    assert products
    return {
        any(r.op_type == "QuantizeLinear" and p.output[0] in r.input for r in graph.node)
        and all(makers.get(name) == "DequantizeLinear" for name in p.input)
        for p in products
    }


@pytest.mark.parametrize("squares", ["int8", pytest.param("float", marks=pytest.mark.slow)])
def test_squares_on_request(squares: str, tmp_path: Path) -> None:
    made = export_int8(
        small_cnn(),
        tmp_path / "model.onnx",
        PICTURE,
        calibration=[torch.randn(16, 1, 8, 8)],
        squares=squares,
    )
    assert made.squares == squares
    assert squares_of(made.path) == {squares == "int8"}
    assert made.int8_accuracy is None
    assert "test accuracy" not in str(made)


def test_squares_that_int8_cannot_hold_stay_in_float(tmp_path: Path) -> None:
    """One feature is twelve times as large as the others, and its eigenvalue zero: a scale that
    fits its square leaves little for the squares that count."""
    model: Any = quadric.models.create("digits_cnn", neuron="eigen").eval()
    with torch.no_grad():
        model.conv1.eigenvalues.normal_(std=2.0)
        model.conv1.eigenvalues[0] = 0.0
        model.conv1.weight[1] *= 12
        model.conv2.weight[:, 1] /= 144
    made = export_int8(
        model, tmp_path / "model.onnx", PICTURE, calibration=[torch.randn(32, 1, 8, 8)]
    )
    assert made.squares == "float"
    assert squares_of(made.path) == {False}


def test_a_loss_of_accuracy_fails_and_leaves_no_file(trained: Any, tmp_path: Path) -> None:
    train, test = digits()
    wrong = [train[0][0] * 1e-3]  # ranges that cut everything off
    with pytest.raises(ValueError, match=r"may fall by 0\.020 at most, but fell from 0\.9"):
        export_int8(trained, tmp_path / "model.onnx", PICTURE, calibration=wrong, test=test)
    assert not list(tmp_path.iterdir())


def test_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match="calibration must hold at least one batch, got none"):
        export_int8(small_cnn(), path, PICTURE, calibration=[])
    with pytest.raises(ValueError, match="squares must be 'auto', 'int8' or 'float', got 'int4'"):
        export_int8(small_cnn(), path, PICTURE, calibration=[PICTURE], squares="int4")
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(ValueError, match="int8 is for convolutional networks, got Sequential"):
        export_int8(model, path, torch.zeros(1, 3), calibration=[torch.zeros(1, 3)])
    assert not list(tmp_path.iterdir())


def test_which_nodes_are_squares() -> None:
    def node(kind: str, inputs: list[str], output: str) -> Any:
        return onnx.helper.make_node(kind, inputs, [output], name=output)

    nodes = [
        node("Conv", ["x", "w"], "z"),
        node("Mul", ["z", "z"], "square"),
        node("Conv", ["square", "down"], "sums"),
        node("Conv", ["sums", "up"], "mixed"),
        node("Add", ["mixed", "z"], "y"),
        node("Mul", ["y", "gate"], "gated"),
        node("Mul", ["gated", "gated"], "energy"),
    ]
    graph = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], []))
    assert square_nodes(graph) == ["square", "sums", "mixed", "y", "energy"]


def _bad(kind: str) -> dict[str, Any]:
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    return {
        "labels": {"calibration": [(x, y)]},
        "one tensor": {"calibration": x},
        "shape": {"calibration": [x[:, :, :4]]},
        "dtype": {"calibration": [x.double()]},
        "nan": {"calibration": [x * float("nan")]},
        "no test": {"test": []},
        "no pair": {"test": [(x, y, y)]},
        "one-hot": {"test": [(x, F.one_hot(y, 10).float())]},
        "too few labels": {"test": [(x, y[:3])]},
        "drop": {"max_drop": float("nan")},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("labels", "batch 0 of calibration must be the 1 input tensors"),
        ("one tensor", "calibration must be batches, got one tensor"),
        ("shape", r"like the example input, .* got torch.float32 of shape \(4, 1, 4, 8\)"),
        ("dtype", "got torch.float64 of shape"),
        ("nan", "must be finite"),
        ("no test", "test must hold at least one batch"),
        ("no pair", "batch 0 of test must be a pair of inputs and labels"),
        ("one-hot", "must be a vector of 4 class numbers, got torch.float32"),
        ("too few labels", r"got torch.int64 of shape \(3,\)"),
        ("drop", "max_drop must be >= 0, got nan"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(kind: str, message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"calibration": [PICTURE], **_bad(kind)}
    with pytest.raises((ValueError, TypeError), match=message):
        export_int8(small_cnn(), tmp_path / "model.onnx", PICTURE, **given)
    assert not list(tmp_path.iterdir())


def test_only_float32_networks_of_torch(tmp_path: Path) -> None:
    model: Any = small_cnn().double()
    with pytest.raises(ValueError, match=r"made of float32 networks, got torch\.float64"):
        export_int8(model, tmp_path / "a.onnx", PICTURE.double(), calibration=[PICTURE.double()])
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        export_int8(3, tmp_path / "a.onnx", PICTURE, calibration=[PICTURE])  # type: ignore[arg-type]
