"""Runs as networks to be exported: what `quadric export` makes of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadric.exporting.deploying import Deployable
from quadric.saving import load_
from quadric.train.data import load_data
from quadric.train.directory import RunDirectory, continued
from quadric.train.network import build_network
from quadric.train.tasks import Classification


def from_run(path: str | Path, **place: Any) -> Deployable:
    """The network of a finished run, with its data.

    Args:
        path: the run directory.
        **place: `data_dir`, if another one than when it was trained.
    """
    directory = RunDirectory(Path(path))
    recipe = continued(directory.recipe(), place)
    if not directory.weights_file.is_file():
        raise ValueError(
            f"{directory.path} has no weights.safetensors, the run is not finished: continue it "
            f"with `{directory.resume_command}`"
        )
    data = load_data(recipe)
    network = build_network(recipe, data)
    load_(network, directory.weights_file)
    linear = None
    if recipe.neuron != "linear":
        linear = build_network(recipe.with_overrides({"neuron": "linear"}).resolved(), data)
    rank = "" if recipe.rank is None else f", rank {recipe.rank}"

    def calibration(count: int) -> list[Tensor]:
        batches: list[Tensor] = []
        for inputs, _ in data.train(0, 1):
            batches.append(inputs[: count - sum(map(len, batches))])
            if sum(map(len, batches)) >= count:
                break
        return batches

    classifies = isinstance(data.task, Classification)
    return Deployable(
        str(directory.path),
        recipe.neuron + rank,
        network,
        linear,
        (torch.zeros(1, *data.input_shape),),
        calibration,
        (lambda: data.test(0, 1)) if classifies else None,
    )
