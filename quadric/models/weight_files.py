"""Files of weights and the networks that they belong to, for `quadric convert` and `export`.

Checkpoints of linear networks are read without ever running what a pickle says: a torch file is
read with `weights_only`, which builds tensors and plain containers and nothing else; a safetensors
file holds nothing else to begin with.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric import user_code
from quadric.conversion.conversion_report import ConversionReport
from quadric.conversion.convert import convert_
from quadric.conversion.description import describe_layers
from quadric.conversion.selection import Selection
from quadric.errors import InputError
from quadric.exporting.deploying import Deployable
from quadric.models.named import build_network, example_inputs, is_factory
from quadric.saving import KEY, check_tensors, load_, save
from quadric.support.assignments import split_assignment
from quadric.support.tensor_files import read_tensors

# Where training scripts put the state dict, and what wrappers put before every name.
_PLACES = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def convert_checkpoint(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: str,
    neuron: str = "eigen",
    rank: int | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    first: int | None = None,
    head: bool = False,
    inputs: Sequence[str] | None = None,
    options: Sequence[str] | None = None,
) -> ConversionReport:
    """Converts a linear checkpoint to a file that `quadric.load_` loads into the plain network."""
    chosen = parse_options(options or ())
    network = build_network(model, **chosen)
    examples = None  # a factory's own are needed only to find its head and its order
    if inputs or not is_factory(model):
        examples = example_inputs(model, inputs, **chosen)
    state = read_checkpoint(checkpoint)
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:  # a checkpoint in half precision stays one
        (dtype,) = dtypes
        network.to(dtype)
        if examples is not None:
            examples = tuple(e.to(dtype) if e.is_floating_point() else e for e in examples)
    fill_(network, state, os.fspath(checkpoint))
    report = convert_(
        network,
        neuron=neuron,
        rank=rank,
        include=parse_selection(include),
        exclude=parse_selection(exclude),
        first=first,
        head=head,
        example_inputs=examples,
    )
    save(network, out)
    return report


def saved_network(
    path: str | os.PathLike[str],
    model: str | None,
    inputs: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    code: Sequence[str] = (),
) -> Deployable:
    """The network whose weights are in a file that `quadric.save` wrote, ready to be exported."""
    path = os.fspath(path)
    if model is None:
        raise InputError(
            f"a file of weights needs its network, got {path} alone: name it with --model, or "
            "give a run directory"
        )
    for name in code:
        user_code.load(name)
    linear = build_network(model, **(options or {}))
    examples = example_inputs(model, inputs, **(options or {}))
    network = copy.deepcopy(linear)
    load_(network, path)
    # "eigen, rank 9"
    neuron = " and ".join(dict.fromkeys(str(layer) for _, layer, _ in describe_layers(network)))
    return Deployable(path, neuron or "linear", network, linear if neuron else None, examples)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options in words as a dictionary; values are JSON where they can be, else text.

    Examples:
        >>> parse_options(["num_classes=10", "shortcut=B", "hidden=[8, 8]"])
        {'num_classes': 10, 'shortcut': 'B', 'hidden': [8, 8]}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, value = split_assignment(text, "num_classes=10")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def parse_selection(entries: Sequence[str] | None) -> Selection | None:
    """Names as a list, or, where one is an expression, all of them as one expression."""
    if not entries:
        return None
    if not any(entry.startswith("re:") for entry in entries):
        return list(entries)
    return "|".join(
        f"(?:{entry[3:]})" if entry.startswith("re:") else rf"(?:(?:.*\.)?{re.escape(entry)})"
        for entry in entries
    )


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, without the prefixes that wrappers put before them."""
    path = os.fspath(path)
    raw = _read_safetensors(path) if _is_safetensors(path) else _read_torch(path)
    for place in _PLACES:
        if isinstance(raw, Mapping) and isinstance(raw.get(place), Mapping):
            raw = raw[place]
    got = ""
    if not isinstance(raw, Mapping) or not raw:
        got = "an empty one" if isinstance(raw, Mapping) else f"a {type(raw).__name__}"
    for name, value in raw.items() if not got else ():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            got = f"{name!r} of type {type(value).__name__}"
    if got:
        raise InputError(
            f"{path} must hold a state dict, tensors by name, got {got}: write it with "
            "torch.save(model.state_dict(), path)"
        )
    return dict(raw)


def _is_safetensors(path: str) -> bool:
    """Whether a file begins as a safetensors file does: the length of a JSON header, then it."""
    with open(path, "rb") as file:
        start = file.read(9)
    return path.endswith(".safetensors") or (len(start) == 9 and start[8:] == b"{")


def _read_safetensors(path: str) -> dict[str, Tensor]:
    tensors, metadata = read_tensors(path)
    if KEY in metadata:
        raise InputError(
            f"{path} must be a linear checkpoint, got one that quadric.save wrote: load it with "
            "quadric.load_"
        )
    return tensors


def _read_torch(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a file that is no checkpoint raises is up to its bytes
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it cannot be read at all
        # torch's own words would advise to unpickle it after all.
        raise InputError(
            f"{path} must be a state dict that torch.save wrote, tensors and nothing else, got a "
            f"damaged or foreign file ({type(error).__name__}): write it with "
            "torch.save(model.state_dict(), path)"
        ) from None


def fill_(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Loads a state dict, after one check that says all that does not fit."""
    own = model.state_dict()
    state = _without_prefixes(state, own)
    # A file that stores shared tensors once has one of their names: the others stand for the same.
    stored = {(own[name].data_ptr(), own[name].shape): name for name in state if name in own}
    for name, tensor in own.items():
        twin = stored.get((tensor.data_ptr(), tensor.shape))
        if name not in state and twin is not None and tensor.numel() and not tensor.is_meta:
            state[name] = state[twin]
    check_tensors(model, state, source)
    model.load_state_dict(state)


def _without_prefixes(state: Mapping[str, Tensor], own: Mapping[str, Any]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        theirs = all(name.startswith(prefix) for name in state)
        if theirs and not any(name.startswith(prefix) for name in own):
            shorter = {name.removeprefix(prefix): value for name, value in state.items()}
            return _without_prefixes(shorter, own)
    return dict(state)
