"""Programs of torch.export, read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.exporting import export_torch
from tests.exporting.networks import small_cnn
from tests.networks import NETWORKS, curve_


def assert_same(path: Path, model: nn.Module, *inputs: Tensor) -> None:
    program = torch.export.load(path).module()
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neuron", ["shared", pytest.param("eigen", marks=pytest.mark.slow)])
def test_a_convolutional_network(neuron: str, tmp_path: Path) -> None:
    model = small_cnn(neuron).train()
    path = tmp_path / "model.pt2"
    report = export_torch(model, path, torch.zeros(1, 1, 8, 8))
    assert model.training
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    for batch in (1, 7):
        assert_same(path, model.eval(), torch.randn(batch, 1, 8, 8))
    assert report.format == "pt2"
    assert report.opset is None
    assert report.size == path.stat().st_size
    assert len(report.folding.folded) == 3
    assert "torch.export program" in str(report)
    assert "opset" not in report.to_dict()


def test_a_difference_fails_and_leaves_no_file(tmp_path: Path) -> None:
    class Unlike(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1.01 if torch.compiler.is_exporting() else x

    with pytest.raises(ValueError, match=r"but in torch\.export at batch size 1 they differ"):
        export_torch(Unlike(), tmp_path / "model.pt2", torch.zeros(1, 3))
    assert not list(tmp_path.iterdir())
    export_torch(Unlike(), tmp_path / "model.pt2", torch.zeros(1, 3), tolerance=0.1)


class Refuses(nn.Module):
    """Runs while it is exported, and not at every batch size afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and len(x) == 5:
            raise RuntimeError("not five")
        return x + 1


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must see example inputs, got none"):
        export_torch(nn.Linear(2, 2), tmp_path / "model.pt2")
    with pytest.raises(ValueError, match="example_inputs must run through the model"):
        export_torch(small_cnn(), tmp_path / "model.pt2", torch.zeros(1, 2, 8, 8))
    with pytest.raises(ValueError, match=r"one graph for torch\.export, got .* dynamic_batch"):
        export_torch(nn.Unflatten(0, (2, 1)), tmp_path / "model.pt2", torch.zeros(2, 3))
    with pytest.raises(
        ValueError, match="the model must run at batch size 5, got RuntimeError: no"
    ):
        export_torch(Refuses(), tmp_path / "model.pt2", torch.zeros(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_that_is_converted(name: str, tmp_path: Path) -> None:
    """Plain torch exports all of them: with shared layers, hooks, weights read by others."""
    build, make_inputs = NETWORKS[name]
    model, inputs = build().eval(), make_inputs()
    export_torch(model, tmp_path / "plain.pt2", inputs)
    quadric.convert_(model, rank=4)
    curve_(model, 0.02)
    assert export_torch(model, tmp_path / "model.pt2", inputs).difference < 1e-4
