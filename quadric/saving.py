"""Quadratic models as safetensors files that load into the plain model.

The header says which layers are quadratic, with which neuron, rank and options, so that `load_` can
convert a plain model before it fills it. A file of the quadratic parameters alone is an adapter:
about one number per channel, on top of weights that the model already has. Nothing is unpickled. A
file is checked whole before a model is touched, and a failure after the conversion undoes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from quadric.conversion.description import LayerDescription, describe_layers
from quadric.conversion.planning import check_convertible, plan_layers
from quadric.conversion.pretrained import note_layers
from quadric.conversion.selection import some
from quadric.conversion.swapping import Swap
from quadric.errors import InputError
from quadric.layers import QuadraticLayer, get_neuron, neurons
from quadric.layers.parabola import PARTS
from quadric.named_adapters import base_values, check_name, quadratic_values, remember_
from quadric.support.modules import check_model, unwrapped
from quadric.support.tensor_files import read_tensors, write_tensors

KEY = "quadric"
"""The entry of a file's metadata that holds our header, as JSON."""

FORMAT = 1
"""The version of the header; files of a later one are refused."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself; aliases are names of tensors that stand under another one."""

    content: str  # "model", or "quadratic" for an adapter
    layers: Mapping[str, LayerDescription]
    aliases: Mapping[str, str]

    def to_json(self) -> str:
        """The header as it is written."""
        from quadric import __version__

        # For people who read the file; None where the layers differ.
        neurons = {layer.neuron for layer in self.layers.values()}
        ranks = {layer.rank for layer in self.layers.values()}
        entries = {
            "format": FORMAT,
            "version": __version__,
            "neuron": neurons.pop() if len(neurons) == 1 else None,
            "rank": ranks.pop() if len(ranks) == 1 else None,
            "content": self.content,
            "layers": {name: layer.to_dict() for name, layer in self.layers.items()},
            "aliases": dict(self.aliases),
        }
        return json.dumps(entries, allow_nan=False)


def save(model: nn.Module, path: str | os.PathLike[str], only: str | None = None) -> None:
    """Writes a model to a safetensors file that loads into the plain model.

    Tensors that several names share are written once. The file appears under its name only when it
    is complete.

    Args:
        model: a model, quadratic or not. One that is wrapped by DistributedDataParallel,
            DataParallel or torch.compile is saved without the wrapper.
        path: the file; one that exists is replaced.
        only: "quadratic" for the quadratic parameters alone: an adapter of a few KB, to be loaded
            onto a model that has the weights already.

    Raises:
        InputError: if the model holds something that the file format cannot, or has no quadratic
            layers to make an adapter of.
        InputTypeError: if `model` is not a module.
        FileNotFoundError: if the folder does not exist.

    Examples:
        >>> import quadric, tempfile
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> report = quadric.convert_(model)
        >>> plain = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, f"{folder}/model.safetensors")
        ...     load_(plain, f"{folder}/model.safetensors")
        ['0']
    """
    check_model(model)
    if only not in (None, "quadratic"):
        raise InputError(
            f"only must be None or 'quadratic', got {only!r}: leave it out to save everything"
        )
    model = unwrapped(model)
    layers = _layers_to_save(model)
    state = _with_plain_eigenvalues(model, _tensors_of(model))
    if only == "quadratic":
        _check_adapter(model, layers)
        keys = quadratic_keys(model)
        state = {key: tensor for key, tensor in state.items() if key in keys}
    stored, aliases = _without_copies(state)
    header = Header("quadratic" if only else "model", layers, aliases)
    # transformers and others look for the format of the tensors.
    metadata = {"format": "pt", KEY: header.to_json()}
    write_tensors(path, stored, metadata)


