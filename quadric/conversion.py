"""Turning an existing network into a quadratic one, without losing what it has learned, and back.

A layer of eigen neurons with eigenvalues zero is the linear layer. So a trained network converts
exactly: every linear map
keeps its weight (the same parameter object), eigenvalues are added, and fine-tuning grows the
curvature. The work is done in
the order find, choose, check, build, swap: everything that can fail comes before the first change
to the model.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from quadric._selection import (
    Rank,
    Selection,
    Selector,
    check_mapping,
    check_rank_argument,
    rank_of,
)
from quadric._targets import (
    Target,
    Trace,
    example_arguments,
    find_head,
    find_targets,
    is_attention,
    is_candidate,
    is_shortcut,
    is_transposed_linear,
    obstacle,
    tied_parameters,
    trace,
    walk,
)
from quadric.attention import QuadraticMultiheadAttention
from quadric.nn import QuadraticLayer
from quadric.zoo import Neuron, get_neuron, make_layer

# Attributes of torch's Transformer modules that switch on paths which read weights behind a layer's
# back; the value that
# switches them off. The old value is kept under the same name with a prefix, for the way back.
_FUSED = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
_KEPT = "_quadric_kept_"


@dataclass(frozen=True)
class Converted:
    """A layer that was converted: its name (and others it has), what it was, and its rank."""

    name: str
    kind: str
    neuron: str
    rank: int | None
    params_before: int
    params_after: int
    lossless: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A layer that stayed as it was, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did. Prints as a table.

    Attributes:
        neuron: the neuron's registry name.
        converted: the layers that were converted.
        skipped: the layers of a convertible kind that stayed as they were, each with its reason.
        params_before: parameters of the model before, shared ones once.
        params_after: and after.
        macs_before: multiply-accumulates for the example inputs, None where none were given.
        macs_after: and after.
        lossless: whether the model computes what it computed before.
        notes: what else should be known.
    """

    neuron: str
    converted: tuple[Converted, ...]
    skipped: tuple[Skipped, ...]
    params_before: int
    params_after: int
    macs_before: int | None = None
    macs_after: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def lossless(self) -> bool:
        """Whether the model computes what it computed before."""
        return all(layer.lossless for layer in self.converted)

    @property
    def names(self) -> list[str]:
        """The names of the converted layers."""
        return [layer.name for layer in self.converted]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"lossless": self.lossless}

    def __str__(self) -> str:
        rows = [
            (c.name, c.kind, f"{c.neuron}" + (f" rank {c.rank}" if c.rank is not None else ""))
            for c in self.converted
        ]
        rows += [(s.name, s.kind, f"left: {s.reason}") for s in self.skipped]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        done, left = len(self.converted), len(self.skipped)
        lines = [f"{done} layers converted to {self.neuron}, {left} left"]
        lines += [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        lines.append(_change("parameters", self.params_before, self.params_after))
        if self.macs_before is not None and self.macs_after is not None:
            lines.append(_change("MACs", self.macs_before, self.macs_after))
        if not self.lossless:
            lines.append(
                f"weights were re-initialized: a {self.neuron} neuron cannot represent a linear one"
                if not get_neuron(self.neuron).can_be_linear
                else "weights were re-initialized, as asked"
            )
        return "\n".join([*lines, *self.notes])


def _change(what: str, before: int, after: int) -> str:
    share = f" ({(after - before) / before:+.2%})" if before else ""
    return f"{what}: {before:,} -> {after:,}{share}"


def convert_(
    model: nn.Module,
    neuron: str = "eigen",
    rank: Rank | None = None,
    include: Selection | None = None,
    exclude: Selection | None = None,
    first: int | None = None,
    head: bool = False,
    init: str = "linear",
    example_inputs: Any = None,
    **neuron_options: Any,
) -> ConversionReport:
    """Makes the linear layers of a model quadratic, in place.

    Targets are nn.Linear, nn.Conv1d/2d/3d, transposed convolutions (eigen alone), transformers'
    Conv1D and
    nn.MultiheadAttention (as a whole). With `init="linear"` the model computes afterwards what it
    computed before, for every
    neuron that can represent a linear layer (all but kervolution and pure). An error leaves the
    model as it was.

    The optimizer, DDP and FSDP must come after the conversion: new parameters are added.

    Args:
        model: any module that is not itself a single layer.
        neuron: a name of `quadric.neurons()`.
        rank: the neuron's rank: a number, a mapping from layer names, or a callable of the name;
            None for its default.
        include: the layers to convert (default: all): a regular expression that must match the
            whole name, a list of exact
            names or suffixes, or a callable of (name, module).
        exclude: the layers to leave, likewise; it wins over `include`.
        first: convert only the first so many of them, in the order of the forward pass if
            `example_inputs` are given, else
            in the order of registration; 1x1 convolutions on shortcuts do not count and stay.
        head: convert the head too. The head is the last linear layer if it makes the model's output
            (seen with
            `example_inputs`), is named fc, classifier, head, lm_head, score or output, or ends a
            Sequential.
        init: "linear", or "published" for the start of the neuron's authors, which draws new
            weights.
        example_inputs: arguments of the model's forward: a tensor, a tuple or a mapping.
        neuron_options: further options of the neuron.

    Returns:
        What was converted, what was left and why, parameters and MACs before and after.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> convert_(model, rank=9).names
        ['0']
    """
    row = get_neuron(neuron)
    _check_model(model)
    if neuron == "linear":
        raise ValueError(
            "neuron must be a quadratic one, got 'linear': use quadric.revert_ to make a model "
            "linear again"
        )
    check_rank_argument(rank)
    start = init
    if init == "linear" and not row.can_be_linear:
        start = "published"
    if start not in row.starts:
        raise ValueError(
            f"init of the neuron {neuron!r} must be one of {', '.join(row.starts)}, got {init!r}"
        )
    if isinstance(rank, int) or not row.has_rank:
        # One rule for all layers: options are checked before anything is looked at.
        row.make_rule(rank if isinstance(rank, int) else _no_rank(row, rank), **neuron_options)
    else:
        row.make_rule(**neuron_options)
    targets = find_targets(model)
    traced = trace(model, targets, example_inputs) if example_inputs is not None else None
    chosen, skipped = _choose(
        model, row, rank, include, exclude, first, head, start, neuron_options, targets, traced
    )
    plan = {
        target.name: {"neuron": neuron, "rank": rank_of(rank, target.names), "init": start}
        | neuron_options
        for target in chosen
    }
    macs_before = _macs(model, example_inputs)
    params_before = _count(model)
    converted = _apply_(model, chosen, plan)
    notes = []
    if hasattr(model, "save_pretrained"):
        notes.append(
            "from_pretrained would drop the added parameters: save with quadric.save, load with "
            "quadric.load_"
        )
    return ConversionReport(
        neuron,
        tuple(converted),
        tuple(skipped),
        params_before,
        _count(model),
        macs_before,
        _macs(model, example_inputs),
        tuple(notes),
    )


def apply_plan_(model: nn.Module, plan: Mapping[str, Mapping[str, Any]]) -> list[Converted]:
    """Converts exactly the layers named, each with its own neuron and options; what `load_` does
    with a file's header.

    Args:
        model: the plain model.
        plan: from layer name to `neuron`, `rank`, `init` and the neuron's options.
    """
    _check_model(model)
    targets = find_targets(model)
    by_name = {name: target for target in targets for name in target.names}
    missing = [name for name in plan if name not in by_name]
    if missing:
        raise ValueError(
            f"every layer of the plan must be in the model, got {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f", which are not; the model's layers are: {', '.join(by_name) or 'none'}"
        )
    tied = tied_parameters(model)
    for name, options in plan.items():
        row = get_neuron(options["neuron"])
        settings = {k: v for k, v in options.items() if k not in ("neuron", "init")}
        rule = row.make_rule(**settings)
        keeps = options.get("init", "linear") == "linear"
        reason = obstacle(by_name[name], row, rule, tied, keeps)
        if reason is not None:
            raise ValueError(f"the layer {name!r} cannot be converted: {reason}")
    chosen = {id(by_name[name].module): by_name[name] for name in plan}
    canonical = {by_name[name].name: dict(options) for name, options in plan.items()}
    return _apply_(model, list(chosen.values()), canonical)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    if is_attention(model):
        raise ValueError(
            "the model must contain layers, got a single MultiheadAttention, which cannot be "
            "replaced in place: use "
            "quadric.QuadraticMultiheadAttention.from_mha(model)"
        )
    if is_candidate(model) or isinstance(model, QuadraticLayer):
        raise ValueError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            "replaced in place: use "
            "quadric.make_layer(model, neuron=...)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "the model must be an eager module, got a ScriptModule: convert before scripting"
        )
    for module in model.modules():
        name = type(module).__name__
        wrappers = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDP")
        if name.startswith(wrappers):
            raise ValueError(
                f"the model must not be wrapped for distributed training yet, got a {name}: "
                "convert it first, wrap it "
                "then"
            )


