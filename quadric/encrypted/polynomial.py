"""A network as a polynomial: linear maps and squares, one stage after another.

Encryption adds and multiplies, nothing else. So a network is brought into one form,
z' = A z + B z^2 + b, stage by stage, starting with z = x. Everything linear between two squares is
one matrix: BatchNorm, average pooling, convolutions, dropout. A product of two linear maps is two
squares, u v = ((u + v) / 2)^2 - ((u - v) / 2)^2.

What a module computes is found by trying it in float64, not by its name: modules of a user's own
work, too. Then stages and network are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, in_one_line
from quadric.layers import QuadraticLayer
from quadric.support.modules import check_initialized, check_model, hooked, unwrapped

LARGEST = 8192
"""Numbers that a value of a network may have: a matrix of them has half a gigabyte."""

_CLOSE = 1e-7
_REMEDIES: dict[str, str] = {
    "MaxPool|MaxUnpool": "average pooling, such as nn.AvgPool2d",
    "ReLU|GELU|SiLU|Mish|ELU|Hardswish|Hardtanh|Sigmoid|Tanh|Softplus": (
        'quadric.convert_(model, activations="polynomial", example_inputs=batch) and train on, or '
        "a quadratic layer in front and nothing in its place"
    ),
    "LayerNorm|RMSNorm|GroupNorm|InstanceNorm": "nn.BatchNorm, which is linear once trained",
    "BatchNorm": "track_running_stats=True: without statistics it normalizes by the batch",
    "Softmax|LogSoftmax": "nothing: the client takes the softmax of what it decrypts",
}


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


@dataclass(frozen=True)
class Obstacle:
    """A part of a network that encryption cannot compute: its name, what it is, what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where} ({self.what}): {self.remedy}"


@dataclass(frozen=True)
class Polynomial:
    """A network in this form; if there are problems, the stages are not the network."""

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


@dataclass
class _Merged:
    """The value at a place of the network, in terms of the last z: P z + R z^2 + c."""

    linear: Tensor
    squares: Tensor | None
    shift: Tensor
    stages: list[Stage] = field(default_factory=list)

    def through(self, function: Callable[[Tensor], Tensor]) -> None:
        """Goes through an affine function of rows."""
        at_zero = function(torch.zeros_like(self.shift)[None])

        def linear(matrix: Tensor) -> Tensor:
            parts = [function(rows) - at_zero for rows in matrix.T.split(256)]
            return torch.cat(parts).T

        _check_size(at_zero.numel())
        if self.squares is not None:
            self.squares = linear(self.squares)
        self.linear, self.shift = linear(self.linear), function(self.shift[None])[0]

    def close(self, linear: Tensor, squares: Tensor | None, shift: Tensor) -> None:
        """Makes the value the next z, of which a new value is P z + R z^2 + c."""
        self.stages.append(Stage(self.linear, self.squares, self.shift))
        self.linear, self.squares, self.shift = linear, squares, shift

    def replace(self, value: Tensor) -> None:
        """Goes on with a value of another size after a problem: the rest is looked at, too."""
        size, own = value[0].numel(), torch.zeros
        self.close(own(size, len(self.shift)).double(), None, own(size).double())


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
    inputs = example[:8].detach().cpu().double()
    calls, output = _calls(own, inputs)
    size = inputs[0].numel()
    _check_size(size)
    state = _Merged(torch.eye(size).double(), None, torch.zeros(size).double())
    problems: list[Obstacle] = []
    value, before = inputs, "the input"
    for name, module, entering, leaving in calls:
        if not _same(entering, value):
            problems.append(_unseen(before, repr(name)))
            state.replace(entering)
        problems += _step(state, name, module, entering, leaving)
        value, before = leaving, repr(name)
    if not _same(output, value):
        problems.append(_unseen(before, "the output"))
    state.close(state.linear, None, state.shift)
    shapes = tuple(inputs.shape[1:]), tuple(output.shape[1:])
    found = Polynomial(tuple(state.stages), *shapes, problems=tuple(problems))
    if not problems and not _same(found.values(inputs)[-1], output):
        problem = Obstacle("the network", "its modules", "they compute something else when tried")
        return Polynomial(found.stages, *shapes, problems=(problem,))
    return found


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise InputError(
            f"a value of the network must have at most {LARGEST:,} numbers to be encrypted, got "
            f"{size:,}: take a smaller network, or smaller inputs"
        )


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = a.flatten(1), b.flatten(1)
    size = b.abs().max().clamp(min=1e-30)
    return a.shape == b.shape and bool((a - b).abs().max() <= _CLOSE * size)


def _unseen(before: str, after: str) -> Obstacle:
    return Obstacle(
        f"between {before} and {after}",
        "the forward computes something that is no module, or a value is used twice",
        "make it a module in a row of modules (nn.Sequential); a sum with a shortcut is not "
        "supported yet",
    )


Call = tuple[str, nn.Module, Tensor, Tensor]


