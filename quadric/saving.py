"""Quadratic models as safetensors files that load into the plain model.

The header says which layers are quadratic, with which neuron, rank and options, so that `load_` can
convert a plain model before it fills it. A file of the quadratic parameters alone is an adapter: a
few numbers a channel on top of weights that the model already has. Nothing is unpickled. A file is
checked whole before a model is touched, and a failure after the conversion takes it back.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from quadric.attention import QuadraticMultiheadAttention
from quadric.conversion.convert import check_convertible, plan_conversion
from quadric.conversion.swapping import Swap
from quadric.conversion.targets import walk
from quadric.errors import FileError, InputError, InputTypeError
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.zoo import NeuronLayer, get_neuron

KEY = "quadric"
"""The entry of a file's metadata that holds our header, as JSON."""

FORMAT = 1
"""The version of the header; files of a later one are refused."""

# Options that do not change what a layer computes: layers that differ in these agree.
_INDIFFERENT = ("eigenvalue_init", "recompute", "max_bytes")


@dataclass(frozen=True)
class SavedLayer:
    """What a file says of one quadratic layer.

    Attributes:
        neuron: the registry name of its neuron.
        rank: its rank, None for a neuron without one.
        attention: whether it is an attention, whose four projections are such layers.
        options: the neuron's further options, those that are not the default.
    """

    neuron: str
    rank: int | None
    attention: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is empty is left out."""
        entry: dict[str, Any] = {"neuron": self.neuron, "rank": self.rank}
        if self.attention:
            entry["attention"] = True
        if self.options:
            entry["options"] = dict(self.options)
        return entry

    def agrees(self, other: SavedLayer) -> bool:
        """Whether both compute the same function of their parameters."""
        mine, theirs = (
            {k: v for k, v in layer.options.items() if k not in _INDIFFERENT}
            for layer in (self, other)
        )
        return (self.neuron, self.rank, mine) == (other.neuron, other.rank, theirs)

    def plan(self) -> dict[str, Any]:
        """The entry of a conversion plan that makes this layer of a linear one."""
        start = "linear" if get_neuron(self.neuron).can_be_linear else "published"
        return {"neuron": self.neuron, "rank": self.rank, "init": start, **self.options}

    def __str__(self) -> str:
        words = [self.neuron] + ([] if self.rank is None else [f"rank {self.rank}"])
        return ", ".join(words + [f"{k}={v!r}" for k, v in self.options.items()])


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        version: the version of Quadric that wrote it.
        content: "model", or "quadratic" for an adapter.
        layers: the quadratic layers by name.
        aliases: names of tensors that are stored under another name, and that name.
    """

    version: str
    content: str
    layers: Mapping[str, SavedLayer]
    aliases: Mapping[str, str]

    def to_json(self) -> str:
        """The header as it is written."""
        neurons = {layer.neuron for layer in self.layers.values()}
        ranks = {layer.rank for layer in self.layers.values()}
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "content": self.content,
                # For readers; None where the layers differ, which say it each for themselves.
                "neuron": neurons.pop() if len(neurons) == 1 else None,
                "rank": ranks.pop() if len(ranks) == 1 else None,
                "layers": {name: layer.to_dict() for name, layer in self.layers.items()},
                "aliases": dict(self.aliases),
            },
            allow_nan=False,
        )