def _no_rank(row: Neuron, rank: Rank | None) -> int | None:
    """For a neuron without a rank: None, or a value that its rule refuses with the reason."""
    if rank is None:
        return None
    return rank if isinstance(rank, int) else 1


def _choose(
    model: nn.Module,
    row: Neuron,
    rank: Rank | None,
    include: Selection | None,
    exclude: Selection | None,
    first: int | None,
    head: bool,
    start: str,
    options: dict[str, Any],
    targets: list[Target],
    traced: Trace | None,
) -> tuple[list[Target], list[Skipped]]:
    """The targets to convert, in forward order, and the others with their reasons."""
    if first is not None and (isinstance(first, bool) or not isinstance(first, int) or first < 1):
        raise ValueError(
            f"first must be an integer >= 1, got {first!r}: leave it out to convert all layers"
        )
    included = Selector("include", include) if include is not None else None
    excluded = Selector("exclude", exclude) if exclude is not None else None
    check_mapping(rank, [name for target in targets for name in target.names])
    head_target = find_head(model, targets, traced)
    tied = tied_parameters(model)
    order = traced.order if traced is not None else targets
    pointwise = traced.shortcuts if traced is not None else set()
    chosen: list[Target] = []
    skipped: list[Skipped] = []
    matched = 0

    def skip(target: Target, reason: str) -> None:
        skipped.append(Skipped(target.name, type(target.module).__name__, reason))

    for target in order:
        inside = included is None or included.matches(target.names, target.module)
        if excluded is not None and excluded.matches(target.names, target.module):
            skip(target, "excluded")
            continue
        if not inside:
            skip(target, "not included")
            continue
        matched += 1
        if target is head_target and not head and included is None:
            skip(target, "the head stays linear (head=True converts it)")
            continue
        try:
            rule = row.make_rule(rank_of(rank, target.names), **options)
        except (ValueError, TypeError) as error:
            raise type(error)(
                f"{error} (layer {target.name!r}): leave the layer linear with "
                f"exclude=[{target.name!r}]"
            ) from None
        reason = obstacle(target, row, rule, tied, start == "linear")
        if reason is not None:
            skip(target, reason)
        elif first is not None and (is_shortcut(target) or id(target.module) in pointwise):
            skip(target, "a shortcut, which `first` does not count")
        else:
            chosen.append(target)
    if first is not None:
        if chosen and first > len(chosen):
            raise ValueError(
                f"first must be at most the number of layers that can be converted, "
                f"{len(chosen)}, got {first}: give a "
                "smaller number or leave it out"
            )
        for target in chosen[first:]:
            skip(target, f"behind the first {first} layers")
        chosen = chosen[:first]
    _check_chosen(model, include, included, chosen, skipped, matched)
    _warn_unused(included, excluded)
    return chosen, skipped


