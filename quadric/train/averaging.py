"""The average of the weights of the last epochs, as Vaswani et al. test it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.saving import load_, save
from quadric.train.directory import RunDirectory
from quadric.train.recipe import Recipe


def weights_file(directory: RunDirectory, epoch: int) -> Path:
    """Where the weights of an epoch are kept, counted from 1."""
    return directory.checkpoints / f"weights-{epoch:04d}.safetensors"


def keep_weights(network: nn.Module, directory: RunDirectory, epoch: int, count: int) -> None:
    """Writes the weights of an epoch, and removes those that are not needed any more."""
    save(network, weights_file(directory, epoch))
    # One more than needed: an epoch may be lost by a kill, and trained again.
    weights_file(directory, epoch - count - 1).unlink(missing_ok=True)


def load_average_(network: nn.Module, directory: RunDirectory, recipe: Recipe) -> None:
    """Gives a network the average of the weights of a run's last epochs."""
    count = min(recipe.average or 1, recipe.epochs)
    total: dict[str, Tensor] = {}
    for epoch in range(recipe.epochs - count + 1, recipe.epochs + 1):
        path = weights_file(directory, epoch)
        if not path.is_file():
            raise InputError(f"missing file {path}, one of {count} to be averaged: train again")
        load_(network, path)
        for name, tensor in network.state_dict().items():
            wide = tensor.to(torch.float64, copy=True)
            total[name] = total[name] + wide if name in total else wide
    mean = {name: tensor / count for name, tensor in total.items()}
    state = network.state_dict()
    network.load_state_dict({name: mean[name].to(state[name].dtype) for name in state})
