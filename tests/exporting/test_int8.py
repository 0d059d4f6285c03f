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
from tests.networks import curve_

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


def test_stacks_of_matrices_have_one_scale(tmp_path: Path) -> None:
    """ONNX Runtime fails on one scale per output channel there, when the file runs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 96), nn.Linear(96, 10))
    quadric.convert_(model.eval())
    curve_(model, 0.05)
    calibration = [torch.randn(32, 1, 8, 8)]
    made = export_int8(
        model, tmp_path / "model.onnx", PICTURE, calibration=calibration, squares="int8"
    )
    assert made.difference < 0.1
    numbers = [onnx.numpy_helper.to_array(t) for t in onnx.load(str(made.path)).graph.initializer]
    (stack,) = (n for n in numbers if n.ndim == 3)
    assert stack.dtype == "int8"
    assert 32 < abs(stack.astype(int)).max() <= 64  # 7 bits, as all weights


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


X, Y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (small_cnn, {"calibration": []}, "calibration must hold at least one batch, got none"),
    (small_cnn, {"calibration": X}, "calibration must be batches, got one tensor"),
    (small_cnn, {"calibration": [(X, Y)]}, "calibration .* takes 1 input tensors, got 2: .*labels"),
    (small_cnn, {"calibration": [X[:, :, :4]]}, "invalid dimensions .* Got: 4 Expected: 8"),
    (small_cnn, {"calibration": [X.double()]}, r"tensor\(double\)\) , expected: \(tensor\(float"),
    (small_cnn, {"calibration": [X * float("nan")]}, "calibration must be finite"),
    (small_cnn, {"test": []}, "test must hold at least one batch"),
    (small_cnn, {"test": [(X, Y, Y)]}, "test must be a pair of inputs and a vector of class num"),
    (small_cnn, {"test": [(X, F.one_hot(Y, 10).float())]}, r"got \(torch.float32, \(4, 10\)\)"),
    (small_cnn, {"test": [(X, Y[:3])]}, "one label for each input, got 3 for 4"),
    (small_cnn, {"max_drop": float("nan")}, "max_drop must be >= 0, got nan"),
    (small_cnn, {"squares": "int4"}, "squares must be 'auto', 'int8' or 'float', got 'int4'"),
    (lambda: nn.Linear(3, 4), {}, "int8 is for convolutional networks, got Linear"),
    (lambda: small_cnn().double(), {}, r"made of float32 networks, got torch\.float64"),
    (lambda: 3, {}, r"model must be a torch\.nn\.Module, got int"),
]


@pytest.mark.parametrize(("build", "given", "message"), MISTAKES)
def test_mistakes(build: Any, given: dict[str, Any], message: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"calibration": [PICTURE], **given}
    with pytest.raises((ValueError, TypeError), match=message):
        export_int8(build(), tmp_path / "model.onnx", PICTURE, **options)
    assert not list(tmp_path.iterdir())
