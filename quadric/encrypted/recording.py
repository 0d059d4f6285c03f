"""One run of a network as a list of calls of torch, each an affine map or a square.

What a call computes is found by trying it in float64, not by its name: calls of a user's own
forward, too. What is neither is noted with its module and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, explained
from quadric.layers import QuadraticLayer
from quadric.support.modules import hooked, tensors_in

LARGEST = 8192
"""Numbers that a value of a network may have: a matrix of them has half a gigabyte."""

_CLOSE = 1e-7
ROWS = 64
"""Inputs of the run that is recorded: calls are repeated with as many."""
_READS = ("numpy", "tolist", "equal", "allclose", "__setitem__")
_REMEDIES: dict[str, str] = {
    "maxpool|maxunpool": "average pooling, such as nn.AvgPool2d",
    "relu|gelu|silu|mish|elu|hardswish|hardtanh|sigmoid|tanh|softplus": (
        'quadric.convert_(model, activations="polynomial", example_inputs=batch) and train on, or '
        "a quadratic layer in front and nothing in its place"
    ),
    "layernorm|rmsnorm|groupnorm|instancenorm": "nn.BatchNorm, which is linear once trained",
    "batchnorm": "track_running_stats=True: without statistics it normalizes by the batch",
    "softmax": "nothing: the client takes the softmax of what it decrypts",
    "neuron": "the neuron 'eigen', 'shared', 'square' or 'bilinear'",
}


@dataclass(frozen=True)
class Obstacle:
    """A part of a network that encryption cannot compute: its name, what it is, what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where} ({self.what}): {self.remedy}"


def same(a: Tensor, b: Tensor) -> bool:
    """Whether rows are the same but for rounding."""
    a, b = a.flatten(1), b.flatten(1)
    size = b.abs().max().clamp(min=1e-30)
    return a.shape == b.shape and bool((a - b).abs().max() <= _CLOSE * size)


@dataclass(frozen=True)
class Call:
    """A call of torch: a function of values that the tape knows by their numbers."""

    function: Callable[..., Tensor]
    inputs: tuple[int, ...]
    output: int
    level: int  # squares in a row before it
    square: tuple[Tensor, Tensor, Tensor] | bool  # a, b, c of a parabola; True is a product


class _Watched(Tensor):
    """A tensor whose calls are recorded."""

    tape: Tape
    number: int

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made: Any = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore
        entering = [t for t in tensors_in([*args, *(kwargs or {}).values()]) if hasattr(t, "tape")]
        if entering:
            entering[0].tape.note(func, args, kwargs or {}, entering, made)
        return made


