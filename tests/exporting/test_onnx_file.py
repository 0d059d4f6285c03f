"""Real files in real ONNX Runtime sessions."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.errors import FileError
from quadric.exporting import export_onnx
from quadric.exporting.int8 import square_nodes
from quadric.exporting.onnx_file import OPSET
from tests.exporting.networks import encoder, quadratic_layers, small_cnn, trained_
from tests.networks import assert_untouched, snapshot

PICTURE = torch.zeros(1, 1, 8, 8)


def run(path: Path, *inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    given = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


def assert_same(path: Path, model: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(run(path, *inputs), model(*inputs), rtol=1e-3, atol=1e-4)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "neuron", ["eigen", "shared", pytest.param("linear", marks=pytest.mark.slow)]
)
def test_a_convolutional_network(neuron: str, tmp_path: Path) -> None:
    model = small_cnn(neuron)
    path = tmp_path / "model.onnx"
    report = quadric.export_onnx(model, path, PICTURE)
    assert files_in(tmp_path) == ["model.onnx"]
    for batch in (1, 4, 9):
        assert_same(path, model, torch.randn(batch, 1, 8, 8))
    assert 0 < report.difference < 1e-5
    assert report.size == path.stat().st_size
    assert len(report.folding.folded) == 3
    assert report.operators["Relu"] == 3
    # The graph: a product, a convolution and an addition more for each quadratic layer.
    quadratic = len(quadratic_layers(model))
    assert quadratic == (0 if neuron == "linear" else 3)
    assert sum(report.operators.values()) == 9 + 3 * quadratic
    assert report.operators["Conv"] == 3 + quadratic


def test_the_file_is_standard_onnx_of_the_stated_opset(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    report = export_onnx(
        small_cnn("square"),
        path,
        PICTURE,
        input_names=["picture"],
        output_names=["scores"],
        batch_sizes=[3],
    )
    graph = onnx.load(str(path))
    assert {entry.domain: entry.version for entry in graph.opset_import} == {"": OPSET}
    assert report.opset == OPSET
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    assert [value.name for value in graph.graph.input] == ["picture"]
    assert [value.name for value in graph.graph.output] == ["scores"]
    batch = graph.graph.input[0].type.tensor_type.shape.dim[0]
    assert batch.dim_param == "batch"
    assert not any(node.metadata_props for node in graph.graph.node)
    facts = report.to_dict()
    assert facts["path"] == str(path)
    assert (facts["folded"], facts["kept"], facts["batch_sizes"]) == (3, {}, (3,))
    assert "opset 20" in str(report)
    assert "3 BatchNorm folded" in str(report)


@pytest.mark.parametrize("batch_first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_transformer_encoder(batch_first: bool, tmp_path: Path) -> None:
    model = encoder(batch_first=batch_first)
    assert len(quadratic_layers(model)) == 6
    path = tmp_path / "model.onnx"
    shape = (2, 5, 16) if batch_first else (5, 2, 16)
    report = export_onnx(model, path, torch.randn(shape), batch_dim=0 if batch_first else 1)
    for batch in (1, 3):
        assert_same(path, model, torch.randn((batch, 5, 16) if batch_first else (5, batch, 16)))
    assert report.difference < 1e-5


@pytest.mark.parametrize(
    "neuron", ["fan", "glu", "cross", pytest.param("general", marks=pytest.mark.slow)]
)
def test_any_neuron(neuron: str, tmp_path: Path) -> None:
    layer = quadric.make_layer(nn.Conv2d, 1, 6, 3, neuron=neuron)
    model = trained_(nn.Sequential(layer, nn.BatchNorm2d(6)))
    path = tmp_path / "model.onnx"
    report = export_onnx(model, path, PICTURE)
    assert_same(path, model, torch.randn(3, 1, 8, 8))
    assert list(report.folding.kept) == ["1"]


def test_a_wide_dense_layer(tmp_path: Path) -> None:
    layer = trained_(quadric.QuadraticLinear(3, 333))
    report = export_onnx(layer, tmp_path / "layer.onnx", torch.zeros(2, 5, 3))
    for batch in (1, 4):
        assert_same(tmp_path / "layer.onnx", layer, torch.randn(batch, 5, 3))
    # The bias is added in the product, and one more product makes all sums of squares.
    assert report.operators["Gemm"] == report.operators["MatMul"] == report.operators["Mul"] == 1
    assert report.operators["Slice"] == 1
    graph = onnx.load(str(tmp_path / "layer.onnx"))
    found = [node.op_type for node in graph.graph.node if node.name in square_nodes(graph)]
    assert [found[0], found[-1]] == ["Mul", "Add"]
    assert "MatMul" in found


def test_several_inputs_and_integers(tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 6)
            self.layer = quadric.QuadraticLinear(6, 12, rank=2)

        def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
            return self.layer(self.embedding(ids)).mean(1) * scale

    model = trained_(Tagger())
    path = tmp_path / "model.onnx"
    export_onnx(model, path, torch.tensor([[1, 2, 9]]), torch.ones(1, 1))
    assert_same(path, model, torch.randint(10, (4, 3)), torch.randn(4, 1))


def test_a_fixed_batch(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        """Takes two rows, no more."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = quadric.QuadraticLinear(4, 6, rank=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.reshape(2, 4)).sum(0)

    model = trained_(Fixed())
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match="dynamic_batch=False"):
        export_onnx(model, path, torch.randn(2, 4))
    assert files_in(tmp_path) == []
    report = export_onnx(model, path, torch.randn(2, 4), dynamic_batch=False)
    assert report.batch_sizes == (2,)
    assert_same(path, model, torch.randn(2, 4))


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    model = small_cnn().train()
    before, state = snapshot(model), torch.get_rng_state()
    report = export_onnx(model, tmp_path / "model.onnx", PICTURE, fold=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert_untouched(model, before)
    # Without folding the file has its BatchNorms.
    assert not report.folding.folded
    assert report.operators["BatchNormalization"] == 3
    assert_same(tmp_path / "model.onnx", model.eval(), torch.randn(3, 1, 8, 8))


def test_a_compiled_model_is_exported_as_what_is_inside(tmp_path: Path) -> None:
    model = trained_(nn.Sequential(quadric.QuadraticLinear(3, 4)))
    compiled: Any = torch.compile(model, backend="eager")
    export_onnx(compiled, tmp_path / "model.onnx", torch.zeros(1, 3))
    assert_same(tmp_path / "model.onnx", model, torch.randn(3, 3))


class Unlike(nn.Module):
    """Computes something else while it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = quadric.QuadraticLinear(3, 4, rank=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out * 1.01 if torch.compiler.is_exporting() else out


def test_a_difference_fails_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("an older file")
    with pytest.raises(ValueError, match=r"computes, but in ONNX Runtime .* no file was written"):
        export_onnx(Unlike(), path, torch.zeros(1, 3))
    assert files_in(tmp_path) == ["model.onnx"]
    assert path.read_text() == "an older file"


class Cut(nn.Module):
    """Depends on values: traced it would be a constant, and look right for the examples."""

    def forward(self, x: Tensor) -> Tensor:
        return x[: int(x.sum().item())]


class Even(nn.Module):
    """Takes even batches alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1) if len(x) == 4 else x


