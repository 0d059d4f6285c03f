"""Training does not depend on the device: a step runs where the batch and the weights are.

A GPU is not needed to see that. On the meta device torch refuses, as on a GPU, to mix tensors of
two devices; and whatever waits for a value fails there at once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quadric.train.data import load_data
from quadric.train.evaluation import move
from quadric.train.network import build_network, device_of
from quadric.train.runner import plan_run
from quadric.train.step import TrainingModule
from tests.train.small import LAW, pictures

META = torch.device("meta")


def module(name: str, **fields: Any) -> TrainingModule:
    recipe = plan_run(name, fields).recipe
    data = load_data(recipe, pictures((3, 8, 8), 7, 32, 8) if "cifar" in name else None)
    return TrainingModule(build_network(recipe, data), data, recipe)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cifar10-resnet20", {"neuron": "eigen", "model": "resnet8", "batch_size": 16}),
        ("cifar10-resnet20", {"neuron": "shared", "model": "resnet8", "batch_size": 16}),
        ("law-lorentz", {"neuron": "shared", **LAW}),
        ("law-lorentz", {"neuron": "fan", **LAW}),
    ],
)
def test_a_step_runs_on_the_device_of_its_batch(name: str, fields: dict[str, Any]) -> None:
    found = module(name, **fields).to(META)
    found.train_sums = found.task.zeros(META)
    optimizer = torch.optim.SGD(found.network.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = move(next(iter(found.data.train(0, 1))), META, None)
    for _ in range(2):
        # The first step of 50 looks at the loss, which meta has not; the others wait for nothing.
        loss = found.training_step((inputs, targets), 1)
        assert loss.device == META
        loss.backward()
        optimizer.step()
    assert found.train_sums.device == META
    found.eval()
    found.eval_sums = found.task.zeros(META)
    with found.activations.watching():
        found.validation_step((inputs, targets), 0)
    assert found.eval_sums.device == META
    assert {value.device for value in found.activations.by_layer.values()} == {META}


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("auto", "cuda", "cuda"), ("gpu", "cuda", "cuda"), ("cuda", "cuda", "cuda"),
        ("gpu", "mps", "mps"), ("cpu", "cuda", "cpu"), ("auto", None, "cpu"), ("gpu", None, "cpu"),
    ],
)  # fmt: skip
def test_evaluation_takes_the_accelerator_that_is_there(
    monkeypatch: pytest.MonkeyPatch, wanted: str, there: str | None, found: str
) -> None:
    device = None if there is None else torch.device(there)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    recipe = plan_run("law-lorentz", {"accelerator": wanted}).recipe
    assert device_of(recipe).type == found
