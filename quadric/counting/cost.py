"""What a network costs: its parameters, and the multiply-accumulates (MACs) of one forward pass.

Two ways of counting, each where it is right. A Quadric layer is counted by the closed form of its
neuron, which includes the elementwise products of the squares (two for each eigenvalue of the eigen
neuron, as in the paper). Everything else is counted operator by operator, as torch runs it, so that
products of raw parameters, `einsum` and attention are seen, whatever module they stand in. What has
no formula is listed as uncounted instead of being passed over.

The pass runs on the meta device: no memory, no arithmetic, and nothing of the model is changed,
because its parameters and buffers are replaced by shapes for the time of the pass and its
attributes are put back afterwards. A forward pass that reads values (`if x.sum() > 0`) cannot run
there; then, and only then, it runs once for real, and the report says so.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from quadric.counting import operators as _operators
from quadric.errors import InputError, InputTypeError
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.nn.layer import ConvTransposeGeometry
from quadric.texttable import markdown_table, text_table
from quadric.zoo import NeuronLayer, Rule, get_neuron

# ------------------------------------------------------------------------------------------------
# The report
# ------------------------------------------------------------------------------------------------


@dataclass
class LayerCost:
    """One module's own cost, without that of the modules inside it.

    Attributes:
        name: its name in the model; empty for the model itself.
        type: its class.
        neuron: the registry name of its neuron, None for what is not a Quadric layer.
        output_shape: the shape of its first output, None if it was never called.
        params: its parameters. One that several modules share counts with the first of them.
        macs: multiply-accumulates, all calls together.
        quadratic_macs: how many of these a linear layer of the same geometry would not have.
        calls: how often it was called.
    """

    name: str
    type: str
    neuron: str | None = None
    output_shape: tuple[int, ...] | None = None
    params: int = 0
    macs: int = 0
    quadratic_macs: int = 0
    calls: int = 0

    @property
    def quadratic_share(self) -> float:
        """The part of its MACs that a linear layer would not have, 0 to 1."""
        return self.quadratic_macs / self.macs if self.macs else 0.0

    @property
    def label(self) -> str:
        """Its class and neuron, for tables."""
        return f"{self.type} ({self.neuron})" if self.neuron else self.type


@dataclass
class Uncounted:
    """An operator whose multiplications are in no total.

    Attributes:
        operator: its name.
        reason: "elementwise", "normalization", "activation", "pooling", "reduction", or
            "no formula", which may hide more than a multiplication for each element.
        calls: how often it ran.
        elements: how many elements its results have, all calls together.
        layers: the modules it ran in.
    """

    operator: str
    reason: str
    calls: int = 0
    elements: int = 0
    layers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CostComparison:
    """The cost of one network beside another's.

    Attributes:
        params: parameters of the one.
        other_params: parameters of the other.
        macs: MACs of the one.
        other_macs: MACs of the other.
    """

    params: int
    other_params: int
    macs: int
    other_macs: int

    @property
    def params_ratio(self) -> float:
        """Parameters of the one divided by those of the other."""
        return self.params / self.other_params if self.other_params else math.nan

    @property
    def macs_ratio(self) -> float:
        """MACs of the one divided by those of the other."""
        return self.macs / self.other_macs if self.other_macs else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Counts and ratios (None where the other has none of it)."""
        ratios = {"params_ratio": self.params_ratio, "macs_ratio": self.macs_ratio}
        return asdict(self) | {k: None if math.isnan(v) else v for k, v in ratios.items()}

    def __str__(self) -> str:
        lines = []
        for what, one, other, ratio in (
            ("parameters", self.params, self.other_params, self.params_ratio),
            ("MACs", self.macs, self.other_macs, self.macs_ratio),
        ):
            more = "more" if ratio > 1 else "fewer"
            change = f"{abs(1 - ratio):.1%} {more}"
            lines.append(f"{what}: {one:,} against {other:,}, ratio {ratio:.3f}, {change}")
        return "\n".join(lines)


