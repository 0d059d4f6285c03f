"""Files of `quadric.save` as networks to be exported: what `quadric export` makes of a file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

from quadric import user_code
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
    code: Sequence[str] = (),
) -> Deployable:
    """The network whose weights are in a file that `quadric.save` wrote."""
    path = os.fspath(path)
    if model is None:
        raise InputError(
            f"a file of weights needs its network, got {path} alone: name it with --model, or "
            "export a run directory"
        )
    for name in code:
        user_code.load(name)
    linear, examples = plain_network(model, inputs, options)
    examples = examples or tuple(example_inputs(model, inputs))
    network = copy.deepcopy(linear)
    load_(network, path)
    # "eigen, rank 9"
    neuron = " and ".join(dict.fromkeys(str(layer) for _, layer, _ in describe_layers(network)))
    return Deployable(path, neuron or "linear", network, linear if neuron else None, examples)