def save(model: nn.Module, path: str | os.PathLike[str], only: str | None = None) -> None:
    """Writes a model to a safetensors file that loads into the plain model.

    Tensors that several names share are written once. The file appears under its name only when it
    is complete.

    Args:
        model: a model, quadratic or not; one wrapped by DistributedDataParallel, DataParallel or
            torch.compile is saved as what is inside.
        path: the file; one that exists is replaced.
        only: "quadratic" for the quadratic parameters alone: an adapter of a few KB, to be loaded
            onto a model that has the weights already.

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
    _check_is_module(model)
    if only not in (None, "quadratic"):
        raise InputError(
            f"only must be None or 'quadratic', got {only!r}: leave it out to save everything"
        )
    model = _unwrapped(model)
    layers = dict(_first_names(model))
    state = _tensors_of(model)
    if only == "quadratic":
        _check_adapter(model, layers)
        keys = quadratic_keys(model)
        state = {key: tensor for key, tensor in state.items() if key in keys}
    stored, aliases = _without_copies(state)
    from quadric import __version__

    content = "quadratic" if only else "model"
    header = Header(__version__, content, layers, aliases)
    # transformers and others look for the format of the tensors.
    metadata = {"format": "pt", KEY: header.to_json()}
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    unfinished = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(unfinished, "wb") as file:
            mode = os.fstat(file.fileno()).st_mode  # the user's; save_file lets nobody else read
        save_file(stored, unfinished, metadata)
        os.chmod(unfinished, mode)
        os.replace(unfinished, path)
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"the model cannot be written to {path}: {error}") from error
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def load_(model: nn.Module, path: str | os.PathLike[str]) -> list[str]:
    """Fills a model from a file that `save` wrote, and converts its layers first where needed.

    The model may be the plain one, whose layers are then made quadratic as the file says, or one
    that has such layers already. It keeps its devices and dtypes. From an adapter file it takes the
    quadratic parameters and keeps its own weights. If anything is wrong with the file or it does
    not fit, the model stays as it was.

    Args:
        model: the model to fill. An optimizer or DistributedDataParallel must come after the
            conversion.
        path: the file.

    Returns:
        The names of the layers that were converted; empty if the model had them all.
    """
    _check_is_module(model)
    path = os.fspath(path)
    header, tensors = _read(path)
    inner = _unwrapped(model)
    swap, names = _conversion(model, inner, header, path)
    swap.do()
    before: dict[str, Tensor] = {}
    try:
        values = _fitting(inner, header, tensors, path)
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
    return names


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a file says of itself, without its tensors."""
    path = os.fspath(path)
    with _opened(path) as file:
        return _parse(file.metadata(), set(file.keys()), path)


# ------------------------------------------------------------------------------------------------
# What a model has
# ------------------------------------------------------------------------------------------------