class Tape:
    """One run of a network: its calls, and what encryption cannot compute."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        self.calls: list[Call] = []
        self.problems: dict[str, Obstacle] = {}
        self.shapes: list[torch.Size] = []
        self.levels: list[int] = []
        self.inside: list[tuple[str, nn.Module]] = []
        handles = []
        for name, module in model.named_modules():
            enter = lambda *_, own=(name or "the network", module): self.inside.append(own)  # noqa: E731
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(lambda *_: self.inside.pop() and None))
        start = inputs.clone().as_subclass(_Watched)
        self._number(start, 0)
        remedy = "give inputs of the right shape"
        with hooked(handles), explained("the model must run with the example inputs", remedy):
            with torch.no_grad():
                self.output: Any = model(start)
        if not isinstance(self.output, Tensor) or self.output.dim() < 2:
            raise InputError("the model must return one tensor with a batch: choose one output")
        if not hasattr(self.output, "tape"):
            self.inside = [("the network", model)]
            self._problem("forward")

    def _number(self, value: Any, level: int) -> int:
        size = value.shape[1:].numel()
        if size > LARGEST:
            raise InputError(
                f"a value of the network must have at most {LARGEST:,} numbers to be encrypted, "
                f"got {size:,}: take a smaller network, or smaller inputs"
            )
        value.tape, value.number = self, len(self.shapes)
        self.shapes.append(value.shape)
        self.levels.append(level)
        return len(self.shapes) - 1

    def _problem(self, name: str) -> None:
        where, module = self.inside[-1] if self.inside else ("the network", nn.Module())
        what = name if any(True for _ in module.children()) else type(module).__name__
        what = f"neuron {module.neuron!r}" if isinstance(module, QuadraticLayer) else what
        kind = what.lower().replace("_", "")
        remedy = next((r for k, r in _REMEDIES.items() if any(w in kind for w in k.split("|"))), "")
        text = "it must be a polynomial of degree 1, or 2 number by number: put another there"
        self.problems.setdefault(where, Obstacle(where, what, f"take {remedy}" if remedy else text))

    def note(self, func: Any, args: Any, kwargs: Any, entering: list[Any], made: Any) -> None:
        """Takes in a call with its result."""
        name = getattr(func, "__name__", str(func))
        results = (
            [made] if isinstance(made, Tensor) else made if type(made) in (tuple, list) else ()
        )
        results = [r for r in results if isinstance(r, _Watched)]
        if name in _READS:
            self._problem(name)
        entering = list({t.number: t for t in entering}.values())
        inputs = tuple(t.number for t in entering)
        changed = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        if len(results) == 1 and any(results[0] is t for t in entering) and not changed:
            return  # nothing was done, such as by contiguous()
        for place, result in enumerate(results):
            many = place if not isinstance(made, Tensor) else None
            self._add(name, _repeated(func, args, kwargs, inputs, many), inputs, result)

    def _add(self, name: str, function: Any, inputs: tuple[int, ...], result: Any) -> None:
        level = max(self.levels[i] for i in inputs)
        square: Any = False
        shapes = [self.shapes[i] for i in inputs]
        if not (result.is_floating_point() and result.dim() and len(result) == ROWS):
            self._problem(name)
            result = result.as_subclass(Tensor)
            return
        with torch.no_grad():
            if not _is_affine(function, shapes):
                square = _square(function, shapes)
                if square is False:
                    self._problem(name)
        output = self._number(result, level + (square is not False))
        self.calls.append(Call(function, inputs, output, level, square))


class _Slot(int):
    """The place of a watched tensor among a call's inputs."""


def _repeated(
    func: Any, args: Any, kwargs: Any, inputs: tuple[int, ...], place: int | None
) -> Callable[..., Tensor]:
    """A call as a function of its watched tensors; of several results the one at a place."""

    def changed(value: Any, change: Callable[[Any], Any]) -> Any:
        if type(value) in (tuple, list):
            return type(value)(changed(v, change) for v in value)
        if type(value) is dict:
            return {key: changed(v, change) for key, v in value.items()}
        return change(value)

    fixed = changed(
        (tuple(args), kwargs),
        lambda v: _Slot(inputs.index(v.number)) if hasattr(v, "tape") else v,
    )

    def function(*values: Tensor) -> Tensor:
        # A call may change what it gets.
        own = changed(fixed, lambda v: values[v].clone() if isinstance(v, _Slot) else v)
        made = func(*own[0], **own[1])
        result: Tensor = made if place is None else made[place]
        return result

    return function


def _trials(shapes: Sequence[torch.Size], seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def _is_affine(function: Callable[..., Tensor], shapes: Sequence[torch.Size]) -> bool:
    """Whether f(u - v) = f(u) - f(v) + f(0) for random u and v."""
    us, vs = _trials(shapes, 0), _trials(shapes, 1)
    zeros = function(*map(torch.zeros_like, us))
    between = function(*(u - v for u, v in zip(us, vs, strict=True)))
    return same(between, function(*us) - function(*vs) + zeros)


def _square(
    function: Callable[..., Tensor], shapes: Sequence[torch.Size]
) -> tuple[Tensor, Tensor, Tensor] | bool:
    """The numbers a, b, c if every output is a z^2 + b z + c of the input at its place.

    True if it is the product of two inputs, False if it is neither.
    """
    u, *more = _trials(shapes, 0)
    made = function(u, *more)
    if len(more) == 1 and more[0].dim() == u.dim():
        return made.shape[1:] == (u * more[0]).shape[1:] and same(made, u * more[0])
    if more or made.shape != u.shape:
        return False
    up, c, down = (function(torch.full_like(u, x))[0].flatten() for x in (1, 0, -1))
    a, b = (up + down) / 2 - c, (up - down) / 2
    rows = u.flatten(1)
    return (a, b, c) if same(made, a * rows.square() + b * rows + c) else False
