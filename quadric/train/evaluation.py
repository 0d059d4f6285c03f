"""Testing a trained network: no lightning, one pass over a part of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.counting.cost import cost
from quadric.data.batches import Batches
from quadric.errors import InputError
from quadric.support.provenance import finite
from quadric.train.data import RunData
from quadric.train.monitors import LargestActivation
from quadric.train.network import device_of, load_run, memory_format
from quadric.train.tasks import Task

_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64, "32": torch.float32}


@torch.no_grad()
def measure(
    network: nn.Module,
    batches: Batches,
    task: Task,
    device: torch.device,
    precision: str,
    progress: Callable[..., None] = lambda *args, **kwargs: None,
) -> dict[str, Any]:
    """Measures the metrics of a network, and its largest activation."""
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
        for batch in batches:
            inputs, targets = move(batch, device, dtype if mode == "true" else None)
            sums += task.sums(task.outputs(network, inputs), targets)
            progress(total=len(batches))
    metrics: dict[str, Any] = task.metrics(sums) | task.finish(
        network, device, lambda done, more: progress(done, total=len(batches) + more)
    )
    largest = watch.largest()
    if largest is not None:
        metrics["largest_activation"], metrics["largest_activation_layer"] = largest
    return metrics


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """A batch on another device, its inputs in another dtype."""
    inputs, targets = batch

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    if isinstance(inputs, tuple | list):
        return tuple(moved(tensor) for tensor in inputs), targets.to(device)
    return moved(inputs), targets.to(device)


def count(network: nn.Module, data: RunData) -> dict[str, int]:
    """Parameters, and multiply-accumulates for one input."""
    report = cost(network, *data.example_inputs())
    counts = {"params": report.params, "macs": report.macs}
    return counts | data.more_counts(network, report.macs)


def evaluate(
    path: str | Path,
    *,
    test: tuple[Path, Path] | None = None,
    code: str | Sequence[str] = (),
    progress: Callable[..., None] = lambda *args, **kwargs: None,
    **environment: Any,
) -> dict[str, Any]:
    """Tests the weights of a run on its test data.

    Args:
        path: the run directory.
        test: for a translation run, a source file and its translation to be tested on instead.
        code: the files or modules of your own that the run uses.
        progress: a bar of `quadric.support.progress.progress_bar`, which is told of each batch.
        **environment: `data_dir`, `workers` or `accelerator`, if others than when it was trained.

    Returns:
        Recipe, neuron, seed, cost and the metrics of the test data.

    Raises:
        InputError: if the run is not finished, or its recipe or data cannot be read.
    """
    run = load_run(path, code, **environment)
    recipe, data, network = run.recipe, run.data, run.network
    if test is not None:
        data.set_test_files(*test)
    device = device_of(recipe)
    counts = count(network, data)
    network.to(memory_format=memory_format(recipe, network, device))  # type: ignore[call-overload]
    metrics = measure(network, data.test(0, 1), data.task, device, recipe.precision, progress)
    bad = [name for name, value in metrics.items() if finite(value) != value]
    if bad:
        raise InputError(
            f"the numbers of {path} must be finite, got {bad[0]} {metrics[bad[0]]}: its weights, "
            "or the test data, are not; train it again with --overwrite"
        )
    return {
        "run": str(run.directory.path),
        "recipe": recipe.name,
        "neuron": recipe.neuron,
        "rank": recipe.rank,
        "seed": recipe.seed,
        **counts,
        **{f"test_{name}": metrics.pop(name) for name in data.task.names if name in metrics},
        **metrics,
    }
