"""Turning an existing network into a quadratic one, without losing what it has learned, and back.

A layer of eigen neurons with eigenvalues zero is the linear layer. So a trained network converts
exactly: every linear map keeps its weight (the same parameter object), eigenvalues are added, and
fine-tuning grows the curvature. The work is done in the order find, choose, check, build, swap:
everything that can fail comes before the first change to the model.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from quadric.attention import QuadraticMultiheadAttention
from quadric.conversion.selection import (
    Rank,
    Selection,
    Selector,
    check_mapping,
    check_rank_argument,
    rank_of,
)
from quadric.conversion.swapping import Swap, build_linear, build_quadratic
from quadric.conversion.targets import (
    Target,
    Trace,
    example_arguments,
    find_head,
    find_targets,
    is_attention,
    is_candidate,
    is_shortcut,
    look_around,
    obstacle,
    trace,
    walk,
)
from quadric.errors import InputError, InputTypeError
from quadric.nn import QuadraticLayer
from quadric.texttable import text_table
from quadric.zoo import Neuron, Rule, get_neuron


@dataclass(frozen=True)
class Converted:
    """A layer that was converted.

    Attributes:
        name: its name in the model.
        kind: the class that it was of.
        neuron: the registry name of its neuron.
        rank: its rank, None for a neuron without one.
        params_before: its parameters before.
        params_after: and after.
        lossless: whether it computes what it computed before.
        aliases: further names under which the model has it.
    """

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
            (c.name, c.kind, c.neuron + (f", rank {c.rank}" if c.rank is not None else ""))
            for c in self.converted
        ]
        rows += [(s.name, s.kind, f"left: {s.reason}") for s in self.skipped]
        done = f"{len(self.converted)} layer" + ("s" if len(self.converted) != 1 else "")
        lines = [
            f"{done} converted to {self.neuron}, {len(self.skipped)} left",
            text_table(("layer", "was", "is"), rows),
            _change("parameters", self.params_before, self.params_after),
        ]
        if self.macs_before is not None and self.macs_after is not None:
            lines.append(_change("MACs", self.macs_before, self.macs_after))
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
    Conv1D, nn.MultiheadAttention (as a whole) and the linear projections of our own attention.
    With `init="linear"` the model computes afterwards what it computed before, for every neuron
    that can represent a linear layer (all but kervolution and pure). An error leaves the model as
    it was.

    The optimizer, DDP and FSDP must come after the conversion: new parameters are added.

    Args:
        model: any module that is not itself a single layer.
        neuron: a name of `quadric.neurons()`.
        rank: the neuron's rank: a number, a mapping from layer names, or a callable of the name;
            None for its default.
        include: the layers to convert (default: all): a regular expression that must match the
            whole name, a list of exact names or suffixes, or a callable of (name, module).
        exclude: the layers to leave, likewise; it wins over `include`.
        first: convert only the first so many of them, in the order of the forward pass if
            `example_inputs` are given, else in the order of registration; 1x1 convolutions on
            shortcuts do not count and stay.
        head: convert the head too. The head is the last linear layer if it makes the model's output
            (seen with `example_inputs`), is named fc, classifier, head, lm_head, score or output,
            or ends a Sequential. Naming it in `include` converts it as well.
        init: "linear", or "published" for the start of the neuron's authors, which draws new
            weights (but for eigen, whose authors say nothing of weights: they stay).
        example_inputs: arguments of the model's forward: a tensor, a tuple or a mapping.
        neuron_options: further options of the neuron.

    Returns:
        What was converted, what was left and why, parameters and MACs before and after.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> print(convert_(model, rank=9))
        1 layer converted to eigen, 1 left
        layer  was     is
        -----  ------  ---------------------------------------------------
        0      Linear  eigen, rank 9
        2      Linear  left: the head stays linear (head=True converts it)
        parameters: 142 -> 160 (+12.68%)
    """
    prepared = prepare_conversion(
        model,
        neuron,
        rank,
        include,
        exclude,
        first,
        head,
        init,
        example_inputs,
        **neuron_options,
    )
    notes = list(prepared.notes)
    params_before = count_parameters(model)
    macs_before, why = _macs(model, example_inputs)
    prepared.swap.do()
    macs_after = None
    if macs_before is not None:
        macs_after, why = _macs(model, example_inputs)
    if why:
        notes.append(f"the MACs could not be counted: {why}")
    return ConversionReport(
        neuron,
        tuple(prepared.converted),
        tuple(prepared.skipped),
        params_before,
        count_parameters(model),
        macs_before,
        macs_after,
        tuple(notes),
    )