def _check_is_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers that put a prefix before all names."""
    while True:
        inner = model._modules.get("_orig_mod")
        if type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model._modules.get("module")
        if inner is None:
            return model
        model = inner


def describe_layer(layer: QuadraticLayer) -> SavedLayer:
    """Neuron, rank and further options of a layer, as a file records them."""
    if isinstance(layer, EigenLayer):
        options: dict[str, Any] = {
            "eigenvalue_init": layer.eigenvalue_init,
            "normalize": layer.normalize,
            "recompute": layer.recompute,
        }
    elif isinstance(layer, NeuronLayer):
        options = layer.rule.options()
        options.pop("rank", None)
    else:
        options = {}
    if callable(options.get("eigenvalue_init")):
        del options["eigenvalue_init"]  # only a fresh layer needs it
    defaults = get_neuron(layer.neuron).options
    options = {k: v for k, v in options.items() if k not in defaults or v != defaults[k]}
    return SavedLayer(layer.neuron, layer.rank, options=options)


def _quadratic_parts(model: nn.Module) -> Iterator[tuple[str, SavedLayer, int]]:
    """Every place of every quadratic layer, an attention of one neuron as a whole: (name, what it
    is, id of the module)."""
    parts: set[int] = set()
    if isinstance(model, QuadraticLayer):
        yield "", describe_layer(model), id(model)
        return
    for name, _, _, module in walk(model):
        if isinstance(module, QuadraticMultiheadAttention):
            projections = list(module.children())
            if all(isinstance(p, QuadraticLayer) for p in projections):
                described = [describe_layer(p) for p in projections]  # type: ignore[arg-type]
                if all(one == described[0] for one in described):
                    parts.update(id(p) for p in projections)
                    one = described[0]
                    whole = SavedLayer(one.neuron, one.rank, True, one.options)
                    yield name, whole, id(module)
        elif isinstance(module, QuadraticLayer) and id(module) not in parts:
            yield name, describe_layer(module), id(module)


def _first_names(model: nn.Module) -> Iterator[tuple[str, SavedLayer]]:
    """The quadratic layers by their first name, checked to be what a file can record."""
    seen: set[int] = set()
    for name, layer, module in _quadratic_parts(model):
        if module in seen:
            continue
        seen.add(module)
        for option, value in layer.options.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise InputError(
                    f"options of a neuron must be plain values to be saved, got {option}={value!r} "
                    f"(layer {name!r}): use a number or a string"
                ) from None
        yield name, layer
    for name, module in model.named_modules():
        if isinstance(module, QuadraticLayer) and parametrize.is_parametrized(module):
            raise InputError(
                "the parameters of a quadratic layer must be plain to be saved, got a "
                f"parametrization in {name!r}: remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations first"
            )


def quadratic_keys(model: nn.Module) -> set[str]:
    """The names in the state dict of all quadratic parameters, under every name a layer has."""
    return {
        f"{name}.{key}" if name else key
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, QuadraticLayer)
        for key in module.quadratic_parameters()
    }


def _check_adapter(model: nn.Module, layers: Mapping[str, SavedLayer]) -> None:
    if not layers:
        raise InputError(
            f"an adapter needs quadratic layers, got {type(model).__name__} without any: convert "
            "the model first with quadric.convert_(model)"
        )
    for name, layer in layers.items():
        if not get_neuron(layer.neuron).can_be_linear:
            raise InputError(
                "an adapter needs neurons that are a linear layer and something on top, got the "
                f"neuron {layer.neuron!r} (layer {name!r}): save the whole model instead"
            )


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"a state dict must hold tensors alone to be saved, got {key!r} of type "
                f"{type(value).__name__}: use torch.save for a module with a state of its own"
            )
        if is_lazy(value):
            raise InputError(
                f"every parameter must have values to be saved, got the lazy {key!r}: run one "
                "forward pass first"
            )
        if value.is_meta:
            raise InputError(
                f"every tensor must have values to be saved, got {key!r} on the meta device: fill "
                "the model first"
            )
        if type(value.data) is not Tensor or value.layout is not torch.strided:
            kind = type(value.data).__name__
            raise InputError(
                f"every tensor must be a plain dense one to be saved, got {key!r}, a {kind} with "
                f"layout {value.layout}: gather, densify or dequantize it first"
            )
        state[key] = value
    return state


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    place = (tensor.device, tensor.data_ptr()) if tensor.numel() else (id(tensor),)
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _without_copies(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, on the CPU and contiguous; and for the others' names the one it has."""
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[tuple[Any, ...], str] = {}
    for key, tensor in state.items():
        first = names.setdefault(_identity(tensor), key)
        if first == key:
            # A copy where only a part of a storage is meant: safetensors refuses shared ones.
            whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
            plain = tensor.detach().cpu().contiguous()
            same = plain.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            stored[key] = plain.clone() if same and not whole else plain
        else:
            aliases[key] = first
    return stored, aliases


# ------------------------------------------------------------------------------------------------
# Reading
# ------------------------------------------------------------------------------------------------


def _opened(path: str) -> Any:
    """The file, opened; what is not a whole safetensors file gets one error that names it."""
    if not os.path.exists(path):
        raise FileError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if os.path.isdir(path):
        raise FileError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path} must be a safetensors file that quadric.save wrote, got a truncated, damaged "
            f"or foreign one ({error}): write it again"
        ) from None


def _read(path: str) -> tuple[Header, dict[str, Tensor]]:
    with _opened(path) as file:
        names = list(file.keys())
        header = _parse(file.metadata(), set(names), path)
        try:
            return header, {name: file.get_tensor(name) for name in names}
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise InputError(f"{path} is damaged ({error}): write it again") from None


