"""The network of a recipe or of a finished run, and the layout of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric import models
from quadric.errors import InputError
from quadric.saving import load_
from quadric.train.data import TrainingData, load_data
from quadric.train.directory import RunDirectory, continued
from quadric.train.recipe import Recipe

MODEL_FIELDS = ("width", "channels", "hidden", "shortcut", "activation")
CONVERSION_FIELDS = ("rank", "include", "exclude", "layers", "init", "head")


def build_network(recipe: Recipe, data: TrainingData) -> nn.Module:
    """Builds the network of a recipe, with the weights that its seed gives.

    Args:
        recipe: resolved.
        data: says how many inputs and outputs there are.

    Returns:
        The network, converted to the recipe's neuron.
    """
    chosen = {field: getattr(recipe, field) for field in MODEL_FIELDS}
    options = data.model_options() | {k: v for k, v in chosen.items() if v is not None}
    if recipe.neuron != "linear":
        options |= {field: getattr(recipe, field) for field in CONVERSION_FIELDS}
        if recipe.init == "published":
            # Where that start is a linear layer, the network's own weights: all neurons that start
            # linear then start from the same ones.
            options["init"] = None
    options |= recipe.neuron_options
    return models.create(recipe.model, recipe.neuron, seed=recipe.seed, **options)


@dataclass(frozen=True)
class TrainedRun:
    """A finished run, loaded.

    Attributes:
        directory: where it is.
        recipe: resolved, with the place of today.
        data: of the recipe.
        network: with the trained weights.
    """

    directory: RunDirectory
    recipe: Recipe
    data: TrainingData
    network: nn.Module


def load_run(path: str | Path, **place: Any) -> TrainedRun:
    """Loads the network of a finished run and its data.

    Args:
        path: the run directory.
        **place: `data_dir`, `workers` or `accelerator`, if others than when it was trained.

    Returns:
        The run.

    Raises:
        InputError: if the run is not finished, or its recipe or data cannot be read.
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
    return TrainedRun(directory, recipe, data, network)


def memory_format(recipe: Recipe, network: nn.Module, device: torch.device) -> torch.memory_format:
    """The layout in which a network computes on pictures.

    `auto` is channels_last where convolutions are faster with it: on CPUs, and on GPUs in half
    precision. Networks without convolutions, and sharded ones, are contiguous.

    Args:
        recipe: its field `memory_format` decides, and its precision and strategy.
        network: of the recipe.
        device: where it runs.

    Returns:
        The layout of the weights and of the batches.
    """
    convolutional = any(parameter.dim() == 4 for parameter in network.parameters())
    half = recipe.precision.startswith(("16", "bf16"))
    faster = device.type == "cpu" or (device.type == "cuda" and half)
    auto = recipe.memory_format == "auto" and faster and recipe.strategy != "fsdp"
    if convolutional and (auto or recipe.memory_format == "channels_last"):
        return torch.channels_last
    return torch.contiguous_format
