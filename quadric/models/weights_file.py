"""Files of `quadric.save` as networks to be exported: what `quadric export` makes of a file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

from quadric import parts
from quadric.conversion.description import describe_layers
from quadric.errors import InputError
from quadric.exporting.deploying import Deployable
from quadric.models.named import example_inputs, plain_network
from quadric.saving import load_


def from_file(
    path: str | os.PathLike[str],
    model: str | None,
    inputs: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
    trust: bool | None = None,
) -> Deployable:
    """The network whose weights are in a file that `quadric.save` wrote.

    Args:
        path: the file.
        model: one of `quadric.models.names()`, or `package.module:factory`.
        inputs: shapes in words; by default those of the network.
        options: the network's own options.
        imports: files or modules of the user's own, such as neurons.
        trust: run code even if other users can write its file; None if the user cannot say so.

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
    for name in imports:
        parts.load(name, f"--import {name}", trust)
    linear, examples = plain_network(model, inputs, options, trust)
    examples = examples or tuple(example_inputs(model, inputs))
    network = copy.deepcopy(linear)
    load_(network, path)
    # "eigen, rank 9"
    neuron = " and ".join(dict.fromkeys(str(layer) for _, layer, _ in describe_layers(network)))
    return Deployable(path, neuron or "linear", network, linear if neuron else None, examples)
