"""A translation run as ONNX files, run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import quadric.train
from quadric.exporting.step_files import OnnxNetwork, StepFiles
from quadric.layers import QuadraticLayer
from quadric.train.translation import Translator
from tests.command_line import assert_mistake, output
from tests.command_line import quadric as command
from tests.data.text.small import pair
from tests.train.test_translation import SMALL, trained

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    tmp_path = tmp_path_factory.mktemp("translation")
    # More than 64 outputs: layers then multiply group by group.
    options = {"model_options": {**SMALL, "model_width": 80}, "neuron": "eigen", "epochs": 15}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
        trained(tmp_path, **options, quadratic_lr=0.01, lr=0.01, average=1)
        yield tmp_path / "run"


def test_onnx_runtime_gives_the_same_text(run: Path) -> None:
    ours = quadric.train.translator(run)
    layers = [m for m in ours.network.modules() if isinstance(m, QuadraticLayer)]
    assert min(float(m.eigenvalues.detach().abs().max()) for m in layers) > 1e-3
    said = output("export", run, "-o", run.parent / "model.onnx")
    assert "model-encoder.onnx" in said
    theirs = Translator(OnnxNetwork(StepFiles.beside(run.parent / "model.onnx")), ours.tokenizer)
    lines = [pair(i)[0] for i in range(600, 650)]
    expected = ours.translate(lines)
    assert len(set(expected)) > 10
    assert theirs.translate(lines) == expected
    assert (run.parent / "model-tokenizer.model").read_bytes() == ours.tokenizer.content


def test_formats_that_do_not_fit(run: Path) -> None:
    assert_mistake(command("export", run, "-o", run.parent / "m.pt2"), "is written as .onnx")
    assert_mistake(
        command("export", run, "-o", run.parent / "m.onnx", "--int8"), "int8 is for convolutional"
    )
