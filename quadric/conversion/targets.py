"""Finding the layers of a network that can become quadratic, and what stands against each.

Modules are walked by `parent._modules`, not by `named_modules()`: the latter yields a layer that
stands in several places only once, and all places must be replaced together. A layer that must stay
as it is gets a reason in words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from quadric.errors import InputError
from quadric.nn import QuadraticLayer
from quadric.zoo import Neuron, Rule, layer_kind

HEAD_NAMES = ("fc", "classifier", "head", "lm_head", "score", "output")
"""Names under which a last linear layer counts as the head."""

SHORTCUT_NAMES = ("downsample", "shortcut", "skip", "identity", "residual")
"""Name parts under which a 1x1 convolution counts as a shortcut, not as a layer of the main
path."""


@dataclass
class Target:
    """A layer that could be converted: the module, and every place where it stands."""

    module: nn.Module
    places: list[tuple[nn.Module, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first name under which the layer is found."""
        return self.names[0]


def is_attention(module: nn.Module) -> bool:
    """Whether a module is torch's attention, which is replaced as a whole: its out_proj is never
    called."""
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
    """Whether a module is one of torch's quantized layers, which are not subclasses of the plain
    ones."""
    kind = type(module)
    named = kind.__name__ == "Linear" or kind.__name__.startswith("Conv")
    return named and kind.__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized"))


def is_candidate(module: nn.Module) -> bool:
    """Whether a module is of a kind that the converter replaces."""
    return layer_kind(module) is not None or is_attention(module) or is_transposed_linear(module)


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Every place of every module: (full name, parent, key, module). Each parent is entered
    once."""
    entered: set[int] = set()

    def enter(prefix: str, parent: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
        if id(parent) in entered:
            return
        entered.add(id(parent))
        for key, child in parent._modules.items():
            if child is None:
                continue
            name = f"{prefix}{key}"
            yield name, parent, key, child
            if not (is_attention(child) or isinstance(child, QuadraticLayer)):
                yield from enter(name + ".", child)

    yield from enter("", model)


def find_targets(model: nn.Module) -> list[Target]:
    """The candidates in registration order, and the layers that are quadratic or quantized
    already."""
    found: dict[int, Target] = {}
    for name, parent, key, module in walk(model):
        if is_candidate(module) or isinstance(module, QuadraticLayer) or is_quantized(module):
            target = found.setdefault(id(module), Target(module))
            target.places.append((parent, key))
            target.names.append(name)
    return list(found.values())


@dataclass(frozen=True)
class Surroundings:
    """What the rest of a model has to do with its layers.

    Attributes:
        tied: the ids of parameters that more than one module holds.
        held: for the id of a module, who else holds it outside of its submodules.
    """

    tied: set[int]
    held: dict[int, str]


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
                    where = f"{name}.{attribute}" if name else attribute
                    held.setdefault(id(inner), where)
    return Surroundings(tied, held)


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


def obstacle(
    target: Target, row: Neuron, rule: Rule, around: Surroundings, keeps: bool
) -> str | None:
    """Why a layer must stay linear, or None. Raises for a layer that has no parameters yet.

    Args:
        target: the layer.
        row: the neuron it is to become.
        rule: that neuron with its options.
        around: what the rest of the model has to do with it.
        keeps: whether the new layer keeps the parameters.
    """
    module = target.module
    if isinstance(module, QuadraticLayer):
        return f"already quadratic ({module.neuron})"
    if is_quantized(module):
        return "it is quantized"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise InputError(
            f"the layer {target.name!r} must have its parameters, got an uninitialized "
            f"{type(module).__name__}: run one forward pass first"
        )
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if id(module) in around.held:
        where = around.held[id(module)]
        return f"it is also held outside of the submodules (by {where}), where it would stay"
    if any(getattr(h, "with_module", False) for h in module._load_state_dict_pre_hooks.values()):
        return "it has a load_state_dict pre-hook, which is bound to it"
    if is_attention(module):
        return _attention_obstacle(module, row, around.tied, keeps)
    kind: Any = type(module) if is_transposed_linear(module) else layer_kind(module)
    changed = [
        name for name in _COMPUTING if _method(type(module), name) is not _method(kind, name)
    ]
    if changed:
        return f"{type(module).__name__} is a subclass with a {changed[0]} of its own"
    if kind.__name__.startswith("ConvTranspose") and row.name != "eigen":
        return f"transposed convolutions exist for the neuron eigen alone, not for {row.name}"
    if parametrize.is_parametrized(module) or "weight" not in module._parameters:
        return "its weight is computed (a parametrization, weight or spectral norm)"
    added = _added_by_subclass(module, kind)
    if added:
        return f"{type(module).__name__} is a subclass with {added[0]} of its own"
    own = set(module._parameters) - {"weight", "bias"} | set(module._buffers) | set(module._modules)
    if own:
        return f"it has parameters, buffers or modules of its own ({', '.join(sorted(own))})"
    weight: Any = module.weight
    special = _special("weight", weight) or _special("bias", module._parameters.get("bias"))
    if special:
        return special
    expected = _weight_shape(module, kind)
    if tuple(weight.shape) != expected or 0 in expected:
        return f"its weight has the shape {tuple(weight.shape)}, where {expected} was expected"
    for name, parameter in module._parameters.items():
        if id(parameter) in around.tied and not keeps:
            return f"its {name} is shared with another layer, and this start would replace it"
    if id(weight) in around.tied and is_transposed_linear(module):
        return "its weight is shared with another layer, and is stored transposed"
    return _room(module, row, rule)


def _added_by_subclass(module: nn.Module, kind: type) -> list[str]:
    """What a subclass of a torch layer brings that a layer of neurons would not have."""
    harmless = {"reset_parameters", "extra_repr", "_is_hf_initialized"}
    between = type(module).__mro__[: type(module).__mro__.index(kind)]
    names = {name for cls in between for name in vars(cls)}
    return sorted(n for n in names - harmless if not n.startswith("__"))


# What decides on a layer's output; a subclass that changes one of these computes something else.
_COMPUTING = ("forward", "_conv_forward", "_output_padding", "__call__", "__getattr__")


def _method(kind: type, name: str) -> Any:
    return getattr(kind, name, None)


def _special(name: str, parameter: Any) -> str | None:
    if parameter is None:
        return None
    if type(parameter) is not nn.Parameter or type(parameter.data) is not Tensor:
        kind = type(parameter if type(parameter) is not nn.Parameter else parameter.data).__name__
        return f"its {name} is a {kind}, quantized or otherwise special"
    if not parameter.is_floating_point() or parameter.dtype.itemsize < 2:
        return f"its {name} has the dtype {parameter.dtype}"
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


def _room(module: Any, row: Neuron, rule: Rule) -> str | None:
    """Why the outputs of a layer leave no room for the neuron's groups, or None."""
    groups = getattr(module, "groups", 1)
    outputs = next(
        getattr(module, n) for n in ("out_channels", "out_features", "nf") if hasattr(module, n)
    )
    per_group = outputs // groups
    if groups > 1 and module.in_channels == groups:
        return "depthwise convolution: a neuron would see one channel"
    if row.name == "eigen" and per_group < 2:
        return "one output (in each group): no room for a feature"
    size = {"eigen": 1, "shared": 0}.get(row.name)
    rank = getattr(rule, "rank", None)
    if groups > 1 and size is not None and rank is not None and per_group < rank + size:
        return f"small groups: {per_group} outputs each do not hold one neuron of rank {rank}"
    return None


