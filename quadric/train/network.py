"""The network of a recipe: a plain one, converted to the recipe's neuron."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from quadric import models
from quadric.train.data import TrainingData
from quadric.train.recipe import Recipe

MODEL_FIELDS = ("width", "channels", "hidden", "shortcut", "activation")


def build_network(recipe: Recipe, data: TrainingData) -> nn.Module:
    """Builds the network with the weights that the recipe's seed gives.

    Args:
        recipe: resolved.
        data: says how many inputs and outputs there are.
    """
    options: dict[str, Any] = data.model_options()
    options |= {
        field: getattr(recipe, field)
        for field in MODEL_FIELDS
        if getattr(recipe, field) is not None
    }
    conversion: dict[str, Any] = {}
    if recipe.neuron != "linear":
        conversion = {
            "rank": recipe.rank,
            "include": recipe.include,
            "exclude": recipe.exclude,
            "layers": recipe.layers,
            "init": recipe.init,
            "head": recipe.head,
            **recipe.neuron_options,
        }
    # A generator of its own would be better, but torch's layers draw from the global one.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return models.create(recipe.model, recipe.neuron, **conversion, **options)
