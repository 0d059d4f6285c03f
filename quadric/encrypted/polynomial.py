"""A network as a polynomial: linear maps and squares, one stage after another.

Encryption adds and multiplies, nothing else. So a network is brought into one form,
z' = A z + B z^2 + b, stage by stage, starting with z = x. Everything linear between two squares is
one matrix: BatchNorm, average pooling, convolutions, sums with shortcuts. A product of two linear
maps is two squares, u v = ((u + v) / 2)^2 - ((u - v) / 2)^2. A value that is used later, such as a
shortcut, is a part of every z in between: that takes no multiplication.

In the end stages and network are compared.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quadric.encrypted.recording import LARGEST, ROWS, Call, Obstacle, Tape, same
from quadric.errors import InputError
from quadric.support.modules import check_initialized, check_model, unwrapped


@dataclass(frozen=True)
class Stage:
    """z' = linear z + squares z^2 + bias in float64; `squares` is None if nothing is squared."""

    linear: Tensor
    squares: Tensor | None
    bias: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Computes the stage for rows z."""
        out = z @ self.linear.T + self.bias
        return out if self.squares is None else out + z.square() @ self.squares.T

    def rows(self, chosen: Tensor) -> Stage:
        """The stage of some of its outputs."""
        squares = None if self.squares is None else self.squares[chosen]
        return Stage(self.linear[chosen], squares, self.bias[chosen])

    def scaled(self, factor: Tensor | float) -> Stage:
        """The stage times a number for each output."""
        factor = torch.as_tensor(factor).double().expand_as(self.bias)
        squares = None if self.squares is None else factor[:, None] * self.squares
        return Stage(factor[:, None] * self.linear, squares, factor * self.bias)


@dataclass(frozen=True)
class Polynomial:
    """A network in this form; if there are problems, there are no stages."""

    stages: tuple[Stage, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    problems: tuple[Obstacle, ...] = ()

    def values(self, inputs: Tensor) -> list[Tensor]:
        """The input and every z, as rows of float64."""
        found = [inputs.flatten(1).double()]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found

    @property
    def squarings(self) -> int:
        """How many squares follow each other."""
        return sum(stage.squares is not None for stage in self.stages)

    @property
    def depth(self) -> int:
        """Multiplications in a row: the squares, and the maps with weights."""
        return len(self.stages) + self.squarings


def to_polynomial(model: nn.Module, example: Tensor) -> Polynomial:
    """Brings a network into the form of stages; what does not fit stands in `problems`."""
    check_model(model)
    check_initialized(model)
    if not isinstance(example, Tensor) or example.dim() < 2 or not len(example):
        raise InputError(
            "example_inputs must be one tensor, a batch of at least one input, got "
            f"{tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__}: "
            "give inputs such as data[:8]"
        )
    if not bool(torch.isfinite(example).all()):
        raise InputError("inputs must be finite, got an infinite number or NaN: leave it out")
    own = copy.deepcopy(unwrapped(model)).cpu().double().eval().requires_grad_(False)
    places = torch.arange(ROWS) % len(example[:8])
    inputs = example[:8].detach().cpu().double()[places]
    tape = Tape(own, inputs)
    shapes = tuple(inputs.shape[1:]), tuple(tape.output.shape[1:])
    if tape.problems:
        return Polynomial((), *shapes, tuple(tape.problems.values()))
    found = Polynomial(tuple(_stages(tape)), *shapes)
    if not same(found.values(inputs)[-1], tape.output.as_subclass(Tensor)):
        problem = Obstacle("the network", "its modules", "they compute something else when tried")
        return Polynomial((), *shapes, (problem,))
    return found


def _stages(tape: Tape) -> Iterator[Stage]:
    """The calls in the order of their levels: all squares of a level are one stage."""
    size = tape.shapes[0][1:].numel()
    forms = {0: Stage(torch.eye(size).double(), None, torch.zeros(size).double())}
    calls = sorted(tape.calls, key=lambda call: (call.level, call.square is not False))
    uses = Counter(number for call in calls for number in call.inputs)
    uses[tape.output.number] += 1
    for (_, squares), group in groupby(calls, lambda call: (call.level, call.square is not False)):
        if not squares:
            for call in group:
                own = [forms[number] for number in call.inputs]
                forms[call.output] = _through(
                    call.function, [tape.shapes[i] for i in call.inputs], own
                )
                _forget(forms, uses, call)
            continue
        todo = [(call, _factors(call, tape, forms)) for call in group]
        for call, _ in todo:
            _forget(forms, uses, call)
        operands = [operand for _, factors in todo for operand, *_ in factors]
        if not all(map(_is_simple, operands)):
            closed, chosen = _closed([*operands, *forms.values()])
            yield closed
            operands = chosen[: len(operands)]
            forms = dict(zip(forms, chosen[len(operands) :], strict=True))
        left = iter(operands)
        for call, factors in todo:
            forms[call.output] = _sum([_squared(next(left), *abc) for _, *abc in factors])
    yield forms[tape.output.number]


def _forget(forms: dict[int, Stage], uses: Counter[int], call: Call) -> None:
    """Drops the forms that nobody needs any more: they are large."""
    for number in call.inputs:
        uses[number] -= 1
        if not uses[number]:
            del forms[number]


def _through(
    function: Callable[..., Tensor], shapes: Sequence[torch.Size], forms: Sequence[Stage]
) -> Stage:
    """An affine function of values in terms of z."""

    def of(rows: Sequence[Tensor]) -> Tensor:
        full = [
            F.pad(r, (0, 0, 0, ROWS - len(r))).reshape(s) for r, s in zip(rows, shapes, strict=True)
        ]
        return function(*full)[: len(rows[0])].flatten(1)

    zero = of([form.bias.new_zeros(1, len(form.bias)) for form in forms])

    def matrix(parts: Sequence[Tensor]) -> Tensor:
        chunks = zip(*(part.T.split(ROWS) for part in parts), strict=True)
        return torch.cat(
            [
                of(chunk) - zero
                if any(bool(c.any()) for c in chunk)
                else zero.new_zeros(len(chunk[0]), zero.shape[1])
                for chunk in chunks
            ]
        ).T.contiguous()

    squares = None
    if any(form.squares is not None for form in forms):
        squares = matrix(
            [torch.zeros_like(f.linear) if f.squares is None else f.squares for f in forms]
        )
    return Stage(matrix([f.linear for f in forms]), squares, of([f.bias[None] for f in forms])[0])


_Factor = tuple[Stage, Any, Any, Any]
"""A value w and the numbers of a w^2 + b w + c."""


def _factors(call: Call, tape: Tape, forms: dict[int, Stage]) -> list[_Factor]:
    """The parabolas whose sum a call is."""
    if not isinstance(call.square, bool):
        return [(forms[call.inputs[0]], *call.square)]
    u, v = (_expanded(forms[i], tape.shapes[i], tape.shapes[call.output]) for i in call.inputs)
    # Where one is a multiple of the other, and a number, there is one square.
    whole = [f.linear if f.squares is None else torch.cat([f.linear, f.squares], 1) for f in (u, v)]
    if whole[0].shape == whole[1].shape:
        below = whole[1].square().sum(1)
        ratio = (whole[0] * whole[1]).sum(1) / below
        if same(ratio[:, None] * whole[1], whole[0]):
            return [(v, ratio, u.bias - ratio * v.bias, 0.0)]
    half = _sum([u.scaled(0.5), v.scaled(0.5)]), _sum([u.scaled(0.5), v.scaled(-0.5)])
    return [(half[0], 1.0, 0.0, 0.0), (half[1], -1.0, 0.0, 0.0)]


def _expanded(form: Stage, shape: torch.Size, wanted: torch.Size) -> Stage:
    if shape == wanted:
        return form
    places = torch.arange(len(form.bias)).reshape(1, *shape[1:])
    return form.rows(places.expand(1, *wanted[1:]).flatten())


def _sum(forms: Sequence[Stage]) -> Stage:
    total = forms[0]
    for form in forms[1:]:
        both = [f.squares for f in (total, form) if f.squares is not None]
        squares = sum(both[1:], both[0]) if both else None
        total = Stage(total.linear + form.linear, squares, total.bias + form.bias)
    return total


def _is_simple(form: Stage) -> bool:
    """Whether each number of a value depends on one number of z, and that without a square."""
    return form.squares is None and int(form.linear.count_nonzero(1).max()) <= 1


def _squared(w: Stage, a: Any, b: Any, c: Any) -> Stage:
    """The parabola a w^2 + b w + c of a simple w."""
    linear = Stage(w.linear, None, w.bias).scaled(2 * a * w.bias + b).linear
    squares = Stage(w.linear.square(), None, w.bias).scaled(a).linear
    return Stage(linear, squares, a * w.bias.square() + b * w.bias + c)


def _closed(forms: Sequence[Stage]) -> tuple[Stage, list[Stage]]:
    """A stage that makes these values the next z, each number once; and the values in its terms."""
    size = forms[0].linear.shape[1]
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, size, generator=draw, dtype=torch.float64)
    places: dict[float, int] = {}
    numbers, new = [], []
    for form in forms:
        keys = (form.linear * first).sum(1) + form.bias
        if form.squares is not None:
            keys += (form.squares * second).sum(1)
        known = len(places)
        own = torch.tensor([places.setdefault(key, len(places)) for key in keys.tolist()])
        rows = torch.full((len(places) - known,), len(own))
        mine = own >= known
        rows.scatter_reduce_(0, own[mine] - known, torch.arange(len(own))[mine], "amin")
        numbers.append(own)
        new.append(form.rows(rows))
    if len(places) > LARGEST:
        raise InputError(
            f"values that are needed at the same time must have at most {LARGEST:,} numbers "
            f"together, got {len(places):,}: take a smaller network, or fewer shortcuts"
        )
    squares = None
    if any(form.squares is not None and bool(form.squares.any()) for form in new):
        parts = [torch.zeros_like(f.linear) if f.squares is None else f.squares for f in new]
        squares = torch.cat(parts)
    closed = Stage(torch.cat([f.linear for f in new]), squares, torch.cat([f.bias for f in new]))
    chosen = []
    for own in numbers:
        one = torch.zeros(len(own), len(places), dtype=torch.float64).scatter_(1, own[:, None], 1)
        chosen.append(Stage(one, None, one.new_zeros(len(own))))
    return closed, chosen