def _attention_obstacle(module: Any, row: Neuron, tied: set[int], keeps: bool) -> str | None:
    if type(module).forward is not nn.MultiheadAttention.forward:
        return f"{type(module).__name__} is a subclass with a forward of its own"
    if not row.can_be_linear:
        return f"attention is converted where the neuron can represent it, and {row.name} cannot"
    if any(parametrize.is_parametrized(m) for m in module.modules()):
        return "its weight is computed (a parametrization)"
    for name, parameter in module._parameters.items():
        special = _special(name, parameter)
        if special:
            return special
    for name, parameter in module.out_proj._parameters.items():
        special = _special(f"out_proj.{name}", parameter)
        if special:
            return special
    # The packed projections are taken apart, so that they become parameters of their own; another
    # start than the linear one replaces all of them.
    names = ("in_proj_weight", "in_proj_bias") if keeps else tuple(module._parameters)
    shared = [name for name in names if id(module._parameters.get(name)) in tied]
    if not keeps:
        out = module.out_proj._parameters.items()
        shared += [f"out_proj.{name}" for name, parameter in out if id(parameter) in tied]
    if shared:
        return f"its {shared[0]} is shared with another layer"
    if type(module.out_proj) not in (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return f"its out_proj is a {type(module.out_proj).__name__}"
    return None


def is_shortcut(target: Target) -> bool:
    """Whether a layer is a 1x1 convolution on a shortcut, by its name."""
    kernel = getattr(target.module, "kernel_size", None)
    if kernel is None or any(k != 1 for k in kernel):
        return False
    parts = [part for name in target.names for part in name.split(".")]
    return any(part.startswith(SHORTCUT_NAMES) for part in parts)


def example_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments: a tensor, a tuple or a mapping."""
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    if hasattr(example_inputs, "keys"):
        return (), {key: example_inputs[key] for key in example_inputs.keys()}
    return (example_inputs,), {}


def run_examples(
    model: nn.Module,
    example_inputs: Any,
    watching: contextlib.AbstractContextManager[Any] | None = None,
    training: bool = False,
) -> Any:
    """What the model returns for example inputs; it stays as it is.

    Args:
        model: the network.
        example_inputs: a tensor, a tuple or a mapping.
        watching: entered around the forward pass.
        training: whether it runs in train mode.
    """
    args, kwargs = example_arguments(example_inputs)
    try:
        with undisturbed(model, training), torch.no_grad(), watching or contextlib.nullcontext():
            return model(*args, **kwargs)
    except Exception as error:
        raise InputError(
            f"example_inputs must run through the model, got {type(error).__name__}: {error}: "
            "give the arguments of model.forward as a tensor, a tuple or a mapping"
        ) from error


@contextlib.contextmanager
def undisturbed(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Eval or train mode; afterwards training flags, buffers and the random state are as they
    were.
    """
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        model.train(training)
        with torch.random.fork_rng(devices=sorted(d or 0 for d in devices)):
            yield
    finally:
        for module, training in flags:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                if not buffer.is_meta and not torch.equal(buffer, value):
                    buffer.copy_(value)


@dataclass
class Trace:
    """What one forward pass showed.

    Attributes:
        order: the targets in the order of their first calls; behind them those never called.
        uncalled: the ids of the latter.
        makes_output: the ids of the modules whose result is an output of the model.
        shortcuts: the ids of 1x1 convolutions beside the main path.
    """

    order: list[Target]
    uncalled: set[int]
    makes_output: set[int]
    shortcuts: set[int]


def trace(model: nn.Module, targets: list[Target], example_inputs: Any) -> Trace:
    """Runs the model once and watches the targets."""
    for name, module in model.named_modules():
        # A forward pass would make its parameters: the model must stay as it is.
        lazy: Any = module
        if isinstance(module, LazyModuleMixin) and lazy.has_uninitialized_params():
            raise InputError(
                f"the layer {name!r} must have its parameters, got an uninitialized "
                f"{type(module).__name__}: run one forward pass first"
            )
    calls: dict[int, tuple[list[Any], list[Any]]] = {}
    order: list[int] = []

    def watch(module: nn.Module, inputs: Any, output: Any) -> None:
        key = id(module)
        if key not in calls:
            order.append(key)
        seen = calls.setdefault(key, ([], []))
        seen[0].extend(t for t in inputs if isinstance(t, Tensor))
        seen[1].extend(tensors_of(output))

    handles = [target.module.register_forward_hook(watch) for target in targets]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused path calls no submodule
    try:
        result = run_examples(model, example_inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    outputs = {_storage(t) for t in tensors_of(result)}
    by_id = {id(target.module): target for target in targets}
    makes = {key for key, (_, made) in calls.items() if any(_storage(t) in outputs for t in made)}
    called = [by_id[key] for key in order]
    uncalled = [target for target in targets if id(target.module) not in calls]
    ids = {id(target.module) for target in uncalled}
    return Trace(called + uncalled, ids, makes, _parallel_pointwise(called, calls))


def _parallel_pointwise(
    called: list[Target], calls: dict[int, tuple[list[Any], list[Any]]]
) -> set[int]:
    """1x1 convolutions that read the same tensor as a larger one: shortcuts, whatever their
    name."""
    larger: set[int] = set()
    for target in called:
        kernel = getattr(target.module, "kernel_size", None)
        if kernel is not None and any(k != 1 for k in kernel):
            larger.update(id(t) for t in calls[id(target.module)][0])
    found = set()
    for target in called:
        kernel = getattr(target.module, "kernel_size", None)
        if kernel is not None and all(k == 1 for k in kernel):
            inputs = calls[id(target.module)][0]
            if any(id(t) in larger for t in inputs):
                found.add(id(target.module))
    return found


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in what a module returned: in sequences, mappings and dataclasses, too."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors_of(v)]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in tensors_of(v)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [t for v in vars(value).values() for t in tensors_of(v)]
    return []


def _storage(tensor: Tensor) -> Any:
    if tensor.is_meta:  # no addresses there: views share the storage object
        return tensor.untyped_storage()._cdata
    return tensor.untyped_storage().data_ptr() or id(tensor)


def find_head(model: nn.Module, targets: list[Target], traced: Trace | None) -> Target | None:
    """The head: the last linear layer, if it makes the model's output, has a head's name, or ends a
    Sequential."""
    order = targets
    if traced is not None:
        order = [t for t in traced.order if id(t.module) not in traced.uncalled]
        called = [t for t in order if isinstance(t.module, (nn.Linear, QuadraticLayer))]
        # The last one called: a cache of keys and values hands out results of earlier layers too.
        if called and id(called[-1].module) in traced.makes_output:
            return called[-1] if isinstance(called[-1].module, nn.Linear) else None
    linear = [t for t in order if isinstance(t.module, nn.Linear)]
    if not linear:
        return None
    last = linear[-1]
    for name in last.names:
        # Trailing numbers are places in a Sequential, not names: classifier.6 is a classifier.
        parts = name.split(".")
        while len(parts) > 1 and parts[-1].isdigit():
            parts.pop()
        if parts[-1] in HEAD_NAMES:
            return last
    return last if _ends_in(model, last.module) else None


def _ends_in(model: nn.Module, layer: nn.Module) -> bool:
    """Whether a model is a Sequential (of Sequentials) that ends in the layer."""
    while type(model).__name__ in ("OptimizedModule", "DataParallel"):  # compiled, or replicated
        model = next(model.children())
    while isinstance(model, nn.Sequential) and len(model):
        model = list(model._modules.values())[-1]  # type: ignore[assignment]
        if model is layer:
            return True
    return False
