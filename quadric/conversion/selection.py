"""Choosing the layers to convert: by name, by their order in the forward pass, all but the head."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from quadric.conversion.conversion_report import Skipped
from quadric.conversion.targets import Target, keeps_weights, look_around, obstacle
from quadric.errors import InputError, InputTypeError
from quadric.layers import Neuron, QuadraticLayer, get_neuron
from quadric.support.checks import check_size
from quadric.support.modules import (
    check_initialized,
    hooked,
    storage_of,
    tensors_in,
    unfused,
    unwrapped,
)

Selection = str | Sequence[str] | Callable[[str, nn.Module], bool]
Rank = int | Mapping[str, int] | Callable[..., int | None]

HEAD_NAMES = ("fc", "classifier", "head", "lm_head", "score", "output")
"""Names under which a last linear layer counts as the head."""

SHORTCUT_NAMES = ("downsample", "shortcut", "skip", "identity", "residual")
"""Starts of name parts under which a 1x1 convolution counts as a shortcut."""


@dataclass(frozen=True)
class Request:
    """The arguments of `convert_`, as documented there."""

    neuron: str = "eigen"
    rank: Rank | None = None
    include: Selection | None = None
    exclude: Selection | None = None
    first: int | None = None
    head: bool = False
    init: str = "linear"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> type[Neuron]:
        """The neuron."""
        return get_neuron(self.neuron)

    @property
    def start(self) -> str:
        """The start of the new layers: `init`, or "published" if the neuron cannot be linear."""
        cannot = self.init == "linear" and not self.row.can_be_linear
        return "published" if cannot else self.init

    @property
    def lossless(self) -> bool:
        """Whether the new layers compute what the linear ones did."""
        drawn = self.options.get("eigenvalue_init", "zeros")
        keeps = keeps_weights(self.row, self.start) and drawn == "zeros"
        return self.start == "linear" or keeps

    def check(self) -> None:
        """Checks everything that does not depend on the model."""
        row, rank = self.row, self.rank
        if self.neuron == "linear":
            raise InputError(
                "neuron must be a quadratic one, got 'linear': use quadric.revert_ to make a model "
                "linear again"
            )
        if not (rank is None or isinstance(rank, (int, Mapping)) or callable(rank)):
            raise InputTypeError(
                "rank must be an integer, a mapping from layer names, or a callable of the name, "
                f"got {rank!r} of type {type(rank).__name__}: give one of these"
            )
        row.check_start(self.start)
        eigenvalue_init = self.options.get("eigenvalue_init", "zeros")
        if self.start == "linear" and eigenvalue_init != "zeros":
            raise InputError(
                "eigenvalue_init must be 'zeros' with init='linear', got "
                f"{eigenvalue_init!r}: give init='published' for another start"
            )
        if self.first is not None:
            check_size("first", self.first)
        # A mapping or a function gives ranks layer by layer. The neuron must have a rank at all.
        common = rank if rank is None or isinstance(rank, int) else None if row.has_rank else 1
        row.with_options(common, **self.options)

    def options_of(self, names: Sequence[str]) -> dict[str, Any]:
        """What `make_layer` gets for the layer with these names."""
        rank = rank_of(self.rank, names)
        return {"neuron": self.neuron, "init": self.start, "rank": rank, **self.options}


class ExactNames(list[str]):
    """A list of layer names that were read off a model, not chosen by a user.

    They are meant exactly, never as suffixes: in an ordinary list `conv1` also means
    `layer1.0.conv1`. And they do not ask for what is left alone unless a user names it.
    """


class Selector:
    """A compiled `include` or `exclude`.

    A string is a regular expression that must match the whole name, a list holds exact names or
    suffixes (after a dot), a callable gets the name and the module. None matches nothing.
    """

    def __init__(self, argument: str, selection: Selection | None) -> None:
        self.argument = argument
        self._tests: dict[str, Callable[[str, nn.Module], object]] = {}
        self._used: set[str] = set()
        if selection is None:
            return
        if isinstance(selection, str):
            try:
                pattern = re.compile(selection)
            except re.error as error:
                raise InputError(
                    f"{argument} must be a valid regular expression, got {selection!r} ({error}): "
                    "correct it, or give a list of names"
                ) from None
            self._tests[selection] = lambda name, module: pattern.fullmatch(name)
        elif callable(selection):
            self._tests[getattr(selection, "__name__", "callable")] = selection
        elif isinstance(selection, Iterable):
            for entry in selection:
                if not isinstance(entry, str):
                    raise InputTypeError(
                        f"{argument} must be a list of names, got the entry {entry!r} of type "
                        f"{type(entry).__name__}: give strings"
                    )
                self._tests[entry] = _name_test(entry, isinstance(selection, ExactNames))
        else:
            raise InputTypeError(
                f"{argument} must be a regular expression, a list of names or a callable, got "
                f"{type(selection).__name__}: give one of these"
            )

    def matches(self, names: Sequence[str], module: nn.Module) -> bool:
        """Whether a layer with these names is chosen."""
        matching = {key for key, test in self._tests.items() if any(test(n, module) for n in names)}
        self._used |= matching
        return bool(matching)

    def unused(self) -> list[str]:
        """What chose nothing: entries of a list, or the expression or callable as a whole."""
        return [key for key in self._tests if key not in self._used]


def _name_test(entry: str, exact: bool) -> Callable[[str, nn.Module], bool]:
    return lambda name, module: name == entry or (not exact and name.endswith("." + entry))


def rank_of(rank: Rank | None, names: Sequence[str]) -> int | None:
    """The rank of the layer with these names; None for the neuron's default."""
    if isinstance(rank, Mapping):
        return next((rank[name] for name in names if name in rank), None)
    if callable(rank):
        return rank(names[0])
    return rank