@dataclass(frozen=True)
class Prepared:
    """A conversion that has been checked and built, but not done.

    Attributes:
        swap: does it.
        converted: the layers that it converts.
        skipped: those that it leaves.
        notes: what a report should say besides.
    """

    swap: Swap
    converted: list[Converted]
    skipped: list[Skipped]
    notes: list[str]


def prepare_conversion(
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
) -> Prepared:
    """Everything that `convert_` does, but for the change to the model. Its arguments."""
    row = get_neuron(neuron)
    check_convertible(model)
    if neuron == "linear":
        raise InputError(
            "neuron must be a quadratic one, got 'linear': use quadric.revert_ to make a model "
            "linear again"
        )
    check_rank_argument(rank)
    start = init
    if init == "linear" and not row.can_be_linear:
        start = "published"
    if start not in row.starts:
        raise InputError(
            f"init of the neuron {neuron!r} must be one of {', '.join(row.starts)}, got {init!r}: "
            "choose one of these"
        )
    if start == "linear" and neuron_options.get("eigenvalue_init", "zeros") != "zeros":
        raise InputError(
            "eigenvalue_init must be 'zeros' with init='linear', got "
            f"{neuron_options['eigenvalue_init']!r}: give init='published' for another start"
        )
    # One rule for all layers: options are checked before anything is looked at.
    if rank is not None and not row.has_rank:
        row.make_rule(rank if isinstance(rank, int) else 1, **neuron_options)
    row.make_rule(rank if isinstance(rank, int) else None, **neuron_options)
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
    swap, converted = _build(model, chosen, plan)
    return Prepared(swap, converted, skipped, _notes(model, row, converted, chosen, traced))


def _notes(
    model: nn.Module,
    row: Neuron,
    converted: list[Converted],
    chosen: list[Target],
    traced: Trace | None,
) -> list[str]:
    notes = []
    if not all(layer.lossless for layer in converted):
        notes.append(
            "the model was re-initialized, as asked by init"
            if row.can_be_linear
            else "weights were re-initialized: a neuron of the kind "
            f"{row.name} cannot represent a linear one"
        )
    if traced is not None:
        uncalled = [t.name for t in chosen if id(t.module) in traced.uncalled]
        if uncalled:
            notes.append(
                f"never called for the example inputs: {', '.join(uncalled)}; where the model "
                "reads their weights by itself the squares are passed by: exclude them then"
            )
    if hasattr(model, "save_pretrained"):
        notes.append(
            "from_pretrained would drop the added parameters: save with quadric.save, load with "
            "quadric.load_"
        )
    return notes


def plan_conversion(model: nn.Module, plan: Mapping[str, Mapping[str, Any]]) -> Swap:
    """Builds exactly the layers named, each with its own neuron and options, and changes nothing:
    the result's `do` puts them into the model, its `undo` takes them out again.

    Args:
        model: the plain model.
        plan: from layer name to `neuron`, `rank`, `init` and the neuron's options. A plan for an
            nn.MultiheadAttention also fits our own attention in its place.
    """
    check_convertible(model)
    by_name = {name: target for target in find_targets(model) for name in target.names}
    entries: dict[str, Mapping[str, Any]] = {}
    for name, options in plan.items():
        projections = [f"{name}.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")]
        whole = name not in by_name and all(p in by_name for p in projections)
        entries.update(dict.fromkeys(projections if whole else [name], options))
    missing = [name for name in entries if name not in by_name]
    if missing:
        raise InputError(
            f"every layer of the plan must be in the model, got {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f", not found; the model's layers are: {_some(list(by_name))}"
        )
    around = look_around(model)
    chosen: dict[int, Target] = {}
    canonical: dict[str, Mapping[str, Any]] = {}
    for name, options in entries.items():
        target, row = by_name[name], get_neuron(options["neuron"])
        rule = row.make_rule(**{k: v for k, v in options.items() if k not in ("neuron", "init")})
        keeps = _keeps_weights(row, options.get("init", "linear"))
        reason = obstacle(target, row, rule, around, keeps)
        if reason is not None:
            raise InputError(f"the layer {name!r} cannot be converted: {reason}")
        chosen[id(target.module)] = target
        canonical[target.name] = options
    return _build(model, list(chosen.values()), canonical)[0]


