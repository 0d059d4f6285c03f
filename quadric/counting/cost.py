"""What a network costs: its parameters, and the multiply-accumulates (MACs) of one forward pass.

There are two ways of counting, each used where it is right. A Quadric layer is counted by the
closed form of its neuron, which includes the elementwise products of the squares (two per
eigenvalue of the eigen neuron, as in the paper). Everything else is counted operator by operator,
as torch runs it. So products of raw parameters, `einsum` and attention are seen, whatever module
they are in. An operator without a formula is listed as uncounted.

The pass runs on the meta device, without memory or arithmetic. The model is not changed: its
parameters and buffers are replaced by shapes during the pass, and all its attributes are put back
afterwards. A forward pass that reads values (`if x.sum() > 0`) cannot run on meta. Only then it
runs once for real, and the report says so.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from quadric.counting import operators
from quadric.counting.cost_report import CostReport, LayerCost, Uncounted
from quadric.errors import InputError, InputTypeError, in_one_line
from quadric.layers import Neuron, NeuronConvTranspose, QuadraticLayer
from quadric.support.modules import (
    call_arguments,
    check_initialized,
    check_model,
    random_state_kept,
    tensors_in,
    unfused,
    unwrapped,
)


def cost(model: nn.Module, *example_inputs: Any, **keyword_inputs: Any) -> CostReport:
    """Counts parameters and multiply-accumulates of one forward pass in eval mode.

    The model is left as it is, and no memory is needed besides its own: the pass runs on the meta
    device.

    Args:
        model: any network, with or without Quadric layers, on any device.
        example_inputs: the arguments of its forward: tensors, or whatever it takes. One tuple holds
            several, one mapping holds keyword arguments.
        keyword_inputs: the keyword arguments of the model.

    Returns:
        The cost of every layer, and the operators that could not be counted.

    Raises:
        InputError: if the example inputs do not fit the model, or it has uninitialized parameters.
        InputTypeError: if `model` is not an eager module, or no tensor is given.

    Examples:
        >>> from quadric import QuadraticLinear
        >>> report = cost(QuadraticLinear(8, 10, rank=9), torch.zeros(1, 8))
        >>> report.params, report.macs  # 8 x 10 + 10 biases + 9 eigenvalues; 8 x 10 + 2 x 9
        (99, 98)
    """
    check_model(model)
    model = unwrapped(model)
    if len(example_inputs) == 1 and not keyword_inputs:
        example_inputs, keyword_inputs = call_arguments(model, example_inputs[0])
    tensors = _check(model, example_inputs, keyword_inputs)
    device, note = torch.device("meta"), ""
    try:
        counter = _run(model, example_inputs, keyword_inputs, device)
    except InputError as refused:
        held = (*model.parameters(), *model.buffers())
        if any(tensor.is_meta for tensor in (*held, *tensors)):
            raise InputError(
                f"{refused}; if the forward pass reads values, the model and its inputs must not "
                "be on the meta device"
            ) from refused
        device = held[0].device if held else torch.device("cpu")
        reason = in_one_line(refused.__cause__ or refused)
        note = f"ran for real on {device}: the forward pass does not run on meta ({reason})"
        counter = _run(model, example_inputs, keyword_inputs, device)
    return CostReport(
        model=type(model).__name__,
        input_shapes=[tuple(t.shape) for t in tensors],
        layers=[la for m, la in counter.layers.items() if la.params or la.macs or counter.rules[m]],
        uncounted=list(counter.uncounted.values()),
        device=str(device),
        note=note,
    )


def _check(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the example inputs, once the model can be counted."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputTypeError(
                f"a scripted module cannot be counted, got {name or 'the model'!r}: give the "
                "module that it was made from"
            )
    check_initialized(model)
    tensors = tensors_in((args, kwargs))
    if not tensors:
        got = ", ".join(repr(value) for value in (*args, *kwargs.values())) or "nothing"
        raise InputTypeError(
            f"the example inputs must hold a tensor, got {got}: give the arguments of the model's "
            "forward, such as torch.zeros(1, 3, 32, 32)"
        )
    return tensors


def layer_rule(layer: nn.Module) -> Neuron | None:
    """The rule that counts a layer, or None where there is no closed form for it."""
    if not isinstance(layer, QuadraticLayer):
        return None
    kind = type(layer.rule)
    stated = kind.num_macs is not Neuron.num_macs or kind.per_output is not Neuron.per_output
    return layer.rule if stated else None


def layer_macs(
    layer: QuadraticLayer, rule: Neuron, input: Tensor, output: Tensor
) -> tuple[int, int]:
    """The MACs of one call of a layer."""
    linear_op = layer.linear_op
    n, outputs, groups = layer.num_inputs, layer.num_outputs, linear_op.groups
    positions = output.numel() // outputs
    elements = linear_op.prepare(input).numel()
    total = rule.num_macs(n, outputs, groups, positions, elements)
    if isinstance(layer, NeuronConvTranspose):
        # Each input value meets each tap once; the stride leaves holes in the output.
        taken = input.numel() // layer.in_channels
        filters = [p for p in layer.parameters() if p.dim() == len(layer.kernel_size) + 2]
        total += (taken - positions) * sum(weight.numel() for weight in filters)
        positions = taken
    return total, total - positions * outputs * n


class _Counter(TorchDispatchMode):
    """Counts every operator and adds it to the innermost module that is being called."""

    def __init__(self, model: nn.Module, meta: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.meta = model, meta
        self.layers: dict[nn.Module, LayerCost] = {}
        seen: set[nn.Parameter] = set()
        for name, module in model.named_modules():
            neuron = module.neuron if isinstance(module, QuadraticLayer) else None
            own = set(module.parameters(recurse=False)) - seen
            seen |= own
            params = sum(parameter.numel() for parameter in own)
            self.layers[module] = LayerCost(name, type(module).__name__, neuron, params=params)
        self.rules = {module: layer_rule(module) for module in self.layers}
        self.uncounted: dict[str, Uncounted] = {}
        # The modules that are being called, each with the shapes of its inputs.
        self.stack: list[tuple[nn.Module, list[tuple[int, ...]]]] = []

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.stack.append((module, [tuple(t.shape) for t in tensors_in((args, kwargs))]))

    def leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # If a forward pass caught an error of a module inside it, that module is still here.
        while self.stack[-1][0] is not module:
            self.stack.pop()
        cost, rule, tensors = self.layers[module], self.rules[module], tensors_in(output)
        cost.calls += 1
        if cost.output_shape is None and tensors:
            cost.output_shape = tuple(tensors[0].shape)
        if rule is not None and isinstance(module, QuadraticLayer):
            macs, quadratic = layer_macs(module, rule, tensors_in((args, kwargs))[0], tensors[0])
            cost.macs += macs
            cost.quadratic_macs += quadratic
            if getattr(module, "normalize", False):
                self._list("normalize", "elementwise", module._parameters["weight"])
        self.stack.pop()

    @property
    def inner(self) -> nn.Module:
        """The innermost module that is being called."""
        return self.stack[-1][0] if self.stack else self.model

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.meta and len({t.is_meta for t in tensors_in((args, kwargs))}) > 1:
            # The forward pass made a constant on a real device.
            args, kwargs = pytree.tree_map_only(Tensor, _meta, (args, kwargs))
        out = func(*args, **(kwargs or {}))
        if not (self.stack and self.rules[self.inner]):  # a closed form counts its own layer
            counted = operators.macs(func, args, kwargs, out)
            reason = operators.reason_uncounted(func)
            if counted is not None:
                self.layers[self.inner].macs += counted
            elif reason is not None:
                self._list(operators.name_of(func), reason, out)
        return out

    def _list(self, operator: str, reason: str, out: Any) -> None:
        entry = self.uncounted.setdefault(operator, Uncounted(operator, reason))
        entry.calls += 1
        # The first result alone: a normalization also returns its statistics.
        entry.elements += sum(t.numel() for t in tensors_in(out)[:1])
        where = self.layers[self.inner].name or "the model itself"
        if where not in entry.layers:
            entry.layers.append(where)


def _run(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> _Counter:
    """One counted forward pass, on meta or for real."""
    meta = device.type == "meta"
    # Copies in any case: the pass may change its input in place.
    copied = _once(_meta if meta else lambda tensor: tensor.detach().to(device, copy=True))
    args, kwargs = pytree.tree_map_only(Tensor, copied, (args, kwargs))
    counter = _Counter(model, meta)
    try:
        with _plain_operators(model), _borrowed(model, meta), counter:
            for module in counter.layers:  # these hooks go when the model is given back
                module.register_forward_pre_hook(
                    counter.enter_module, prepend=True, with_kwargs=True
                )
                module.register_forward_hook(counter.leave_module, prepend=True, with_kwargs=True)
            model(*args, **kwargs)
    except Warning:
        raise  # where warnings are errors, they say nothing about the input
    except Exception as error:
        raise InputError(_refusal(counter, error)) from error
    return counter


def _refusal(counter: _Counter, error: Exception) -> str:
    """Which module refused which input, and what it said."""
    if not counter.stack:
        return f"the example inputs must fit the model, got {in_one_line(error)}"
    module, shapes = counter.stack[-1]
    kind, name = type(module).__name__, counter.layers[module].name
    who = f"the layer {name!r} ({kind})" if name else f"{kind} itself"
    what = f"an input of shape {', '.join(map(str, shapes))}" if shapes else "its input"
    return (
        f"the example inputs must fit the model, but {who} refused {what}: {in_one_line(error)}: "
        "give inputs as the model takes them"
    )


def _once(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`make`, called once per tensor: attention asks whether its query is its key."""
    made: dict[int, Tensor] = {}

    def get(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = make(tensor)
        return made[id(tensor)]

    return get


def _meta(tensor: Tensor) -> Tensor:
    """A tensor without storage of the same shape, strides and dtype."""
    if tensor.is_meta:
        return tensor
    if tensor.layout is torch.strided:
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    else:
        new = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(new, requires_grad=False) if is_parameter else new


@contextlib.contextmanager
def _borrowed(model: nn.Module, meta: bool) -> Iterator[None]:
    """The model in eval mode with meta tensors (or copies of its buffers); then all is put back.

    Attributes and what they hold are put back as well, because a forward pass may keep what it
    computed (a mask, a cache), and no meta tensor must stay in the model.
    """

    def copied(tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()

    stand_in = _once(_meta if meta else copied)
    saved: list[tuple[Any, Any]] = []
    modules = list(model.modules())
    for module in modules:
        held = [v for v in vars(module).values() if type(v) in _CONTAINERS]
        saved += [(container, container.copy()) for container in (vars(module), *held)]
    try:
        for container, content in saved:
            items: Any = enumerate(content) if isinstance(content, list) else ()
            for place, value in content.items() if isinstance(content, dict) else items:
                if isinstance(value, Tensor):
                    container[place] = stand_in(value)
        for module in modules:
            module.training = False
        yield
    finally:
        for container, content in saved:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


@contextlib.contextmanager
def _plain_operators(model: nn.Module) -> Iterator[None]:
    """Fused attention off, so that its products are seen; no gradients; random state put back."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    with (
        unfused(),
        random_state_kept(model),
        torch.inference_mode(False),
        torch.no_grad(),
        sdpa_kernel([SDPBackend.MATH]),
        torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext(),
    ):
        yield
