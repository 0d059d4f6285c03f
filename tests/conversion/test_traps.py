"""Models that trip a converter up: what they carry is kept, or a layer is left with a reason."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import quadric


def test_a_weight_that_changes_when_it_is_read_is_not_read() -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    before = copy.deepcopy(model.state_dict())
    assert quadric.convert_(model, head=True).names == ["1"]
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_sensitivity_runs_in_eval_mode() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    batches = [torch.randn(2, 5, 16)]
    scores = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = quadric.sensitivity(model, lambda m, x: m(x).square().mean(), batches)
        scores.append(dict(found))
    assert scores[0] == scores[1]
    assert all(module.training for module in model.modules())


class Overlapping(nn.Module):
    """Two buffers in one piece of memory, and one that cannot be written to."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 20), nn.Linear(20, 2)
        memory = torch.arange(6.0)
        self.register_buffer("whole", memory)
        self.register_buffer("part", memory[:3])
        self.register_buffer("wide", torch.zeros(1).expand(4) if fixed else torch.zeros(4))

    def forward(self, input: Tensor) -> Tensor:
        return self.b(self.a(input))


def test_overlapping_buffers_are_saved_and_a_failed_load_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    model = Overlapping(fixed=False)
    quadric.convert_(model)
    quadric.save(model, file)
    again = Overlapping(fixed=False)
    quadric.load_(again, file)
    torch.testing.assert_close(again.part, torch.arange(3.0))
    other = Overlapping(fixed=True)
    kept = copy.deepcopy(other.state_dict())
    with pytest.raises(RuntimeError):
        quadric.load_(other, file)
    assert type(other.a) is nn.Linear
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, kept[name])


def test_a_nan_in_tied_weights_is_no_difference(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        model[1].weight = model[0].weight
        return model

    model = tied()
    quadric.convert_(model)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    quadric.save(model, tmp_path / "m.safetensors")
    quadric.load_(tied(), tmp_path / "m.safetensors")