def some(names: Sequence[str], at_most: int = 20) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return (", ".join(names[:at_most]) or "none") + more


def choose(
    model: nn.Module, request: Request, targets: list[Target], traced: Trace | None
) -> tuple[list[Target], list[Skipped]]:
    """Chooses the layers to convert, and warns of names that match none."""
    include, exclude = Selector("include", request.include), Selector("exclude", request.exclude)
    known = [name for target in targets for name in target.names]
    for name in request.rank if isinstance(request.rank, Mapping) else ():
        if name not in known:
            raise InputError(
                f"rank must name layers that can be converted, got {name!r}; they are: "
                f"{', '.join(known) or 'none'}"
            )
    around, first = look_around(model), request.first
    heads = find_heads(model, targets, traced)
    named = not (request.include is None or isinstance(request.include, ExactNames))
    pointwise = traced.shortcuts if traced is not None else set()
    chosen: list[Target] = []
    skipped: list[Skipped] = []

    def reason_to_skip(target: Target) -> str | None:
        included = request.include is None or include.matches(target.names, target.module)
        if exclude.matches(target.names, target.module):
            return "excluded"
        if not included:
            return "not included"
        if target in heads and not request.head and not named:
            return "the head stays linear (head=True converts it)"
        if traced is not None and id(target.module) in traced.uncalled and not named:
            return "the example inputs never reach it (naming it in include converts it)"
        reason = obstacle(target, request.options_of(target.names), around)
        is_side = is_shortcut(target) or id(target.module) in pointwise
        if reason is None and first is not None and is_side:
            return "a shortcut, which `first` does not count"
        return reason

    def skip(target: Target, reason: str) -> None:
        skipped.append(Skipped(target.name, type(target.module).__name__, reason))

    for target in traced.order if traced is not None else targets:
        reason = reason_to_skip(target)
        if reason is None:
            chosen.append(target)
        else:
            skip(target, reason)
    if not chosen:
        raise _nothing_chosen(model, request, skipped)
    if first is not None:
        if first > len(chosen):
            raise InputError(
                "first must be at most the number of layers that can be converted, "
                f"{len(chosen)}, got {first}: give a smaller number or leave it out"
            )
        for target in chosen[first:]:
            skip(target, f"not among the first {first}")
    for selector in (include, exclude):
        if selector.unused():
            warnings.warn(
                f"{selector.argument} names {', '.join(map(repr, selector.unused()))}, which "
                "matched no layer: check the spelling",
                UserWarning,
                stacklevel=4,
            )
    return chosen[:first], skipped


def _nothing_chosen(model: nn.Module, request: Request, skipped: list[Skipped]) -> InputError:
    kinds = Counter(type(m).__name__ for m in model.modules() if not m._modules)
    present = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
    if all(s.reason in ("excluded", "not included") for s in skipped):
        asked = f" by include={request.include!r}" if request.include is not None else ""
        names = [s.name + (" (excluded)" if s.reason == "excluded" else "") for s in skipped]
        return InputError(
            f"at least one layer must match, got none{asked}; the model's layers are: {present}; "
            f"those that can be converted: {some(names)}: choose other names"
        )
    reasons = [f"{s.name} ({s.kind}): {s.reason}" for s in skipped if s.reason != "not included"]
    return InputError(
        "at least one layer must be convertible, but every layer that matched was skipped; the "
        f"model's layers are: {present}; the reasons: {'; '.join(reasons)}"
    )


