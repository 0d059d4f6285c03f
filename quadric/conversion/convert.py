"""Turning an existing network into a quadratic one without losing what it has learned.

A layer of eigen neurons with eigenvalues zero is the linear layer. So a trained network converts
exactly: every linear map keeps its weight (the same parameter object), eigenvalues are added, and
fine-tuning grows the curvature. The order is: find, choose, check, build, swap. Everything that can
fail comes before the first change to the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from quadric.conversion.conversion_report import ConversionReport, Converted, Skipped
from quadric.conversion.planning import check_convertible
from quadric.conversion.polynomials import make_polynomial_
from quadric.conversion.pretrained import is_noted, note_layers
from quadric.conversion.selection import (
    Rank,
    Request,
    Selection,
    Trace,
    choose,
    trace,
)
from quadric.conversion.swapping import Swap, build
from quadric.conversion.targets import (
    Target,
    find_targets,
    run_examples,
)
from quadric.counting.cost import cost
from quadric.errors import InputError
from quadric.ops import native
from quadric.support.modules import count_parameters


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
    activations: str | None = None,
    **neuron_options: Any,
) -> ConversionReport:
    """Makes the linear layers of a model quadratic, in place.

    It converts nn.Linear, nn.Conv1d/2d/3d, transposed convolutions, transformers'
    Conv1D, nn.MultiheadAttention (as a whole) and the linear projections of our own attention.
    With `init="linear"` the model computes afterwards what it computed before, for every neuron
    that can represent a linear layer (all but kervolution and pure). An error leaves the model as
    it was. The first batch of training sets a scale at which the eigenvalues learn at the rate of
    the weights; see `quadric.calibrate_`. Make the optimizer, and wrap the model in DDP or FSDP,
    after the conversion: it adds parameters.

    Args:
        model: any module that is not itself a single layer.
        neuron: a name of `quadric.neurons()`.
        rank: the neuron's rank: a number, a mapping from layer names, or a callable of the name;
            None for its default.
        include: the layers to convert (default: all): a regular expression that must match the
            whole name, a list of exact names or suffixes, or a callable of (name, module).
        exclude: the layers to leave, in the same form. It wins over `include`.
        first: convert only this many layers, the first in the order of the forward pass if
            `example_inputs` are given, else in the order of registration. 1x1 convolutions on
            shortcuts do not count and stay.
        head: convert the head, too: the last linear layer if it makes the model's output (seen with
            `example_inputs`), is named fc, classifier, head, lm_head, score or output, is tied to
            an embedding, or ends a Sequential. Naming it in `include` converts it as well, except
            by the names that `quadric.sensitivity` gives.
        init: "linear", or "published" for the start of the neuron's authors, which draws new
            weights (except for eigen, whose authors do not mention weights: they stay).
        example_inputs: arguments of the model's forward: a tensor, a tuple or a mapping. Layers
            that they do not reach are left unless `include` names them.
        activations: "polynomial" puts polynomials of degree 2 in the places of ReLU, GELU and the
            like, and averages in the places of maxima, for networks under encryption; layers stay.
            `example_inputs` are then a batch of a few hundred inputs: each parabola is fitted to
            what its activation sees. The model computes something else afterwards: train it on.
        neuron_options: further options of the neuron.

    Returns:
        What was converted, what was left and why, parameters and MACs before and after.

    Raises:
        InputError: if no layer can be converted, or an argument has a value that does not fit.
        InputTypeError: if an argument has the wrong type.

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
    example_inputs = tuple(example_inputs) if type(example_inputs) is list else example_inputs
    request = Request(neuron, rank, include, exclude, first, head, init, neuron_options)
    if activations is not None:
        if activations != "polynomial":
            raise InputError(f'activations must be "polynomial", got {activations!r}: leave it out')
        check_convertible(model)
        return make_polynomial_(model, request, example_inputs)
    run = functools.partial(run_examples, model, example_inputs)
    swap, skipped, traced = plan_request(model, request, None if example_inputs is None else run)
    converted = tuple(_converted(target, new, request) for target, new in swap.built)
    params, (macs_before, _) = count_parameters(model), _macs(model, example_inputs)
    swap.do()
    swap.await_scales_()
    note_layers(model)
    macs_after, why = _macs(model, example_inputs)
    return ConversionReport(
        neuron,
        converted,
        tuple(skipped),
        params,
        count_parameters(model),
        macs_before,
        macs_after,
        tuple(_notes(model, request, swap, traced, why)),
    )


def _converted(target: Target, new: Any, request: Request) -> Converted:
    """What the report says of a layer."""
    before, after = count_parameters(target.module), count_parameters(new)
    kind, aliases = type(target.module).__name__, tuple(target.names[1:])
    lossless = request.lossless
    return Converted(target.name, kind, new.neuron, new.rank, before, after, lossless, aliases)


def _notes(
    model: nn.Module, request: Request, swap: Swap, traced: Trace | None, why: str
) -> Iterator[str]:
    """What else a user should know."""
    if not request.row.can_be_linear:
        yield (
            f"weights were re-initialized: a neuron of the kind {request.neuron} cannot represent "
            "a linear one"
        )
    elif not request.lossless:
        yield "the model was re-initialized, as asked by init"
    uncalled = traced.uncalled if traced is not None else ()
    names = [target.name for target, _ in swap.built if id(target.module) in uncalled]
    if names:
        yield (
            f"never called for the example inputs: {', '.join(names)}; if the model reads their "
            "weights itself, their squares have no effect: exclude them then"
        )
    if is_noted(model):
        yield (
            "save_pretrained keeps the curvature, and so does from_pretrained after "
            "quadric.use_transformers()"
        )
    elif hasattr(model, "save_pretrained"):
        yield (
            "from_pretrained would drop the added parameters: save with quadric.save, load with "
            "quadric.load_"
        )
    if why:
        yield f"the MACs could not be counted: {why}"
    offer = native.offer()
    kernels = [m for _, new in swap.built for m in new.modules() if getattr(m, "blocks", None)]
    on_cpu = [p for m in kernels for p in m.parameters() if p.device.type == "cpu"]
    if offer and any(p.dtype == torch.float32 for p in on_cpu):
        yield offer


def _macs(model: nn.Module, example_inputs: Any) -> tuple[int | None, str]:
    """The MACs for the example inputs, or why they could not be counted."""
    if example_inputs is None:
        return None, ""
    try:
        return cost(model, example_inputs).macs, ""
    except Exception as error:  # counting runs the user's own forward pass, on other tensors
        return None, f"{type(error).__name__}: {error}"


def plan_request(
    model: nn.Module, request: Request, run: Callable[[], Any] | None
) -> tuple[Swap, list[Skipped], Trace | None]:
    """Builds the layers that a request chooses; changes nothing."""
    check_convertible(model)
    request.check()
    targets = find_targets(model)
    traced = trace(model, targets, run) if run is not None else None
    chosen, skipped = choose(model, request, targets, traced)
    return build(model, [(t, request.options_of(t.names)) for t in chosen]), skipped, traced
