"""Testing a trained network: no lightning, one pass over a part of the data."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric.counting.cost import cost
from quadric.data.batches import Batches
from quadric.errors import InputError
from quadric.saving import load_
from quadric.train.data import TrainingData, load_data
from quadric.train.directory import RunDirectory, continued
from quadric.train.monitors import LargestActivation
from quadric.train.network import build_network
from quadric.train.tasks import Task

_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64, "32": torch.float32}


@torch.no_grad()
def measure(
    network: nn.Module, batches: Batches, task: Task, device: torch.device, precision: str
) -> dict[str, Any]:
    """Metrics of a network, and the largest activation on the way.

    Args:
        network: moved to the device and set to eval mode.
        batches: what it is tested on.
        task: its metrics.
        device: where it runs.
        precision: as in a recipe.
    """
    kind, _, mode = precision.partition("-")
    dtype = _DTYPES[kind]
    network = network.to(device).eval()
    if mode == "true":
        network = network.to(dtype)
    context: Any = contextlib.nullcontext()
    if mode == "mixed":
        context = torch.autocast(device.type, dtype=dtype)
    sums = task.zeros(device)
    watch = LargestActivation(network)
    with watch.watching(), context:
        for inputs, targets in batches:
            inputs, targets = inputs.to(device), targets.to(device)
            if mode == "true":
                inputs = inputs.to(dtype)
            sums += task.sums(network(inputs), targets)
    found: dict[str, Any] = task.metrics(sums)
    largest = watch.largest()
    if largest is not None:
        found["largest_activation"], found["largest_activation_layer"] = largest
    return found


def count(network: nn.Module, data: TrainingData) -> dict[str, int]:
    """Parameters, and multiply-accumulates for one input."""
    report = cost(network, torch.zeros(1, *data.input_shape))
    return {"params": report.params, "macs": report.macs}


def evaluate(path: str | Path, **place: Any) -> dict[str, Any]:
    """Tests the weights of a run on its test data.

    Args:
        path: the run directory.
        **place: `data_dir`, `workers` or `accelerator`, if others than when it was trained.
    """
    directory = RunDirectory(Path(path))
    recipe = continued(directory.recipe(), place)
    if not directory.weights_file.is_file():
        raise InputError(
            f"{directory.path} has no weights.safetensors, the run is not finished: continue it "
            f"with `{directory.resume_command}`"
        )
    data = load_data(recipe)
    network = build_network(recipe, data)
    load_(network, directory.weights_file)
    cuda = recipe.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    found = count(network, data)
    metrics = measure(network, data.test(0, 1), data.task, device, recipe.precision)
    return {
        "run": str(directory.path),
        "recipe": recipe.name,
        "neuron": recipe.neuron,
        "rank": recipe.rank,
        "seed": recipe.seed,
        **found,
        **{f"test_{name}": metrics.pop(name) for name in list(metrics) if "activation" not in name},
        **metrics,
    }
