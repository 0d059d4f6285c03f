"""Finding the layers of a network that can become quadratic, and what prevents each of them.

A layer that stands in several places has a name for each of them: all are replaced together. A
layer that must stay as it is gets a reason in words.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from quadric.errors import InputError, InputTypeError, explained
from quadric.layers import Neuron, QuadraticLayer, get_neuron, layer_kind
from quadric.support.modules import call_arguments, check_initialized, restored_eval


@dataclass
class Target:
    """A layer that could be converted, with a name for every place where it stands."""

    module: nn.Module
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first name under which the layer is found."""
        return self.names[0]


def is_attention(module: nn.Module) -> bool:
    """Whether a module is torch's attention, which is replaced as a whole.

    It never calls its out_proj, so that this layer cannot be replaced alone.
    """
    return isinstance(module, nn.MultiheadAttention)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether a module is transformers' `Conv1D`, a linear layer with a transposed weight."""
    return (
        type(module).__name__ == "Conv1D"
        and type(module).__module__.startswith("transformers.")
        and isinstance(getattr(module, "weight", None), Tensor)
        and hasattr(module, "nf")
    )


def is_quantized(module: nn.Module) -> bool:
    """Whether a module is a quantized layer of torch, which is no subclass of the plain one."""
    kind = type(module)
    named = kind.__name__ == "Linear" or kind.__name__.startswith("Conv")
    return named and kind.__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized"))


