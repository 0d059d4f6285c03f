"""Files of `quadric.save` as networks to be exported: what `quadric export` makes of a file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quadric import models
from quadric.errors import InputError
from quadric.exporting.deploying import Deployable
from quadric.models.named import build_network, example_inputs, is_factory
from quadric.nn import QuadraticLayer
from quadric.saving import load_


def from_file(
    path: str | os.PathLike[str],
    model: str | None,
    inputs: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Deployable:
    """The network whose weights are in a file that `quadric.save` wrote.

    Args:
        path: the file.
        model: one of `quadric.models.names()`, or `package.module:factory`.
        inputs: shapes in words; by default those of the network.
        options: the network's own options.

    Returns:
        The network, and the linear one to compare it with.

    Raises:
        InputError: if the network is not named, or does not take these options.
    """
    path = os.fspath(path)
    if model is None:
        raise InputError(
            f"a file of weights needs its network, got {path} alone: name it with --model, or "
            "export a run directory"
        )
    options = dict(options or {})
    if is_factory(model):
        if options:
            raise InputError(
                f"options belong to networks of quadric.models, got {next(iter(options))!r} for "
                f"{model!r}: give the factory its values itself"
            )
        linear = build_network(model)
    else:
        linear = models.build(model, **options)
    if inputs or is_factory(model):
        examples = tuple(example_inputs(model, inputs))
    else:
        examples = models.example_inputs(model, **options)
    network = copy.deepcopy(linear)
    load_(network, path)
    neuron = _in_words(network)
    return Deployable(path, neuron, network, None if neuron == "linear" else linear, examples)


def _in_words(network: torch.nn.Module) -> str:
    """The neurons of a network: "eigen, rank 9"."""
    found: dict[str, None] = {}
    for module in network.modules():
        if isinstance(module, QuadraticLayer):
            rank = "" if module.rank is None else f", rank {module.rank}"
            found[f"{module.neuron}{rank}"] = None
    return " and ".join(found) or "linear"