def load_(model: nn.Module, path: str | os.PathLike[str], name: str | None = None) -> list[str]:
    """Fills a model from a file that `save` wrote, and converts its layers first where needed.

    The model may be the plain one, whose layers are then made quadratic as the file says, or one
    that has such layers already. It keeps its devices and dtypes. From an adapter file it takes the
    quadratic parameters and keeps its own weights. If the file is damaged or does not fit, the
    model stays as it was.

    Args:
        model: the model to fill. Make the optimizer, or wrap it in DistributedDataParallel,
            afterwards.
        path: the file.
        name: for an adapter, the name under which the model keeps it beside its other ones. It is
            then in use; see `quadric.use_adapter_`. Layers that the file does not have, get what
            they had before the first named adapter.

    Returns:
        The names of the layers that were converted; empty if the model had them all.

    Raises:
        InputError: if the file is damaged, from a newer version, or does not fit the model.
        InputTypeError: if `model` is not a module.
        FileNotFoundError: if there is no such file.
    """
    check_model(model)
    path = os.fspath(path)
    tensors, metadata = read_tensors(path)
    header = _parse(metadata, set(tensors), path)
    inner = unwrapped(model)
    if name is not None:
        check_name(name)
        if header.content != "quadratic":
            raise InputError(
                f"a name is for adapters, got name={name!r} for {path}, which holds a whole model: "
                "load it without a name, or write it with quadric.save(..., only='quadratic')"
            )
    swap, names = _conversion(model, inner, header, path, others=name is not None)
    swap.do()
    before: dict[str, Tensor] = {}
    try:
        values = tensors | {key: tensors[first] for key, first in header.aliases.items()}
        now = quadratic_values(inner) if name is not None else {}
        if name is not None:
            values = base_values(inner, now) | values
        scales = {key: torch.ones(()) for key in _scaled(inner)}
        values |= scales
        keys = quadratic_keys(inner) | set(scales) if header.content == "quadratic" else None
        check_tensors(inner, values, path, keys)
        own = inner.state_dict()
        before = {key: own[key].clone() for key in values if key in own and not own[key].is_meta}
        inner.load_state_dict(values, strict=header.content == "model")
    except BaseException:
        # torch copies what it can before it refuses the rest.
        with torch.no_grad():
            for key, value in before.items():
                if not torch.equal(own[key], value):
                    own[key].copy_(value)
        swap.undo()
        raise
    swap.await_scales_()
    note_layers(model)
    if name is not None:
        remember_(inner, name, now)
    return names


def _layers_to_save(model: nn.Module) -> dict[str, LayerDescription]:
    """The quadratic layers by their first name, checked to be what a file can record."""
    first_names: dict[int, tuple[str, LayerDescription]] = {}
    for name, layer, module in describe_layers(model):
        first_names.setdefault(module, (name, layer))
        for option, value in layer.options.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise InputError(
                    f"options of a neuron must be plain values to be saved, got {option}={value!r} "
                    f"(layer {name!r}): use a number or a string"
                ) from None
    for name, module in model.named_modules():
        if isinstance(module, QuadraticLayer) and parametrize.is_parametrized(module):
            raise InputError(
                "the parameters of a quadratic layer must be plain to be saved, got a "
                f"parametrization in {name!r}: remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations first"
            )
    return dict(first_names.values())


def _scaled(model: nn.Module) -> dict[str, QuadraticLayer]:
    """The layers whose eigenvalues have a scale, by the name of that scale in the state dict."""
    return {
        f"{name}.eigenvalue_scale".lstrip("."): module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuadraticLayer) and module.eigenvalue_scale is not None
    }