def is_candidate(module: nn.Module) -> bool:
    """Whether a module is of a kind that the converter replaces."""
    return layer_kind(module) is not None or is_attention(module) or is_transposed_linear(module)


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Visits every place of every module, and enters each parent once.

    `named_modules()` yields a layer that stands in several places only once, or circles for ever.
    """
    entered: set[int] = set()

    def enter(prefix: str, parent: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if id(parent) in entered:
            return
        entered.add(id(parent))
        for key, child in parent._modules.items():
            if child is None:
                continue
            name = f"{prefix}{key}"
            yield name, child
            if not (is_attention(child) or isinstance(child, QuadraticLayer)):
                yield from enter(name + ".", child)

    yield from enter("", model)


def collect(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> list[Target]:
    """The modules of a model for which `wanted` is true, each with all its places."""
    targets: dict[int, Target] = {}
    for name, module in walk(model):
        if wanted(module):
            targets.setdefault(id(module), Target(module)).names.append(name)
    return list(targets.values())


def find_targets(model: nn.Module) -> list[Target]:
    """The candidates in registration order, with the layers that are quadratic or quantized."""
    return collect(
        model, lambda m: is_candidate(m) or isinstance(m, QuadraticLayer) or is_quantized(m)
    )


@dataclass(frozen=True)
class Surroundings:
    """How the rest of a model depends on its layers."""

    tied: set[int]  # the ids of parameters that more than one module holds
    held: dict[int, str]  # for the id of a module, where it is held outside of the submodules
    adapters: set[int]  # the ids of modules that belong to an adapter around another layer


def look_around(model: nn.Module) -> Surroundings:
    """Finds shared parameters, and modules that are kept in plain attributes, lists or dicts."""
    seen: set[int] = set()
    tied: set[int] = set()
    held: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter in {id(p) for p in module._parameters.values() if p is not None}:
            (tied if parameter in seen else seen).add(parameter)
        for attribute, value in vars(module).items():
            if attribute in _OWN_TABLES:
                continue
            for inner in _modules_in(value):
                if inner is not module:
                    held.setdefault(id(inner), f"{name}.{attribute}" if name else attribute)
    adapters = {id(m) for module in model.modules() for m in _adapter_modules(module)}
    return Surroundings(tied, held, adapters)


def _adapter_modules(module: nn.Module) -> Iterator[nn.Module]:
    """What a module holds besides the layer it adapts, as peft and others name it."""
    around = "base_layer" in module._modules
    copied = "modules_to_save" in module._modules
    for key, child in module._modules.items():
        low_rank = key.lower().startswith("lora")
        beside = (around and key != "base_layer") or (copied and key == "original_module")
        if child is not None and (low_rank or beside):
            yield from child.modules()


_OWN_TABLES = set(vars(nn.Module()))
_MANY = 10_000  # a container of more entries holds data, not layers


def _modules_in(value: Any, depth: int = 3) -> Iterator[nn.Module]:
    """The modules that a plain attribute holds: itself, in containers, bound to functions."""
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, types.MethodType):
        yield from _modules_in(value.__self__, 1)
    elif depth == 0:
        return
    elif isinstance(value, functools.partial):
        yield from _modules_in([value.func, *value.args, *value.keywords.values()], depth)
    elif isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) < _MANY:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _modules_in(inner, depth - 1)


@contextlib.contextmanager
def naming_layer(name: str) -> Iterator[None]:
    """A context whose errors say which layer they are about, and how to leave it out."""
    try:
        yield
    except (ValueError, TypeError) as error:
        kind = InputError if isinstance(error, ValueError) else InputTypeError
        raise kind(
            f"{error} (layer {name!r}): leave the layer linear with exclude=[{name!r}]"
        ) from None


def keeps_weights(row: type[Neuron], start: str) -> bool:
    """Whether a layer with this start keeps the weight and bias of the linear layer."""
    return start == "linear" or not row.redraws


def obstacle(target: Target, options: Mapping[str, Any], around: Surroundings) -> str | None:
    """Why a layer must stay linear; `options` are those that `make_layer` would get."""
    module, row = target.module, get_neuron(options["neuron"])
    keeps = keeps_weights(row, options["init"])
    with naming_layer(target.name):
        own = {k: v for k, v in options.items() if k not in ("neuron", "init")}
        neuron = row.with_options(**own)
    if isinstance(module, QuadraticLayer):
        return f"already quadratic ({module.neuron})"
    if is_quantized(module):
        return "it is quantized"
    check_initialized(module, target.name)
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if id(module) in around.held:
        where = around.held[id(module)]
        return f"it is also held outside of the submodules (by {where}), where it would stay"
    if any(getattr(h, "with_module", False) for h in module._load_state_dict_pre_hooks.values()):
        return "it has a load_state_dict pre-hook, which is bound to it"
    if id(module) in around.adapters:
        return "it belongs to an adapter around another layer (LoRA and the like)"
    if is_attention(module):
        if any(name.split(".")[-1] == "base_layer" for name in target.names):
            return "the adapter around it reads its weights itself"
        return _attention_obstacle(module, neuron, around.tied, keeps)
    transposed = is_transposed_linear(module)
    kind: Any = type(module) if transposed else layer_kind(module)
    if kind.__name__.startswith("ConvTranspose") and not neuron.transposable:
        return f"the neuron {neuron.name} has no transposed convolution"
    if parametrize.is_parametrized(module) or "weight" not in module._parameters:
        return "its weight is computed (a parametrization, weight or spectral norm)"
    added = _added_by_subclass(module, kind)
    if added:
        return f"{type(module).__name__} is a subclass with its own {added[0]}"
    more = set(module._parameters) - {"weight", "bias"}
    more |= set(module._buffers) | set(module._modules)
    if more:
        return f"it has its own parameters, buffers or modules ({', '.join(sorted(more))})"
    weight: Any = module.weight
    special = _special(module)
    if special:
        return special
    expected = _weight_shape(module, kind)
    if tuple(weight.shape) != expected or 0 in expected:
        return f"its weight has the shape {tuple(weight.shape)}, where {expected} was expected"
    for name, parameter in module._parameters.items():
        if id(parameter) in around.tied and not keeps:
            return f"its {name} is shared with another layer, and this start would replace it"
    if id(weight) in around.tied and transposed:
        return "its weight is shared with another layer, and is stored transposed"
    return _room(module, neuron)


def _added_by_subclass(module: nn.Module, kind: type) -> list[str]:
    """What a subclass of a torch layer adds or changes, which a layer of neurons would not have."""
    harmless = {"reset_parameters", "extra_repr", "_is_hf_initialized"}
    between = type(module).__mro__[: type(module).__mro__.index(kind)]
    names = {name for cls in between for name in vars(cls)} - harmless
    changing = ("__call__", "__getattr__")
    # What changes the layer's function comes first.
    own = [n for n in names if not n.startswith("__") or n in changing]
    return sorted(own, key=lambda n: (n not in (*changing, "forward", "_conv_forward"), n))


def _special(module: nn.Module, prefix: str = "") -> str | None:
    """Which parameter of a module is not a plain tensor of real numbers, in words."""
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        for kind, plain in ((type(parameter), nn.Parameter), (type(parameter.data), Tensor)):
            if kind is not plain:
                return f"its {prefix}{name} is a special tensor ({kind.__name__}), maybe quantized"
        if not parameter.is_floating_point() or parameter.dtype.itemsize < 2:
            return f"its {prefix}{name} has the dtype {parameter.dtype}"
    return None


def _weight_shape(module: Any, kind: type) -> tuple[int, ...]:
    """The shape of the weight that goes with a layer's attributes."""
    if is_transposed_linear(module):
        return (module.nx, module.nf) if hasattr(module, "nx") else tuple(module.weight.shape)
    if kind is nn.Linear:
        return (module.out_features, module.in_features)
    ends = (module.out_channels, module.in_channels)
    first, second = reversed(ends) if kind.__name__.startswith("ConvTranspose") else ends
    return (first, second // module.groups, *module.kernel_size)


def _room(module: Any, neuron: Neuron) -> str | None:
    """Why the outputs of a layer leave no room for the neuron's groups, or None."""
    groups = getattr(module, "groups", 1)
    outputs = next(
        getattr(module, n) for n in ("out_channels", "out_features", "nf") if hasattr(module, n)
    )
    per_group = outputs // groups
    if groups > 1 and module.in_channels == groups:
        return "depthwise convolution: a neuron would see one channel"
    blocks = neuron.blocks(outputs, groups)
    if blocks is None:
        return None
    if not blocks.num_eigenvalues:
        return "one output (in each group): no room for a feature"
    if groups > 1 and per_group < blocks.size:
        rank = getattr(neuron, "rank", 1)
        return f"small groups: {per_group} outputs each do not hold one neuron of rank {rank}"
    return None


def _attention_obstacle(module: Any, neuron: Neuron, tied: set[int], keeps: bool) -> str | None:
    if type(module).forward is not nn.MultiheadAttention.forward:
        return f"{type(module).__name__} is a subclass with its own forward"
    if not neuron.can_be_linear:
        return f"attention is converted where the neuron can represent it, and {neuron.name} cannot"
    if any(parametrize.is_parametrized(m) for m in module.modules()):
        return "its weight is computed (a parametrization)"
    special = _special(module) or _special(module.out_proj, "out_proj.")
    if special:
        return special
    # The packed projections are taken apart and become new parameters. A start that is not linear
    # replaces all parameters.
    for name, parameter in module.named_parameters():
        if id(parameter) in tied and (not keeps or name.startswith("in_proj")):
            return f"its {name} is shared with another layer"
    if type(module.out_proj) not in (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return f"its out_proj is a {type(module.out_proj).__name__}"
    return None


def run_examples(
    model: nn.Module,
    example_inputs: Any,
    watching: contextlib.AbstractContextManager[Any] | None = None,
) -> Any:
    """Runs a model once and leaves it as it was."""
    args, kwargs = call_arguments(model, example_inputs)
    remedy = "give the arguments of model.forward as a tensor, a tuple or a mapping"
    with (
        explained("example_inputs must run through the model", remedy),
        restored_eval(model),
        torch.no_grad(),
        watching or contextlib.nullcontext(),
    ):
        return model(*args, **kwargs)