def _check_chosen(
    model: nn.Module,
    include: Selection | None,
    included: Selector | None,
    chosen: list[Target],
    skipped: list[Skipped],
    matched: int,
) -> None:
    if chosen:
        return
    if matched == 0:
        kinds = Counter(type(m).__name__ for m in model.modules() if not m._modules)
        present = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        asked = f" by include={include!r}" if included is not None else ""
        names = ", ".join(s.name for s in skipped[:20])
        raise ValueError(
            f"at least one layer must match, got none{asked}; the model's layers are: "
            f"{present or 'none'}"
            + (f"; those that can be converted: {names}" if names else "")
            + ": choose other names"
        )
    reasons = "; ".join(f"{s.name}: {s.reason}" for s in skipped if s.reason != "not included")
    raise ValueError(
        f"at least one layer must be convertible, but every layer that matched was skipped: "
        f"{reasons}"
    )


def _warn_unused(included: Selector | None, excluded: Selector | None) -> None:
    for selector in (included, excluded):
        unused = selector.unused() if selector is not None else []
        if unused and selector is not None:
            warnings.warn(
                f"{selector.argument} names {', '.join(map(repr, unused))}, which matched no "
                "layer: check the spelling",
                UserWarning,
                stacklevel=4,
            )


def _apply_(
    model: nn.Module, targets: list[Target], plan: Mapping[str, Mapping[str, Any]]
) -> list[Converted]:
    """Builds every new layer, then swaps them all in. Building changes nothing; swapping cannot
    fail."""
    built = [(target, _build(target.module, dict(plan[target.name]))) for target in targets]
    converted = []
    for target, new in built:
        row = get_neuron(plan[target.name]["neuron"])
        lossless = row.can_be_linear and plan[target.name].get("init", "linear") == "linear"
        converted.append(
            Converted(
                target.name,
                type(target.module).__name__,
                row.name,
                new.rank,  # type: ignore[arg-type]
                _count(target.module),
                _count(new),
                lossless,
                tuple(target.names[1:]),
            )
        )
    for target, new in built:
        for parent, key in target.places:
            parent._modules[key] = new
    _switch_fused_paths_off(model, [new for _, new in built])
    return converted