def _with_plain_eigenvalues(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with each scale multiplied into its eigenvalues: a file holds what counts."""
    plain = dict(state)
    products: dict[int, Tensor] = {}
    for key, layer in _scaled(model).items():
        product = products.setdefault(id(layer), layer.eigenvalues.detach() * plain.pop(key))
        plain[key.removesuffix("_scale") + "s"] = product
    return plain


def quadratic_keys(model: nn.Module) -> set[str]:
    """The names in the state dict of all quadratic parameters, under every name a layer has."""
    return {
        f"{name}.{key}" if name else key
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuadraticLayer)
        for key in module.quadratic_parameters()
    }


def _check_adapter(model: nn.Module, layers: Mapping[str, LayerDescription]) -> None:
    if not layers:
        raise InputError(
            f"an adapter needs quadratic layers, got {type(model).__name__} without any: convert "
            "the model first with quadric.convert_(model)"
        )
    for name, layer in layers.items():
        if layer.neuron in PARTS.values() or not get_neuron(layer.neuron).can_be_linear:
            raise InputError(
                "an adapter needs neurons that are a linear layer and something on top, got the "
                f"neuron {layer.neuron!r} (layer {name!r}): save the whole model instead"
            )


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The state dict, checked to be plain tensors with values."""
    state: dict[str, Any] = model.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor):
            fault = f"of type {type(value).__name__}: use torch.save for this module"
        elif is_lazy(value):
            fault = "without a shape (lazy): run one forward pass first"
        elif value.is_meta:
            fault = "on the meta device: fill the model first"
        elif type(value.data) is not Tensor or value.layout is not torch.strided:
            kind = f"a {type(value.data).__name__} with layout {value.layout}"
            fault = f"as {kind}: gather, densify or dequantize it first"
        else:
            continue
        raise InputError(f"only plain dense tensors with values can be saved, got {key!r} {fault}")
    return state


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    place = (tensor.device, tensor.data_ptr()) if tensor.numel() else (id(tensor),)
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _without_copies(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, on the CPU and contiguous; and for other names of it the one it has."""
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[tuple[Any, ...], str] = {}
    for key, tensor in state.items():
        first = names.setdefault(_identity(tensor), key)
        if first == key:
            plain = tensor.detach().cpu().contiguous()
            # safetensors refuses tensors that are only a part of their storage.
            whole = plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
            stored[key] = plain if whole else plain.clone()
        else:
            aliases[key] = first
    return stored, aliases


def _parse(metadata: Mapping[str, str], names: set[str], path: str) -> Header:
    if KEY not in metadata:
        added = [name for name in sorted(names) if _is_added(name, names)]
        what = "a safetensors file without its header: a linear checkpoint loads with "
        if added:
            what = (
                f"the weights of a converted model without its header (with {some(added, 1)}), as "
                "save_pretrained and the Trainer of transformers write them: convert the model as "
                "it was converted, then load them with "
            )
        raise InputError(
            f"{path} must be a file that quadric.save wrote, got {what}"
            f"model.load_state_dict(safetensors.torch.load_file({path!r}))"
        )
    try:
        raw = json.loads(metadata[KEY])
        entries = {k: {**v, "options": {**v.get("options", {})}} for k, v in raw["layers"].items()}
        layers = {name: LayerDescription(**entry) for name, entry in entries.items()}
        header = Header(raw["content"], layers, raw["aliases"])
        if (
            header.content not in ("model", "quadratic")
            or not set(header.aliases.values()) <= names
        ):
            raise TypeError("its parts do not go together")
        newer = raw["format"] > FORMAT
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path} has a damaged header ({type(error).__name__}: {error}): write the file again "
            "with quadric.save"
        ) from None
    if newer:
        raise InputError(
            f"{path} was written by Quadric {raw.get('version')} in format {raw['format']}, "
            f"but this version reads formats up to {FORMAT}: update quadric"
        )
    return header


def _is_added(name: str, names: set[str]) -> bool:
    """Whether a tensor is a parameter that a neuron adds to the weight beside it."""
    layer, _, key = name.rpartition(".")
    known = {key for row in neurons().values() for key in row.quadratic}
    return key in known and key != "weight" and f"{layer}.weight" in names


def _conversion(
    model: nn.Module, inner: nn.Module, header: Header, path: str, others: bool
) -> tuple[Swap, list[str]]:
    """The swap that makes the layers of the file which the model does not have yet.

    The model may have others besides, if asked.
    """
    present = {name: (layer, module) for name, layer, module in describe_layers(inner)}
    known = {module for name, (_, module) in present.items() if name in header.layers}
    for name, (layer, module) in present.items():
        wanted = header.layers.get(name)
        if not (wanted.agrees(layer) if wanted is not None else others or module in known):
            raise InputError(
                f"the layers of the model and of {path} must agree, but {name!r} is {layer} in the "
                f"model and {wanted or 'linear'} in the file: load the file into the plain model"
            )
    names = [name for name in header.layers if name not in present]
    if not names:
        return Swap(inner, []), []
    check_convertible(model)
    try:
        # What a start draws is overwritten: the user's random numbers stay as they were.
        with torch.random.fork_rng(devices=[]):
            plan = {name: header.layers[name].plan() for name in names}
            return plan_layers(inner, plan), names
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit the model: {error}") from None


def check_tensors(
    model: nn.Module, values: Mapping[str, Tensor], path: str, keys: set[str] | None = None
) -> None:
    """Refuses tensors that do not fit a model."""
    state = model.state_dict()
    keys = set(state) if keys is None else keys
    missing = [repr(key) for key in state if key in keys and key not in values]
    unexpected = [repr(key) for key in values if key not in keys]
    faults = [f"{some(missing, 3)} missing"] if missing else []
    faults += [f"{some(unexpected, 3)} unknown to the model"] if unexpected else []
    sources: dict[tuple[Any, ...], str] = {}
    for key, value in values.items() if not faults else ():
        own = state[key]
        if not isinstance(own, Tensor) or own.is_meta:
            raise InputError(
                f"the model must have storage to be loaded into, got {key!r} on the meta device: "
                "call model.to_empty(device='cpu') first"
            )
        first = sources.setdefault(_identity(own), key)
        if own.shape != value.shape:
            faults.append(f"{key!r} of shape {tuple(value.shape)}, not {tuple(own.shape)}")
        elif _number_kind(own.dtype) != _number_kind(value.dtype):
            faults.append(f"{key!r} as {value.dtype} for {own.dtype}")
        elif not torch.allclose(values[first], value, rtol=0, atol=0, equal_nan=True):
            faults.append(f"different values for {first!r} and {key!r}, which the model shares")
        if faults:
            break
    if faults:
        raise InputError(
            f"the tensors of {path} must be those of the model, got {' and '.join(faults)}: load "
            "it into a model of the same architecture and options (such as num_classes)"
        )


def _number_kind(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    return dtype.is_floating_point, dtype.is_complex, dtype == torch.bool