def _calls(model: nn.Module, inputs: Tensor) -> tuple[list[Call], Tensor]:
    """The modules in the order of one run, with what enters and what leaves.

    Modules with parts are taken as a whole where they are polynomials as a whole.
    """
    calls: list[Call] = []

    def noting(name: str) -> Callable[..., None]:
        def note(module: nn.Module, entering: Any, leaving: Any) -> None:
            if len(entering) == 1 and isinstance(leaving, Tensor):
                calls.append((name, module, entering[0].clone(), leaving.clone()))

        return note

    handles = [m.register_forward_hook(noting(n)) for n, m in model.named_modules() if n]
    with hooked(handles or [model.register_forward_hook(noting("the network"))]):
        try:
            with torch.no_grad():
                output = model(inputs)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the model must run with the example inputs, got {in_one_line(error)}: give "
                "inputs of the right shape"
            ) from error
    if not isinstance(output, Tensor) or output.dim() < 2:
        raise InputError("the model must return one tensor with a batch: choose one output")
    whole = {n for n, m, x, y in calls if not isinstance(m, nn.Sequential) and _is_whole(m, x, y)}

    def is_taken(name: str) -> bool:
        inside = any(name.startswith(f"{other}.") for other in whole)
        return name in whole and not inside

    return [call for call in calls if is_taken(call[0])], output


def _is_whole(module: nn.Module, entering: Tensor, leaving: Tensor) -> bool:
    """Whether a module has no parts, or is a polynomial whatever its parts are."""
    if isinstance(module, QuadraticLayer) or not any(True for _ in module.children()):
        return True
    if not entering.is_floating_point() or entering.dim() < 2:
        return False
    function = _on_rows(module, entering)
    with torch.no_grad():
        return _is_affine(function, entering) or _parabola(function, entering, leaving) is not None


def _on_rows(module: nn.Module, entering: Tensor) -> Callable[[Tensor], Tensor]:
    """A module as a function of rows."""
    return lambda rows: module(rows.reshape(-1, *entering.shape[1:])).flatten(1)


def _parabola(
    function: Callable[[Tensor], Tensor], entering: Tensor, leaving: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The numbers a, b, c if every output is a z^2 + b z + c of the input at its place."""
    if entering[0].numel() != leaving[0].numel():
        return None
    ones = torch.ones(1, entering[0].numel()).double()
    up, c, down = (function(factor * ones)[0] for factor in (1, 0, -1))
    a, b = (up + down) / 2 - c, (up - down) / 2
    trial = _trial(entering)
    return (a, b, c) if _same(function(trial), a * trial.square() + b * trial + c) else None


def _step(
    state: _Merged, name: str, module: nn.Module, entering: Tensor, leaving: Tensor
) -> Sequence[Obstacle]:
    """Takes a module up into the state, or says why that cannot be."""
    on_rows = _on_rows(module, entering)
    with torch.no_grad():
        if isinstance(module, QuadraticLayer):
            parts = _quadratic(module, entering)
            if parts is not None:
                rows, linear, squares, shift = parts
                state.through(rows)
                state.close(linear, squares, shift)
                return ()
        elif _is_affine(on_rows, entering):
            state.through(on_rows)
            return ()
        else:
            parabola = _parabola(on_rows, entering, leaving)
            if parabola is not None:
                a, b, c = parabola
                state.close(torch.diag(b), torch.diag(a), c)
                return ()
    state.replace(leaving)
    kind = type(module).__name__
    remedy = next((r for k, r in _REMEDIES.items() if any(w in kind for w in k.split("|"))), None)
    if isinstance(module, QuadraticLayer):
        kind = f"neuron {module.neuron!r}"
        remedy = "the neuron 'eigen', 'shared', 'square' or 'bilinear'"
    problem = "it must be a polynomial of degree 1, or 2 number by number: put another in its place"
    return [Obstacle(name, kind, problem if remedy is None else f"take {remedy}")]


def _trial(entering: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    size = entering[0].numel()
    return 3 * torch.randn(3, size, generator=draw, dtype=torch.float64)


def _is_affine(function: Callable[[Tensor], Tensor], entering: Tensor) -> bool:
    """Whether f(u - v) = f(u) - f(v) + f(0) for random u and v."""
    u = _trial(entering)
    v = u.roll(1, 0).flip(1) * 0.7
    if u.shape[1] == 1:
        v = -u.flip(0)
    return _same(function(u - v), function(u) - function(v) + function(torch.zeros_like(u)))


def _quadratic(
    layer: QuadraticLayer, entering: Tensor
) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor, Tensor] | None:
    """A layer as z = rows(x) and P z + R z^2 + c; None if its neuron has no such form."""
    op, shape = layer.linear_op, entering.shape[1:]
    weights: list[tuple[Tensor, Tensor | None]]
    if layer.blocks is not None:
        weights = [(layer.weight, layer.bias)]
        mixing = layer.blocks.matrix(layer.effective_eigenvalues())
        own = torch.eye(len(mixing)).double()
    elif layer.neuron == "bilinear":
        # Without biases the gate's is a constant one.
        second = torch.ones(layer.num_outputs).double() if layer.bias2 is None else layer.bias2
        first = torch.zeros_like(second) if layer.bias is None else layer.bias
        both = [(layer.weight + s * layer.weight2, first + s * second) for s in (1, -1)]
        weights = [(weight / 2, bias / 2) for weight, bias in both]
        one = torch.eye(layer.num_outputs).double()
        own, mixing = torch.zeros(len(one), 2 * len(one)).double(), torch.cat([one, -one], 1)
    else:
        return None

    def rows(x: Tensor) -> Tensor:
        maps = [op(x.reshape(-1, *shape), weight, bias) for weight, bias in weights]
        return torch.cat([z.flatten(1) for z in maps], 1)

    channels, count = len(weights) * layer.num_outputs, len(rows(entering[:1])[0])
    same = torch.eye(count // channels).double()  # a convolution does so at every position
    linear, squares = (torch.kron(matrix, same) for matrix in (own, mixing))
    return rows, linear, squares, torch.zeros(len(linear)).double()