@dataclass
class Trace:
    """What one forward pass showed."""

    # The targets in the order of their first calls, then those that were never called.
    order: list[Target]
    uncalled: set[int]  # the ids of modules that were never called
    makes_output: set[int]  # the ids of the modules whose result is an output of the model
    shortcuts: set[int]  # the ids of 1x1 convolutions that run in parallel to a larger one


def trace(model: nn.Module, targets: list[Target], run: Callable[[], Any]) -> Trace:
    """Runs the model once and watches the targets."""
    check_initialized(model)  # a forward pass would make its parameters
    inputs: dict[int, list[Tensor]] = {}
    outputs: dict[int, list[Tensor]] = {}

    def watch(module: nn.Module, args: Any, output: Any) -> None:
        inputs.setdefault(id(module), []).extend(t for t in args if isinstance(t, Tensor))
        outputs.setdefault(id(module), []).extend(tensors_in(output))

    handles = [target.module.register_forward_hook(watch) for target in targets]
    with hooked(handles), unfused():
        result = {storage_of(t) for t in tensors_in(run())}
    by_id = {id(target.module): target for target in targets}
    uncalled = [target for target in targets if id(target.module) not in inputs]
    # A 1x1 convolution that reads the same tensor as a larger one is a shortcut, whatever its name.
    kernels = {key: getattr(by_id[key].module, "kernel_size", None) for key in inputs}
    larger = {id(t) for key, k in kernels.items() if k and max(k) > 1 for t in inputs[key]}
    return Trace(
        order=[*(by_id[key] for key in inputs), *uncalled],
        uncalled={id(target.module) for target in uncalled},
        makes_output={
            k for k, made in outputs.items() if any(storage_of(t) in result for t in made)
        },
        shortcuts={
            key
            for key, k in kernels.items()
            if k and max(k) == 1 and any(id(t) in larger for t in inputs[key])
        },
    )


def is_shortcut(target: Target) -> bool:
    """Whether a layer is a 1x1 convolution on a shortcut, by its name."""
    kernel = getattr(target.module, "kernel_size", None)
    if kernel is None or max(kernel) > 1:
        return False
    parts = [part for name in target.names for part in name.split(".")]
    return any(part.startswith(SHORTCUT_NAMES) for part in parts)


def find_heads(model: nn.Module, targets: list[Target], traced: Trace | None) -> list[Target]:
    """Finds the heads of a network."""
    # Not by the attribute: a weight with a spectral norm would change when it is read.
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    tied = {id(m._parameters["weight"]) for m in embeddings if "weight" in m._parameters}
    outputs = [t for t in targets if id(t.module._parameters.get("weight", model)) in tied]
    heads = [t for t in outputs if traced is not None and id(t.module) in traced.makes_output]
    last = _last_head(model, targets, traced, outputs)
    return heads if last is None or last in heads else [*heads, last]


def _last_head(
    model: nn.Module, targets: list[Target], traced: Trace | None, tied: list[Target]
) -> Target | None:
    """The last linear layer, if it is a head."""
    order = targets
    if traced is not None:
        order = [t for t in traced.order if id(t.module) not in traced.uncalled]
        called = [t for t in order if isinstance(t.module, (nn.Linear, QuadraticLayer))]
        # The last one called: a cache of keys and values returns results of earlier layers, too.
        if called and id(called[-1].module) in traced.makes_output:
            return called[-1] if isinstance(called[-1].module, nn.Linear) else None
    linear = [t for t in order if isinstance(t.module, nn.Linear)]
    if not linear:
        return None
    last = linear[-1]
    if last in tied:
        return last
    for name in last.names:
        # Trailing numbers are places in a Sequential, not names: classifier.6 is a classifier.
        # So is the copy of one that peft trains.
        parts = name.split(".modules_to_save.")[0].split(".")
        while len(parts) > 1 and parts[-1].isdigit():
            parts.pop()
        if parts[-1] in HEAD_NAMES:
            return last
    return last if _end(unwrapped(model), last.module) is last.module else None


def _end(module: nn.Module, last: nn.Module) -> nn.Module:
    """The end of nested Sequentials, of a list of linear layers, or of what a module only holds."""
    parts = list(module.children())
    if module is last or not parts:
        return module
    one_by_one = isinstance(module, nn.ModuleList) and all(
        isinstance(part, (nn.Linear, QuadraticLayer)) for part in parts
    )
    holds_one = len(parts) == 1 and any(True for _ in parts[0].children())
    if isinstance(module, nn.Sequential) or one_by_one or holds_one:
        return _end(parts[-1], last)
    return module
