"""The network of a recipe or of a finished run, and the layout of its memory."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric import models
from quadric.conversion.calibration import calibrate_
from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer
from quadric.models.building import drawing, make_quadratic_
from quadric.saving import load_
from quadric.train.data import RunData, check_call, kept_data, load_data
from quadric.train.directory import RunDirectory, continued
from quadric.train.recipe import Recipe
from quadric.train.run_code import function_of, load_code
from quadric.user_code import listed

MODEL_FIELDS = ("width", "channels", "hidden", "shortcut", "activation")
CONVERSION_FIELDS = ("rank", "include", "exclude", "first", "init", "head")


def build_network(recipe: Recipe, data: RunData) -> nn.Module:
    """Builds the network of a recipe, with the weights that its seed gives."""
    network = _build(recipe, data)
    if recipe.quadratic_scale is False:  # the paper's rule, for eigenvalues as they are
        for layer in network.modules():
            if isinstance(layer, QuadraticLayer):
                layer.drop_scale_()
    return network


def calibrate_first_(network: nn.Module, data: RunData) -> None:
    """Sets the scale of the eigenvalues by the first samples, the same ones in every process."""
    layers = [layer for layer in network.modules() if isinstance(layer, QuadraticLayer)]
    if any(layer.awaits_scale for layer in layers):
        # Samples that are all alike set no scale; the first batches of training then do.
        with drawing(data.recipe.seed), contextlib.suppress(InputError):
            calibrate_(network, data.first_inputs())


def _build(recipe: Recipe, data: RunData) -> nn.Module:
    chosen = {field: getattr(recipe, field) for field in MODEL_FIELDS}
    chosen = {k: v for k, v in chosen.items() if v is not None} | recipe.model_options
    conversion: dict[str, Any] = {}
    if recipe.neuron != "linear":
        conversion = {field: getattr(recipe, field) for field in CONVERSION_FIELDS}
        if recipe.init == "published":
            # Where that start is a linear layer, the network's own weights: all neurons that start
            # linear then start from the same ones.
            conversion["init"] = None
    conversion |= recipe.neuron_options
    if "model" not in recipe.functions():
        options = data.model_options() | chosen | conversion
        return models.create(recipe.model, recipe.neuron, seed=recipe.seed, **options)
    with drawing(recipe.seed):
        network = _call(recipe, data, chosen)
        example = data.example_inputs()
        make_quadratic_(network, recipe.neuron, example_inputs=example, **conversion)
    return network


def _call(recipe: Recipe, data: RunData, options: dict[str, Any]) -> nn.Module:
    """The network that a user's own function gives.

    What it wants to know of the data, and the recipe does not say, it is told.
    """
    factory = function_of(recipe, "model")
    known = {**data.model_options(), "input_shape": data.input_shape}
    try:
        wanted = inspect.signature(factory).parameters
    except ValueError:  # it has no signature to read
        wanted = {}  # type: ignore[assignment]
    options = {name: value for name, value in known.items() if name in wanted} | options
    check_call(factory, options, f"model {recipe.model!r}", "model_options")
    network = factory(**options)
    if not isinstance(network, nn.Module):
        raise InputTypeError(
            f"model {recipe.model!r} must return a torch.nn.Module, got {type(network).__name__}: "
            "return the network"
        )
    return network


@dataclass(frozen=True)
class TrainedRun:
    """A finished run, loaded."""

    directory: RunDirectory  # where it is
    recipe: Recipe  # resolved, with the place of today
    data: RunData  # of the recipe
    network: nn.Module  # with the trained weights


def load_run(path: str | Path, code: str | Sequence[str] = (), **environment: Any) -> TrainedRun:
    """Loads the network of a finished run and its data."""
    directory = RunDirectory(Path(path))
    recipe = continued(directory.recipe(), environment)
    if not directory.weights_file.is_file():
        raise InputError(
            f"{directory.path} has no weights.safetensors, the run is not finished: continue it "
            f"with `{directory.resume_command}`"
        )
    recipe = load_code(recipe, listed(code), directory.path, strict=False)
    data = kept_data(recipe, directory.path) or load_data(recipe)
    network = build_network(recipe, data)
    load_(network, directory.weights_file)
    return TrainedRun(directory, recipe, data, network)


def device_of(recipe: Recipe) -> torch.device:
    """The device on which one process computes: the recipe's accelerator, if it is there."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None or recipe.accelerator not in ("auto", "gpu", device.type):
        return torch.get_default_device()
    return device


def memory_format(recipe: Recipe, network: nn.Module, device: torch.device) -> torch.memory_format:
    """The layout in which a network computes on pictures.

    `auto` is channels_last where convolutions are faster with it: on CPUs, and on GPUs in half
    precision. Networks without convolutions, and sharded ones, are contiguous.
    """
    convolutional = any(parameter.dim() == 4 for parameter in network.parameters())
    half = recipe.precision.startswith(("16", "bf16"))
    faster = device.type == "cpu" or (device.type == "cuda" and half)
    auto = recipe.memory_format == "auto" and faster and recipe.strategy != "fsdp"
    if convolutional and (auto or recipe.memory_format == "channels_last"):
        return torch.channels_last
    return torch.contiguous_format