class ReadsWhatIsNotThere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.no_such_layer.weight.dtype) if torch.compiler.is_exporting() else x


class Eigenvalues(nn.Module):
    """An operator that ONNX has not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x.unsqueeze(1) * x.unsqueeze(2))


GRAPH = r"must be one graph for torch\.export, got "


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Cut(), GRAPH + ".*: rewrite that part of it$"),
        (Even(), GRAPH + ".* depends on the batch size: export it with dynamic_batch=False$"),
        (ReadsWhatIsNotThere(), GRAPH + "AttributeError: .*no_such_layer.*rewrite that part of it"),
        (Eigenvalues(), "must consist of operators that ONNX has, got .*eigh.*: replace that part"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refused_export_says_why_and_nothing_else(
    model: nn.Module, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        export_onnx(model, tmp_path / "model.onnx", torch.ones(4, 3))
    assert files_in(tmp_path) == []
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1  # torch's own is not shown before it
    assert shown.splitlines()[-1] == f"quadric.errors.InputError: {caught.value}"
    assert capfd.readouterr() == ("", "")


LINEAR, X = nn.Linear(3, 4), torch.zeros(2, 3)
MISTAKES: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    ("model", (X,), {}, r"model must be a torch\.nn\.Module, got str"),
    (LINEAR, (), {}, "must see example inputs, got none"),
    (LINEAR, ([1, 2],), {}, "example inputs must be tensors, got list"),
    (LINEAR, (X,), {"batch_dim": 2}, "batch_dim must be a dimension of every input, got 2"),
    (LINEAR, (X,), {"batch_sizes": [0]}, r"batch_sizes must be numbers >= 1, got \[0\]"),
    (LINEAR, (X, torch.zeros(3, 3)), {}, r"one batch size >= 1, got \[2, 3\]"),
    (LINEAR, (X,), {"input_names": ["a", "b"]}, "input_names must be one for each of 1 inputs"),
    (LINEAR, (X,), {"opset": 99}, "opset must be from 1 to .*, got 99"),
    (small_cnn(), (PICTURE,), {"opset": 14}, "opset 14 cannot be written, got 18 from torch"),
    (nn.Linear(3, 4, device="meta"), (X,), {}, "got 'weight' on the meta device"),
    (nn.Linear(3, 4).bfloat16(), (X.bfloat16(),), {}, "export the bfloat16 model in float32"),
]


@pytest.mark.parametrize(("model", "inputs", "options", "message"), MISTAKES)
def test_mistakes(
    model: Any,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        export_onnx(model, tmp_path / "model.onnx", *inputs, **options)
    assert files_in(tmp_path) == []
    assert not [r for r in caplog.records if r.levelname != "DEBUG"]  # it is said once


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"the folder of .* must exist"):
        export_onnx(LINEAR, tmp_path / "none" / "model.onnx", X)
    with pytest.raises(FileError, match="path must be a file, got the folder"):
        export_onnx(LINEAR, tmp_path, X)
    assert files_in(tmp_path) == []


class Logarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 20)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.linear(input.log())
        return out


def test_examples_stay_where_the_model_is_defined(tmp_path: Path) -> None:
    """Noise would make some of them negative."""
    path, model = tmp_path / "model.onnx", Logarithm().eval()
    export_onnx(model, path, torch.rand(1, 3) + 0.1)
    assert_same(path, model, torch.rand(4, 3) + 0.1)
    with pytest.raises(ValueError, match="must give numbers on the example inputs"):
        export_onnx(model, tmp_path / "none.onnx", -torch.rand(1, 3))
    assert not (tmp_path / "none.onnx").exists()


def test_weights_beside_a_very_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quadric.exporting.onnx_file.LARGE", 1000)
    model = trained_(nn.Sequential(quadric.QuadraticLinear(30, 40), nn.Linear(40, 3)))
    path = tmp_path / "model.onnx"
    report = export_onnx(model, path, torch.zeros(1, 30))
    assert files_in(tmp_path) == ["model.onnx", "model.onnx.data"]
    assert report.size == sum(f.stat().st_size for f in tmp_path.iterdir())
    assert_same(path, model, torch.randn(3, 30))