def _parse(metadata: Mapping[str, str] | None, names: set[str], path: str) -> Header:
    if not metadata or KEY not in metadata:
        raise InputError(
            f"{path} must be a file that quadric.save wrote, got a safetensors file without its "
            "header: a linear checkpoint loads with "
            f"model.load_state_dict(safetensors.torch.load_file({path!r}))"
        )
    try:
        raw = json.loads(metadata[KEY])
        if not isinstance(raw["format"], int):
            raise InputTypeError("format is not a number")
        if raw["format"] > FORMAT:
            raise InputError(
                f"{path} was written by Quadric {raw.get('version')} in format {raw['format']}, "
                f"but this version reads formats up to {FORMAT}: update quadric"
            )
        layers = {
            str(name): SavedLayer(
                _expect(str, entry["neuron"]),
                None if entry["rank"] is None else _expect(int, entry["rank"]),
                _expect(bool, entry.get("attention", False)),
                _expect(dict, entry.get("options", {})),
            )
            for name, entry in _expect(dict, raw["layers"]).items()
        }
        aliases = _expect(dict, raw["aliases"])
        content = raw["content"]
        if content not in ("model", "quadratic") or not set(aliases.values()) <= names:
            raise InputTypeError("its parts do not go together")
        return Header(_expect(str, raw["version"]), content, layers, aliases)
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path} has a damaged header ({type(error).__name__}: {error}): write the file again "
            "with quadric.save"
        ) from None


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputTypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _conversion(
    model: nn.Module, inner: nn.Module, header: Header, path: str
) -> tuple[Swap, list[str]]:
    """The swap that makes the layers of the file which the model does not have yet."""
    present: dict[str, tuple[SavedLayer, int]] = {}
    for name, layer, module in _quadratic_parts(inner):
        present[name] = (layer, module)
    for name, (layer, _) in present.items():
        wanted = header.layers.get(name)
        if wanted is not None and not wanted.agrees(layer):
            raise InputError(
                f"the layers of the model and of {path} must agree, but {name!r} is {layer} in the "
                f"model and {wanted} in the file: load the file into the plain model"
            )
    known = {present[name][1] for name in header.layers if name in present}
    extra = [name for name, (_, module) in present.items() if module not in known]
    if extra:
        raise InputError(
            f"the layers of the model and of {path} must agree, but {extra[0]!r} is "
            f"{present[extra[0]][0]} in the model and linear in the file"
            + (f", as are {len(extra) - 1} more" if len(extra) > 1 else "")
            + ": load the file into the plain model"
        )
    plan = {}
    for name, layer in header.layers.items():
        if name in present:
            continue
        try:
            plan[name] = layer.plan()
        except ValueError as error:
            raise InputError(f"{path} cannot be loaded: {error} (layer {name!r})") from None
    if not plan:
        return Swap(inner, []), []
    check_convertible(model)
    try:
        # What a start draws is overwritten: the user's random numbers stay as they were.
        with torch.random.fork_rng(devices=[]):
            return plan_conversion(inner, plan), list(plan)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit the model: {error}") from None


def _fitting(
    model: nn.Module, header: Header, tensors: Mapping[str, Tensor], path: str
) -> dict[str, Tensor]:
    """The tensors of the file by all their names, once they are known to fit the model."""
    values = dict(tensors) | {key: tensors[first] for key, first in header.aliases.items()}
    state = model.state_dict()
    adapter = header.content == "quadratic"
    keys = quadratic_keys(model) if adapter else set(state)
    missing = [key for key in state if key in keys and key not in values]
    unexpected = [key for key in values if key not in keys]
    if missing or unexpected:
        found = [f"{_some(missing)} missing"] if missing else []
        found += [f"{_some(unexpected)} unknown to the model"] if unexpected else []
        raise InputError(
            f"the tensors of {path} must be those of the model, got {' and '.join(found)}: load it "
            "into a model of the same architecture"
        )
    sources: dict[tuple[Any, ...], str] = {}
    for key, value in values.items():
        own = state[key]
        if not isinstance(own, Tensor) or own.is_meta:
            raise InputError(
                f"the model must have storage to be loaded into, got {key!r} on the meta device: "
                "call model.to_empty(device='cpu') first"
            )
        if own.shape != value.shape:
            raise InputError(
                f"the tensors of {path} must have the shapes of the model, got {key!r} of shape "
                f"{tuple(value.shape)}, not {tuple(own.shape)}: load it into a model of the same "
                "architecture"
            )
        if _number_kind(own.dtype) != _number_kind(value.dtype):
            raise InputError(
                f"the tensors of {path} must be of the model's kind of number, got {key!r} as "
                f"{value.dtype} for {own.dtype}: load it into a model of the same architecture"
            )
        first = sources.setdefault(_identity(own), key)
        same = torch.allclose(values[first], value, rtol=0, atol=0, equal_nan=True)
        if first != key and not same:
            raise InputError(
                f"tensors that the model shares must be equal in {path}, but {first!r} and {key!r} "
                "differ: load it into a model that does not share them"
            )
    return values


def _number_kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "real"
    return "complex" if dtype.is_complex else "bool" if dtype == torch.bool else "integer"


def _some(names: list[str], at_most: int = 3) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(map(repr, names[:at_most])) + more