def apply_plan_(model: nn.Module, plan: Mapping[str, Mapping[str, Any]]) -> None:
    """Converts exactly the layers named, each with its own neuron and options.

    Args:
        model: the plain model.
        plan: as in :func:`plan_conversion`.
    """
    plan_conversion(model, plan).do()


def _keeps_weights(row: Neuron, start: str) -> bool:
    """Whether a layer that starts so keeps the weight and bias of the linear layer."""
    return start == "linear" or row.name == "eigen"


def _starts_linear(row: Neuron, rule: Rule, start: str) -> bool:
    """Whether a layer that starts so computes what the linear layer computes."""
    if start == "linear":
        return True
    zero = getattr(rule, "eigenvalue_init", "zeros") == "zeros"
    return _keeps_weights(row, start) and zero


def _some(names: list[str], at_most: int = 20) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return (", ".join(names[:at_most]) or "none") + more


_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDP")


def check_convertible(model: nn.Module) -> None:
    """Raises for what is not a model with layers that can be replaced in it."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    if is_attention(model):
        raise InputError(
            "the model must contain layers, got a single MultiheadAttention, which cannot be "
            "replaced in place: use quadric.QuadraticMultiheadAttention.from_mha(model)"
        )
    if is_candidate(model) or isinstance(model, QuadraticLayer):
        raise InputError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            "replaced in place: use quadric.make_layer(model, neuron=...)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputTypeError(
            "the model must be an eager module, got a ScriptModule: convert before scripting"
        )
    for module in model.modules():
        name = type(module).__name__
        if name.startswith(_WRAPPERS):
            raise InputError(
                f"the model must not be wrapped for distributed training yet, got a {name}: "
                "convert it first, wrap it then"
            )


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
        raise InputError(
            f"first must be an integer >= 1, got {first!r}: leave it out to convert all layers"
        )
    included = Selector("include", include) if include is not None else None
    excluded = Selector("exclude", exclude) if exclude is not None else None
    check_mapping(rank, [name for target in targets for name in target.names])
    head_target = find_head(model, targets, traced)
    around = look_around(model)
    keeps = _keeps_weights(row, start)
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
        reason = obstacle(target, row, rule, around, keeps)
        if reason is not None:
            skip(target, reason)
        elif first is not None and (is_shortcut(target) or id(target.module) in pointwise):
            skip(target, "a shortcut, which `first` does not count")
        else:
            chosen.append(target)
    if first is not None:
        if chosen and first > len(chosen):
            raise InputError(
                "first must be at most the number of layers that can be converted, "
                f"{len(chosen)}, got {first}: give a smaller number or leave it out"
            )
        for target in chosen[first:]:
            skip(target, f"not among the first {first}")
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
    kinds = Counter(type(m).__name__ for m in model.modules() if not m._modules)
    present = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
    if matched == 0:
        asked = f" by include={include!r}" if included is not None else ""
        names = [s.name + (" (excluded)" if s.reason == "excluded" else "") for s in skipped]
        raise InputError(
            f"at least one layer must match, got none{asked}; the model's layers are: {present}; "
            f"those that can be converted: {_some(names)}: choose other names"
        )
    reasons = [f"{s.name} ({s.kind}): {s.reason}" for s in skipped if s.reason != "not included"]
    raise InputError(
        "at least one layer must be convertible, but every layer that matched was skipped; the "
        f"model's layers are: {present}; the reasons: {'; '.join(reasons)}"
    )


def _warn_unused(included: Selector | None, excluded: Selector | None) -> None:
    for selector in (included, excluded):
        unused = selector.unused() if selector is not None else []
        if unused and selector is not None:
            warnings.warn(
                f"{selector.argument} names {', '.join(map(repr, unused))}, which matched no "
                "layer: check the spelling",
                UserWarning,
                stacklevel=5,
            )


def _build(
    model: nn.Module, targets: list[Target], plan: Mapping[str, Mapping[str, Any]]
) -> tuple[Swap, list[Converted]]:
    """Builds every new layer. The model is as it was until the swap is done."""
    built, converted = [], []
    for target in targets:
        options = plan[target.name]
        row = get_neuron(options["neuron"])
        rule = row.make_rule(**{k: v for k, v in options.items() if k not in ("neuron", "init")})
        new: Any = build_quadratic(target, options)
        built.append((target, new))
        converted.append(
            Converted(
                target.name,
                type(target.module).__name__,
                row.name,
                new.rank,
                count_parameters(target.module),
                count_parameters(new),
                _starts_linear(row, rule, options.get("init", "linear")),
                tuple(target.names[1:]),
            )
        )
    return Swap(model, built), converted


def revert_(model: nn.Module, project: bool = False) -> list[str]:
    """Makes a quadratic model linear again, in place: the inverse of `convert_`.

    Layers whose squares have weight zero become the torch layers they were, with the same parameter
    objects. A layer with squares in use is refused, or, on request, loses them. An error leaves
    the model as it was.

    Args:
        model: a model with quadratic layers.
        project: drop squares that are in use. The model then computes another function.

    Returns:
        The names of the layers that were reverted.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
        >>> names = convert_(model).names
        >>> revert_(model) == names, type(model[0]).__name__
        (True, 'Linear')
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network itself"
        )
    if isinstance(model, QuadraticLayer) or _was_attention(model):
        raise InputError(
            f"the model must contain layers, got a single {type(model).__name__}, which cannot be "
            "replaced in place: use its to_linear (or to_mha) method"
        )
    found: dict[int, Target] = {}
    inside: set[int] = set()
    for name, parent, key, module in walk(model):
        if _was_attention(module):
            inside.update(id(m) for m in module.modules() if m is not module)
        if isinstance(module, QuadraticLayer) or _was_attention(module):
            target = found.setdefault(id(module), Target(module))
            target.places.append((parent, key))
            target.names.append(name)
    targets = [target for target in found.values() if id(target.module) not in inside]
    if not targets:
        raise InputError("the model must have quadratic layers to revert, got none: nothing to do")
    layers = [pair for target in targets for pair in _quadratic_layers(target)]
    for name, layer in layers:
        if parametrize.is_parametrized(layer):
            raise InputError(
                f"the parameters of a layer must be plain to revert it, got a parametrization in "
                f"{name!r}: remove it with torch.nn.utils.parametrize.remove_parametrizations first"
            )
    for name, layer in layers:
        if not get_neuron(layer.neuron).can_be_linear:
            raise InputError(
                f"the layer {name!r} must have a linear part to be reverted, but a {layer.neuron} "
                "neuron has none: build a new torch layer in its place"
            )
    used = [name for name, layer in layers if not layer.is_linear()]
    if used and not project:
        raise InputError(
            f"the squares must have weight zero to be reverted without loss, but {len(used)} "
            f"layers use theirs ({_some(used, 5)}): give project=True to drop them"
        )
    built = [(target, build_linear(target)) for target in targets]
    Swap(model, built).do()
    return [target.name for target in targets]


def _was_attention(module: nn.Module) -> bool:
    """Whether a module is an attention that the converter put in the place of torch's."""
    return isinstance(module, QuadraticMultiheadAttention) and hasattr(module, "_origin")


def _quadratic_layers(target: Target) -> list[tuple[str, QuadraticLayer]]:
    named = target.module.named_modules(prefix=target.name)
    return [(name, module) for name, module in named if isinstance(module, QuadraticLayer)]


def count_parameters(module: nn.Module) -> int:
    """The number of parameters, shared ones once; lazy ones, which have no size yet, not."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def _macs(model: nn.Module, example_inputs: Any) -> tuple[int | None, str]:
    """The MACs for the example inputs, or why they could not be counted."""
    if example_inputs is None:
        return None, ""
    from quadric.counting.cost import cost

    args, kwargs = example_arguments(example_inputs)
    try:
        return cost(model, *args, **kwargs).macs, ""
    except Exception as error:  # counting runs the user's own forward pass, on other tensors
        return None, f"{type(error).__name__}: {error}"
