"""Finding the layers of a network that can become quadratic, and what stands against each.

Modules are walked by `parent._modules`, not by `named_modules()`: the latter yields a layer that
stands in several places
only once, and all places must be replaced together. A layer that must stay as it is gets a reason
in words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from quadric.attention import QuadraticMultiheadAttention
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
    """The candidates in registration order, and the layers that are quadratic already."""
    found: dict[int, Target] = {}
    for name, parent, key, module in walk(model):
        if is_candidate(module) or isinstance(module, QuadraticLayer):
            target = found.setdefault(id(module), Target(module))
            target.places.append((parent, key))
            target.names.append(name)
    return list(found.values())


def obstacle(target: Target, row: Neuron, rule: Rule, tied: set[int], keeps: bool) -> str | None:
    """Why a layer must stay linear, or None. Raises for a layer that has no parameters yet."""
    module = target.module
    if isinstance(module, QuadraticLayer):
        return f"already quadratic ({module.neuron})"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise ValueError(
            f"the layer {target.name!r} must have its parameters, got an uninitialized "
            f"{type(module).__name__}: run one "
            "forward pass first"
        )
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if is_attention(module):
        return _attention_obstacle(module, row)
    if not is_transposed_linear(module):
        kind: Any = layer_kind(module)
        if type(module).forward is not kind.forward:
            return f"{type(module).__name__} is a subclass with a forward of its own"
        if kind.__name__.startswith("ConvTranspose") and row.name != "eigen":
            return f"transposed convolutions exist for the neuron eigen alone, not for {row.name}"
    if parametrize.is_parametrized(module) or "weight" not in module._parameters:
        return "its weight is computed (a parametrization, weight or spectral norm)"
    own = set(module._parameters) - {"weight", "bias"} | set(module._buffers) | set(module._modules)
    if own:
        return f"it has parameters, buffers or modules of its own ({', '.join(sorted(own))})"
    weight = module.weight
    if type(weight) is not nn.Parameter or type(weight.data) is not Tensor:
        return f"its weight is a {type(weight.data).__name__}, quantized or otherwise special"
    if not weight.is_floating_point():
        return f"its weight has the dtype {weight.dtype}"
    if id(weight) in tied and not keeps:
        return "its weight is shared with another layer, and this start would replace it"
    if id(weight) in tied and is_transposed_linear(module):
        return "its weight is shared with another layer, and is stored transposed"
    return _room(module, row, rule)


def _room(module: Any, row: Neuron, rule: Rule) -> str | None:
    """Why the outputs of a layer leave no room for the neuron's groups, or None."""
    groups = getattr(module, "groups", 1)
    outputs = getattr(module, "out_channels", None) or getattr(module, "out_features", None)
    outputs = outputs or module.nf
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


def _attention_obstacle(module: Any, row: Neuron) -> str | None:
    if type(module).forward is not nn.MultiheadAttention.forward:
        return f"{type(module).__name__} is a subclass with a forward of its own"
    if not row.can_be_linear:
        return f"attention is converted where the neuron can represent it, and {row.name} cannot"
    if parametrize.is_parametrized(module) or parametrize.is_parametrized(module.out_proj):
        return "its weight is computed (a parametrization)"
    names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    for name in names:
        weight = getattr(module, name, None)
        if weight is not None and type(weight) is not nn.Parameter:
            return f"its {name} is a {type(weight).__name__}, quantized or otherwise special"
    return None


def tied_parameters(model: nn.Module) -> set[int]:
    """The ids of parameters that more than one module holds."""
    seen: set[int] = set()
    tied: set[int] = set()
    for module in model.modules():
        for parameter in {id(p) for p in module._parameters.values() if p is not None}:
            (tied if parameter in seen else seen).add(parameter)
    return tied


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


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; training flags and the random state are put back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(d or 0 for d in devices)), torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


@dataclass
class Trace:
    """What one forward pass showed: the targets in the order of their calls, and who made the
    output."""

    order: list[Target]
    makes_output: set[int]
    shortcuts: set[int]


def trace(model: nn.Module, targets: list[Target], example_inputs: Any) -> Trace:
    """Runs the model once and watches the targets."""
    args, kwargs = example_arguments(example_inputs)
    calls: dict[int, tuple[list[Any], list[Any]]] = {}
    order: list[int] = []

    def watch(module: nn.Module, inputs: Any, output: Any) -> None:
        key = id(module)
        if key not in calls:
            order.append(key)
        seen = calls.setdefault(key, ([], []))
        seen[0].extend(t for t in inputs if isinstance(t, Tensor))
        seen[1].extend(_tensors(output))

    handles = [target.module.register_forward_hook(watch) for target in targets]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused path calls no submodule
    try:
        with evaluating(model):
            result = model(*args, **kwargs)
    except Exception as error:
        raise ValueError(
            f"example_inputs must run through the model, got {type(error).__name__}: {error}: "
            "give the arguments of "
            "model.forward as a tensor, a tuple or a mapping"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    outputs = {_storage(t) for t in _tensors(result)}
    by_id = {id(target.module): target for target in targets}
    makes = {key for key, (_, made) in calls.items() if any(_storage(t) in outputs for t in made)}
    called = [by_id[key] for key in order]
    uncalled = [target for target in targets if id(target.module) not in calls]
    return Trace(called + uncalled, makes, _parallel_pointwise(called, calls))


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


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict) or hasattr(value, "values"):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _tensors(v)]
    return []


def _storage(tensor: Tensor) -> Any:
    if tensor.is_meta:  # no addresses there: views share the storage object
        return tensor.untyped_storage()._cdata
    return tensor.untyped_storage().data_ptr() or id(tensor)


def find_head(model: nn.Module, targets: list[Target], traced: Trace | None) -> Target | None:
    """The head: the last linear layer, if it makes the model's output, has a head's name, or ends a
    Sequential."""
    order = traced.order if traced is not None else targets
    if traced is not None:
        called = [t for t in order if isinstance(t.module, (nn.Linear, QuadraticLayer))]
        making = [t for t in called if id(t.module) in traced.makes_output]
        if making:
            last = making[-1]
            return last if isinstance(last.module, nn.Linear) else None
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
    while isinstance(model, nn.Sequential) and len(model):
        model = list(model._modules.values())[-1]  # type: ignore[assignment]
        if model is layer:
            return True
    return False


__all__ = [
    "QuadraticMultiheadAttention",
    "Target",
    "Trace",
    "find_head",
    "find_targets",
    "is_attention",
    "is_candidate",
    "is_shortcut",
    "is_transposed_linear",
    "obstacle",
    "tied_parameters",
    "trace",
    "walk",
]
