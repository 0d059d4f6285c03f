"""Networks as the command line names them: one of `quadric.models`, or `package.module:factory`."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.counting.cost import cost as count
from quadric.counting.cost_report import CostReport
from quadric.errors import InputError, InputTypeError
from quadric.layers import get_neuron
from quadric.models import registry
from quadric.models.building import create, make_quadratic_
from quadric.support.texttable import markdown_table, text_table
from quadric.user_code import function


def is_factory(name: str) -> bool:
    """Whether a name means an importable factory, not a network of this package."""
    return ":" in name


def build_network(
    name: str,
    neuron: str = "linear",
    rank: int | None = None,
    first: int | None = None,
    example_inputs: Sequence[Tensor] | None = None,
    device: str | None = None,
    **options: Any,
) -> nn.Module:
    """Builds a network by name and converts it."""
    if not is_factory(name):
        with torch.device(device or torch.get_default_device()):
            return create(name, neuron, rank, first=first, **options)
    if options:
        raise InputError(
            f"options must be for a network of quadric.models, got {', '.join(options)} for "
            f"{name!r}: write a factory that sets them"
        )
    model = _call(name, device)
    if example_inputs is not None:
        home = next((p.device for p in model.parameters()), torch.device("cpu"))
        example_inputs = tuple(x.to(home) for x in example_inputs)
    make_quadratic_(model, neuron, rank, first=first, init="linear", example_inputs=example_inputs)
    return model


def _call(name: str, device: str | None) -> nn.Module:
    """The network that a user's own factory gives; a device is tried first."""
    factory = function(name, repr(name))
    if isinstance(factory, nn.Module):
        return copy.deepcopy(factory)  # the next call must not find it converted
    if not callable(factory):
        raise InputTypeError(
            f"{name!r} must be a function that returns a torch.nn.Module, got "
            f"{type(factory).__name__}: name such a function"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InputError(
            f"the factory {name!r} must need no argument, but calling it failed ({error}): "
            "wrap it in a function that gives them"
        ) from None
    except ValueError:
        pass  # it has no signature to read: calling it will tell
    model: Any = None
    if device is not None:
        # It fails on meta if it reads values, which meta has not.
        with contextlib.suppress(RuntimeError, NotImplementedError), torch.device(device):
            model = factory()
    model = factory() if model is None else model
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"{name!r} must return a torch.nn.Module, got {type(model).__name__}: return the "
            "network"
        )
    return model


def parse_input(text: str) -> Tensor:
    """An example input with a batch of one, from its shape (and dtype) in words.

    Examples:
        >>> parse_input("3x32x32").shape
        torch.Size([1, 3, 32, 32])
        >>> parse_input("16:int64").dtype
        torch.int64
    """
    shape, _, kind = text.partition(":")
    sizes = shape.split("x")
    dtype = getattr(torch, kind or "float32", None)
    if not all(s.isdecimal() and int(s) > 0 for s in sizes) or not isinstance(dtype, torch.dtype):
        raise InputError(
            "an input must be a shape without the batch, such as 3x32x32, or 128:int64 for token "
            f"ids, got {text!r}"
        )
    return torch.zeros(1, *(int(s) for s in sizes), dtype=dtype)


def example_inputs(
    name: str, texts: Sequence[str] | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """Example inputs of a network: the given ones, or those that a network of ours has."""
    if texts:
        return tuple(map(parse_input, texts))
    if is_factory(name):
        raise InputError(
            f"the input of {name!r} must be given: add --input with its shape without the batch, "
            "such as --input 3x224x224"
        )
    return registry.example_inputs(name, **options)


def network_cost(
    name: str,
    neuron: str = "linear",
    rank: int | None = None,
    first: int | None = None,
    inputs: Sequence[str] | None = None,
) -> CostReport:
    """What a named network costs for one input."""
    examples = example_inputs(name, inputs)
    if is_factory(name) and neuron != "linear":
        # An input that does not fit is told by the layer that refuses it, before any conversion.
        count(build_network(name, device="meta"), *examples)
    return count(build_network(name, neuron, rank, first, examples, device="meta"), *examples)


def compare_neurons(
    name: str,
    neurons: Sequence[str],
    rank: int | None = None,
    first: int | None = None,
    inputs: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The cost of one network with several neurons, and its ratio to the linear network's."""
    linear = network_cost(name, inputs=inputs)
    rows = []
    for row in (get_neuron(neuron.strip()) for neuron in neurons):
        own = (rank or row.default_rank) if row.has_rank else None
        report = linear
        if row.name != "linear":
            report = network_cost(name, row.name, own, first, inputs)
        compared = {"neuron": row.name, **report.compare(linear)}
        rows.append(compared | {"quadratic_share": report.quadratic_share, "rank": own})
    shapes = [list(shape) for shape in linear.input_shapes]
    return {"model": name, "input_shapes": shapes, "neurons": rows}


def comparison_table(result: dict[str, Any], markdown: bool = False) -> str:
    """Shows what `compare_neurons` gave as a table."""
    header = ["neuron", "rank", "params", "to linear", "MACs", "to linear", "quadratic"]
    rows = []
    for line in result["neurons"]:
        ratios = [f"{line[key]:.3f}" if line[key] else "" for key in ("params_ratio", "macs_ratio")]
        share = f"{line['quadratic_share']:.2%}" if line["quadratic_share"] else ""
        counts = [f"{line['params']:,}", ratios[0], f"{line['macs']:,}", ratios[1], share]
        rows.append([line["neuron"], line["rank"] or "", *counts])
    shapes = ", ".join("x".join(map(str, shape)) for shape in result["input_shapes"])
    table = (markdown_table if markdown else text_table)(header, rows, "lrrrrrr")
    return f"{result['model']}, input {shapes}" + ("\n\n" if markdown else "\n") + table