@dataclass
class CostReport:
    """The cost of a network for one set of example inputs; batch included.

    Attributes:
        model: the class of the network.
        input_shapes: the shapes of the example inputs.
        layers: every module that has parameters or MACs of its own, in the model's order.
        uncounted: what is in no total.
        device: where the pass ran: "meta", or the model's device where values had to be read.
        note: why it did not run on meta; empty otherwise.
    """

    model: str
    input_shapes: list[tuple[int, ...]]
    layers: list[LayerCost]
    uncounted: list[Uncounted]
    device: str = "meta"
    note: str = ""

    @property
    def params(self) -> int:
        """All parameters, shared ones once."""
        return sum(layer.params for layer in self.layers)

    @property
    def macs(self) -> int:
        """All multiply-accumulates of one forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def quadratic_macs(self) -> int:
        """The MACs that the network would not have with linear layers."""
        return sum(layer.quadratic_macs for layer in self.layers)

    @property
    def quadratic_share(self) -> float:
        """The part of its MACs that the network would not have with linear layers, 0 to 1."""
        return self.quadratic_macs / self.macs if self.macs else 0.0

    def by_layer(self, depth: int | None = None) -> list[LayerCost]:
        """The cost of each layer.

        Args:
            depth: sum layers up to this many parts of their names: 1 gives the model's children.
        """
        if depth is None:
            return list(self.layers)
        if depth < 1:
            raise InputError(f"depth must be >= 1, got {depth}: leave it out for single layers")
        grouped: dict[str, LayerCost] = {}
        for layer in self.layers:
            key = ".".join(layer.name.split(".")[:depth])
            if key == layer.name and key not in grouped:
                grouped[key] = LayerCost(**asdict(layer))
                continue
            total = grouped.setdefault(key, LayerCost(key, "several"))
            total.params += layer.params
            total.macs += layer.macs
            total.quadratic_macs += layer.quadratic_macs
        return list(grouped.values())

    def compare(self, other: CostReport) -> CostComparison:
        """This network's cost beside another's; ratios are this divided by the other.

        Examples:
            >>> wide, narrow = nn.Linear(4, 6, bias=False), nn.Linear(4, 3, bias=False)
            >>> x = torch.zeros(1, 4)
            >>> print(cost(narrow, x).compare(cost(wide, x)))
            parameters: 12 against 24, ratio 0.500, 50.0% fewer
            MACs: 12 against 24, ratio 0.500, 50.0% fewer
        """
        return CostComparison(self.params, other.params, self.macs, other.macs)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        layers = [asdict(la) | {"quadratic_share": la.quadratic_share} for la in self.layers]
        for layer in layers:
            shape = layer["output_shape"]
            layer["output_shape"] = None if shape is None else list(shape)
        return {
            "model": self.model,
            "input_shapes": [list(shape) for shape in self.input_shapes],
            "params": self.params,
            "macs": self.macs,
            "quadratic_macs": self.quadratic_macs,
            "quadratic_share": self.quadratic_share,
            "device": self.device,
            "note": self.note,
            "layers": layers,
            "uncounted": [asdict(entry) for entry in self.uncounted],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The same as JSON; written to `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_markdown(self) -> str:
        """The table of layers, the totals and what is not counted, in markdown."""
        return self._render(markdown_table, "\n\n")

    def __str__(self) -> str:
        return self._render(text_table, "\n")

    def _render(self, table: Callable[..., str], gap: str) -> str:
        shapes = ", ".join(_shape(shape) for shape in self.input_shapes) or "none"
        header = ["layer", "type", "output", "params", "MACs", "quadratic"]
        parts = [f"{self.model}, input {shapes}", table(header, self._table_rows(), "lllrrr")]
        parts += [f"not counted: {line}" for line in self._uncounted_lines()]
        if self.note:
            parts.append(self.note)
        return gap.join(parts)

    def _table_rows(self) -> list[list[str]]:
        rows, quiet = [], defaultdict(list)
        for layer in self.layers:
            if not layer.macs:
                quiet[layer.label].append(layer)
                continue
            share = f"{layer.quadratic_share:.2%}" if layer.neuron else ""
            name = layer.name or "(the model itself)"
            shape = _shape(layer.output_shape)
            rows.append([name, layer.label, shape, f"{layer.params:,}", f"{layer.macs:,}", share])
        for label, layers in quiet.items():
            name = layers[0].name if len(layers) == 1 else f"({len(layers)} layers)"
            rows.append([name, label, "", f"{sum(la.params for la in layers):,}", "0", ""])
        share = f"{self.quadratic_share:.2%}" if any(la.neuron for la in self.layers) else ""
        total = [f"{self.params:,}", f"{self.macs:,}", share]
        return [*rows, ["total", "", "", *total]]

    def _uncounted_lines(self) -> list[str]:
        lines = []
        kinds: dict[str, list[Uncounted]] = defaultdict(list)
        for entry in self.uncounted:
            if entry.reason == "no formula":
                where = ", ".join(entry.layers[:3]) + (" …" if len(entry.layers) > 3 else "")
                lines.append(f"{entry.operator} (no formula), {entry.calls} calls in {where}")
            else:
                kinds[entry.reason].append(entry)
        for reason, entries in kinds.items():
            names = ", ".join(entry.operator for entry in entries)
            elements = sum(entry.elements for entry in entries)
            lines.append(f"{reason}: {names}, {elements:,} elements")
        return lines


def _shape(shape: Sequence[int] | None) -> str:
    return "x".join(str(size) for size in shape) if shape is not None else ""


def comparison(reports: Mapping[str, CostReport], base: CostReport) -> list[dict[str, Any]]:
    """One row for each network: its cost, and the ratio of it to that of `base`."""
    rows = []
    for name, report in reports.items():
        against = report.compare(base).to_dict()
        rows.append(
            {
                "neuron": name,
                "params": report.params,
                "params_ratio": against["params_ratio"],
                "macs": report.macs,
                "macs_ratio": against["macs_ratio"],
                "quadratic_share": report.quadratic_share,
            }
        )
    return rows


# ------------------------------------------------------------------------------------------------
# Closed forms
# ------------------------------------------------------------------------------------------------


def layer_rule(layer: nn.Module) -> Rule | None:
    """The rule that counts a layer, or None where there is no closed form for it."""
    if isinstance(layer, EigenLayer):
        return get_neuron("eigen").make_rule(rank=layer.rank)
    if isinstance(layer, NeuronLayer) and type(layer.rule).num_macs is not Rule.num_macs:
        return layer.rule
    return None


def layer_macs(layer: QuadraticLayer, rule: Rule, input: Tensor, output: Tensor) -> tuple[int, int]:
    """The MACs of one call of a layer, and how many of them its linear layer would not have."""
    linear_map = layer.linear_map
    n, outputs, groups = layer.num_inputs, layer.num_outputs, linear_map.groups
    positions = output.numel() // outputs
    elements = linear_map.prepare(input).numel()
    linear = positions * outputs * n
    quadratic = rule.num_macs(n, outputs, groups, positions, elements) - linear
    if isinstance(layer, ConvTransposeGeometry):
        # Each input value meets each tap once; between them the stride leaves holes in the output.
        linear = input.numel() // layer.in_channels * outputs * n
    return linear + quadratic, quadratic


# ------------------------------------------------------------------------------------------------
# Measuring
# ------------------------------------------------------------------------------------------------


@dataclass
class _Frame:
    """A module that is being called."""

    name: str
    module: nn.Module
    rule: Rule | None
    shapes: list[tuple[int, ...]]


class _Counter(TorchDispatchMode):
    """Counts every operator and adds it to the innermost module that is being called."""

    def __init__(self, model: nn.Module, meta: bool) -> None:
        super().__init__()
        self.meta = meta
        self.names = {module: name for name, module in model.named_modules()}
        self.layers = {m: LayerCost(n, *_kind(m)) for m, n in self.names.items()}
        self.uncounted: dict[str, Uncounted] = {}
        self.stack: list[_Frame] = []
        self.root = model

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        leaves = pytree.tree_leaves((args, kwargs))
        shapes = [tuple(t.shape) for t in leaves if isinstance(t, Tensor)]
        self.stack.append(_Frame(self.names[module], module, layer_rule(module), shapes))

    def leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # A forward pass may have caught an error of a module inside it: that one never left.
        while self.stack and self.stack.pop().module is not module:
            pass
        cost = self.layers[module]
        tensors = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
        cost.calls += 1
        if cost.output_shape is None and tensors:
            cost.output_shape = tuple(tensors[0].shape)
        rule = layer_rule(module)
        if rule is not None and isinstance(module, QuadraticLayer):
            input = next(t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor))
            with _paused(self):
                macs, quadratic = layer_macs(module, rule, input, tensors[0])
            cost.macs += macs
            cost.quadratic_macs += quadratic
            if getattr(module, "normalize", False):
                self._list("normalize", "elementwise", module._parameters["weight"], cost.name)

    @property
    def inner(self) -> nn.Module:
        """The innermost module that is being called."""
        return self.stack[-1].module if self.stack else self.root

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.meta:
            args, kwargs = _on_one_device(args, kwargs)
        out = func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            self._list(str(func), "no formula", out, self.names[self.inner])
            return out
        if self.stack and self.stack[-1].rule is not None:
            return out  # the closed form counts this layer
        counted = _operators.macs(func, args, kwargs, out)
        if counted is not None:
            self.layers[self.inner].macs += counted
        else:
            reason = _operators.reason_uncounted(func)
            if reason is not None:
                name = func._overloadpacket.__name__.strip("_")
                if func.namespace != "aten":
                    name = f"{func.namespace}.{name}"
                self._list(name, reason, out, self.names[self.inner])
        return out

    def _list(self, operator: str, reason: str, out: Any, where: str) -> None:
        entry = self.uncounted.setdefault(operator, Uncounted(operator, reason))
        entry.calls += 1
        # The first result alone: a normalization also returns its statistics.
        entry.elements += next(
            (t.numel() for t in pytree.tree_leaves(out) if isinstance(t, Tensor)), 0
        )
        where = where or "the model itself"
        if where not in entry.layers:
            entry.layers.append(where)


def _kind(module: nn.Module) -> tuple[str, str | None]:
    neuron = module.neuron if isinstance(module, QuadraticLayer) else None
    return type(module).__name__, neuron


@contextlib.contextmanager
def _paused(counter: _Counter) -> Iterator[None]:
    """Lets operators of our own run uncounted."""
    counter.stack.append(_Frame("", counter.root, Rule(), []))
    try:
        yield
    finally:
        counter.stack.pop()


def _on_one_device(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Constants that the forward pass makes on a real device, moved to meta where they meet it."""
    leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if len({t.device.type == "meta" for t in leaves}) < 2:
        return args, kwargs
    moved: tuple[Any, Any] = pytree.tree_map_only(Tensor, _meta, (args, kwargs))
    return moved