def _build(module: nn.Module, options: dict[str, Any]) -> nn.Module:
    """The new layer for a module, with everything the old one carried."""
    if options.get("rank") is None:
        options.pop("rank", None)
    if is_attention(module):
        init = options.pop("init", "linear")
        if init != "linear":
            options["init"] = init
        attention: Any = module
        new: nn.Module = QuadraticMultiheadAttention.from_mha(attention, **options)
    elif is_transposed_linear(module):
        new = make_layer(_as_linear(module), **options)
        vars(new)["transposed_checkpoint"], vars(new)["_origin"] = True, type(module)
    else:
        new = make_layer(module, **options)
    _carry_over(module, new)
    return new


def _as_linear(module: nn.Module) -> nn.Linear:
    """transformers' Conv1D as a linear layer; its weight is the transposed view, not a copy."""
    own: Any = module
    weight, bias = own.weight, own.bias
    linear = nn.Linear(weight.shape[0], weight.shape[1], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().T, requires_grad=weight.requires_grad)
    if bias is not None:
        linear.bias = bias
    return linear.train(module.training)


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _carry_over(old: nn.Module, new: nn.Module) -> None:
    """Hooks (the same dictionaries, so that their handles still work) and attributes that users
    have set."""
    if new is old:
        return
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    for name, value in vars(old).items():
        private = name.startswith("_") and name != "_is_hf_initialized"
        if not private and not hasattr(new, name):
            setattr(new, name, value)
    new.training = old.training


