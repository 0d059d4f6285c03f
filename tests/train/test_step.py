"""A training step: it computes what a plain loop computes, in the layout that is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from quadric.train.data import load_data
from quadric.train.network import build_network, memory_format
from quadric.train.runner import PlannedRun, plan_run, train
from quadric.train.step import TrainingModule
from tests.train.small import pictures

DATA = pictures((3, 8, 8), 4, train=48, test=8)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def picture_run(folder: Path, **overrides: Any) -> PlannedRun:
    options = {"epochs": 1, "milestones": [1], "batch_size": 16, "model": "resnet8"}
    options |= {"channels": [4, 8, 16], "lr": 0.01, "neuron": "shared"}
    return plan_run("cifar10-resnet20", options | overrides, run_dir=folder)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def layouts(network: nn.Module) -> list[bool]:
    """Of the weights whose layout shows: not those of 1x1 kernels or of one channel."""
    weights = [p for p in network.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    assert weights
    return [is_channels_last(weight) for weight in weights]


@pytest.mark.parametrize(
    ("choice", "last"), [("auto", True), ("channels_last", True), ("contiguous", False)]
)
def test_weights_batches_and_activations_have_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, last: bool
) -> None:
    seen: list[bool] = []
    step = TrainingModule.training_step

    def watched(self: TrainingModule, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        seen.append(is_channels_last(batch[0]))
        seen.extend(layouts(self.network))
        return step(self, batch, batch_idx)

    def forward(self: TrainingModule, inputs: Tensor) -> Tensor:
        seen.extend(is_channels_last(self.network.get_submodule("conv1")(i)) for i in [inputs])
        return self.network(inputs)

    monkeypatch.setattr(TrainingModule, "training_step", watched)
    monkeypatch.setattr(TrainingModule, "forward", forward)
    run = picture_run(tmp_path / "run", memory_format=choice)
    assert train(run, data=DATA) is not None
    assert set(seen) == {last}
    assert len(seen) > 3 * 8


def test_a_recipe_computes_what_a_plain_loop_computes(tmp_path: Path) -> None:
    run = picture_run(tmp_path / "run", neuron="linear", weight_decay=1e-4)
    data = load_data(run.recipe, DATA)
    network = build_network(run.recipe, data)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9, weight_decay=1e-4)
    for inputs, targets in data.train(0, 1):
        loss = F.cross_entropy(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert train(run, data=DATA) is not None
    trained = load_file(run.directory.weights_file)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "device", "last"),
    [
        ({}, CPU, True),
        ({"memory_format": "contiguous"}, CPU, False),
        ({}, CUDA, False),
        ({"precision": "16-mixed"}, CUDA, True),
        ({"precision": "bf16-mixed"}, CUDA, True),
        ({"memory_format": "channels_last"}, CUDA, True),
        ({"strategy": "fsdp"}, CPU, False),
        ({"precision": "bf16-mixed"}, torch.device("mps"), False),
    ],
)
def test_the_layout_depends_on_device_and_precision(
    tmp_path: Path, overrides: dict[str, Any], device: torch.device, last: bool
) -> None:
    recipe = picture_run(tmp_path, **overrides).recipe
    network = build_network(recipe, load_data(recipe, DATA))
    expected = torch.channels_last if last else torch.contiguous_format
    assert memory_format(recipe, network, device) == expected