def _meta(tensor: Tensor) -> Tensor:
    """A tensor without storage of the same shape, strides and dtype."""
    if tensor.device.type == "meta":
        return tensor
    if tensor.layout is not torch.strided:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@contextlib.contextmanager
def _borrowed(model: nn.Module, meta: bool) -> Iterator[None]:
    """The model in eval mode with meta tensors (or copies of its buffers); then all is put back.

    Attributes are put back as well, because a forward pass may keep what it computed (a mask, a
    cache), and a meta tensor must not stay behind.
    """
    copies: dict[int, Tensor] = {}

    def stand_in(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            if meta:
                copy = _meta(tensor.detach())
            elif isinstance(tensor, nn.Parameter):
                copy = tensor
            else:
                copy = tensor.detach().clone()
            if meta and isinstance(tensor, nn.Parameter):
                copy = nn.Parameter(copy, requires_grad=False)
            copies[id(tensor)] = copy
        return copies[id(tensor)]

    saved = []
    for module in model.modules():
        attributes = dict(vars(module))
        containers = [
            (value, value.copy())
            for value in attributes.values()
            if type(value) in (dict, OrderedDict, defaultdict, list, set)
        ]
        saved.append((module, attributes, containers))
    try:
        for module, attributes, containers in saved:
            for key, value in attributes.items():
                if isinstance(value, Tensor):
                    vars(module)[key] = stand_in(value)
            for container, _ in containers:
                items: Any = () if isinstance(container, set) else enumerate(container)
                if isinstance(container, dict):
                    items = list(container.items())
                for place, value in items:
                    if isinstance(value, Tensor):
                        container[place] = stand_in(value)
            module.training = False
        yield
    finally:
        for module, attributes, containers in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for container, content in containers:
                container.clear()
                put_back = container.extend if isinstance(container, list) else container.update
                put_back(content)


@contextlib.contextmanager
def _plain_operators(model: nn.Module) -> Iterator[None]:
    """Fused attention off, so that its products are seen; no gradients; random state put back."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast = torch.backends.mha.get_fastpath_enabled()
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with contextlib.ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        if any(module._compiled_call_impl is not None for module in model.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class _RefusedError(Exception):
    """A forward pass that failed: where, and why."""

    def __init__(self, frame: _Frame | None, error: Exception) -> None:
        super().__init__(str(error))
        self.frame, self.error = frame, error

    @property
    def of_meta(self) -> bool:
        """Whether a real run may fare better: all errors but those of known layers' shapes."""
        if isinstance(self.error, NotImplementedError) or "meta" in str(self.error).lower():
            return True
        known = self.frame is not None and type(self.frame.module).__module__.startswith(
            ("torch.nn.", "quadric.")
        )
        return not known

    def message(self) -> str:
        """One line for the user."""
        reason = " ".join(f"{type(self.error).__name__}: {self.error}".split())
        if self.frame is None:
            return f"the example inputs must fit the model, got {reason}"
        kind = type(self.frame.module).__name__
        who = f"the layer {self.frame.name!r} ({kind})" if self.frame.name else f"{kind} itself"
        shapes = ", ".join(str(shape) for shape in self.frame.shapes)
        what = f"an input of shape {shapes}" if shapes else "its input"
        return (
            f"the example inputs must fit the model, but {who} refused {what}: {reason}: give "
            "inputs as the model takes them"
        )


def _run(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> _Counter:
    """One counted forward pass, on meta or for real."""
    meta = device.type == "meta"

    copies: dict[int, Tensor] = {}

    def place(tensor: Tensor) -> Tensor:
        # A copy in any case: the pass may change its input in place. One for each tensor: attention
        # asks whether its query is its key.
        if id(tensor) not in copies:
            detached = tensor.detach()
            copies[id(tensor)] = _meta(detached) if meta else detached.to(device, copy=True)
        return copies[id(tensor)]

    args, kwargs = pytree.tree_map_only(Tensor, place, (args, kwargs))
    counter = _Counter(model, meta)
    try:
        with _plain_operators(model), _borrowed(model, meta), counter:
            for module in counter.names:  # the hooks go when the model is given back
                module.register_forward_pre_hook(
                    counter.enter_module, prepend=True, with_kwargs=True
                )
                module.register_forward_hook(counter.leave_module, prepend=True, with_kwargs=True)
            model(*args, **kwargs)
    except Warning:
        raise  # a warning that somebody made an error says nothing of the input
    except Exception as error:
        raise _RefusedError(counter.stack[-1] if counter.stack else None, error) from error
    return counter


def _model_device(model: nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def _check(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give one"
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputTypeError(
                f"a scripted module cannot be counted, got {name or 'the model'!r}: give the "
                "module that it was made from"
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"every parameter must have its shape, got the uninitialized {name!r}: run one "
                "forward pass first"
            )
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if not tensors:
        got = ", ".join(repr(value) for value in (*args, *kwargs.values())) or "nothing"
        raise InputTypeError(
            f"the example inputs must hold a tensor, got {got}: give the arguments of the model's "
            "forward, such as torch.zeros(1, 3, 32, 32)"
        )
    return tensors


def cost(model: nn.Module, *example_inputs: Any, **keyword_inputs: Any) -> CostReport:
    """Counts parameters and multiply-accumulates of one forward pass in eval mode.

    The model is left as it is, and takes no memory but its own: the pass runs on the meta device.

    Args:
        model: any network, with or without Quadric layers, on any device.
        example_inputs: the arguments of its forward: tensors, or whatever it takes.
        keyword_inputs: its keyword arguments.

    Examples:
        >>> from quadric import QuadraticLinear
        >>> report = cost(QuadraticLinear(8, 10, rank=9), torch.zeros(1, 8))
        >>> report.params, report.macs  # 8 x 10 + 10 biases + 9 eigenvalues; 8 x 10 + 2 x 9
        (99, 98)
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    tensors = _check(model, example_inputs, keyword_inputs)
    return _counted(model, example_inputs, keyword_inputs, tensors)


def _counted(
    model: nn.Module, example_inputs: Any, keyword_inputs: Any, tensors: list[Tensor]
) -> CostReport:
    note, device = "", torch.device("meta")
    try:
        counter = _run(model, example_inputs, keyword_inputs, device)
    except _RefusedError as refused:
        home = _model_device(model)
        without_values = home.type == "meta" or any(t.is_meta for t in tensors)
        if not refused.of_meta:
            raise InputError(refused.message()) from refused.error
        if without_values:
            raise InputError(
                f"{refused.message()}; if the forward pass reads values, the model and its inputs "
                "must not be on the meta device"
            ) from refused.error
        reason = " ".join(f"{type(refused.error).__name__}: {refused.error}".split())
        note = f"ran for real on {home}: the forward pass does not run on meta ({reason})"
        device = home
        try:
            counter = _run(model, example_inputs, keyword_inputs, device)
        except _RefusedError as again:
            raise InputError(again.message()) from again.error
    _count_params(counter)
    layers = [la for m, la in counter.layers.items() if la.params or la.macs or layer_rule(m)]
    return CostReport(
        model=type(model).__name__,
        input_shapes=[tuple(t.shape) for t in tensors],
        layers=layers,
        uncounted=list(counter.uncounted.values()),
        device=str(device),
        note=note,
    )


def _count_params(counter: _Counter) -> None:
    seen: set[int] = set()
    for module, layer in counter.layers.items():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                layer.params += parameter.numel()