def _switch_fused_paths_off(model: nn.Module, layers: list[nn.Module]) -> None:
    """In torch's Transformer modules around these layers, so that no fused kernel reads their
    weight alone."""
    ids = {id(layer) for layer in layers}
    for module in model.modules():
        for kind, (attribute, off) in _FUSED.items():
            if isinstance(module, kind) and any(id(m) in ids for m in module.modules()):
                if not hasattr(module, _KEPT + attribute):
                    setattr(module, _KEPT + attribute, getattr(module, attribute, off))
                setattr(module, attribute, off)


def _switch_fused_paths_on(model: nn.Module) -> None:
    """The way back, where no quadratic layer is left inside."""
    for module in model.modules():
        for kind, (attribute, _) in _FUSED.items():
            if isinstance(module, kind) and hasattr(module, _KEPT + attribute):
                if not any(isinstance(m, _QUADRATIC) for m in module.modules()):
                    setattr(module, attribute, getattr(module, _KEPT + attribute))
                    delattr(module, _KEPT + attribute)


_QUADRATIC = (QuadraticLayer, QuadraticMultiheadAttention)


def revert_(model: nn.Module, project: bool = False) -> list[str]:
    """Makes a quadratic model linear again, in place: the inverse of `convert_`.

    Layers whose squares have weight zero become the torch layers they were, with the same parameter
    objects. A layer with
    squares in use is refused, or, on request, loses them. An error leaves the model as it was.

    Args:
        model: a model with quadratic layers.
        project: drop squares that are in use. The model then computes another function.

    Returns:
        The names of the layers that were reverted.
    """
    if isinstance(model, _QUADRATIC):
        raise ValueError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            "replaced in place: use "
            "its to_linear (or to_mha) method"
        )
    places: dict[int, Target] = {}
    inside: set[int] = set()
    for name, parent, key, module in walk(model):
        if isinstance(module, QuadraticMultiheadAttention):
            inside.update(id(m) for m in module.modules() if m is not module)
        if isinstance(module, _QUADRATIC) and id(module) not in inside:
            target = places.setdefault(id(module), Target(module))
            target.places.append((parent, key))
            target.names.append(name)
    if not places:
        raise ValueError("the model must have quadratic layers to revert, got none: nothing to do")
    used = [
        name
        for target in places.values()
        for name, layer in _quadratic_layers(target)
        if not layer.is_linear()
    ]
    if used and not project:
        raise ValueError(
            f"the squares must have weight zero to be reverted without loss, but {len(used)} "
            "layers use theirs "
            f"({', '.join(used[:5])}{', …' if len(used) > 5 else ''}): give project=True to drop "
            "them"
        )
    built = [(target, _linear_again(target)) for target in places.values()]
    for target, new in built:
        for parent, key in target.places:
            parent._modules[key] = new
    _switch_fused_paths_on(model)
    return [target.name for target, _ in built]


def _quadratic_layers(target: Target) -> list[tuple[str, QuadraticLayer]]:
    if isinstance(target.module, QuadraticLayer):
        return [(target.name, target.module)]
    named = target.module.named_modules(prefix=target.name)
    return [(name, module) for name, module in named if isinstance(module, QuadraticLayer)]


def _linear_again(target: Target) -> nn.Module:
    layer = target.module
    try:
        if isinstance(layer, QuadraticMultiheadAttention):
            new: nn.Module = layer.to_mha()
        else:
            assert isinstance(layer, QuadraticLayer)
            new = layer.to_linear()
    except ValueError as error:
        raise ValueError(f"{error} (layer {target.name!r})") from None
    origin = getattr(layer, "_origin", None)
    if origin is not None:
        transposed: Any = origin(new.out_features, new.in_features)
        weight: Any = new.weight
        transposed.weight = nn.Parameter(weight.detach().T, requires_grad=weight.requires_grad)
        if new.bias is not None:
            transposed.bias = new.bias
        new = transposed
    _carry_over(layer, new)
    return new


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _macs(model: nn.Module, example_inputs: Any) -> int | None:
    if example_inputs is None:
        return None
    from quadric.counting import cost

    args, kwargs = example_arguments(example_inputs)
    return cost(model, *args, **kwargs).macs
