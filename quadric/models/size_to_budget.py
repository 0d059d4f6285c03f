"""Fitting a network to a budget: the widest one whose parameters or MACs do not exceed it.

Neurons are compared at equal cost. A network of costlier neurons must then be narrower than its
linear baseline, one of cheaper neurons may be wider. All widths of a network are multiplied by one
factor; cost grows with it in steps, because widths are whole numbers, so the largest factor within
the budget is found by bisection. Networks are built on the meta device: nothing is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from quadric.counting.cost import cost as count
from quadric.errors import InputError
from quadric.models.building import create
from quadric.models.registry import build, checked_entry, example_inputs
from quadric.models.widths import scaled as rounded
from quadric.support.checks import check_size
from quadric.support.modules import count_parameters

# How close the bisection comes to the next step of the cost.
_RESOLUTION = 1e-4
# By how much the search for a factor that is too large goes up.
_STEP = 1.1
# The factor at which the search begins.
_NARROWEST = 1e-4


@dataclass(frozen=True)
class SizedNetwork:
    """The widest network within a budget.

    Attributes:
        name: the network's name.
        options: the arguments of `quadric.models.create` that build it: neuron, rank, widths and
            all else that was given.
        factor: the number that the widths were multiplied by.
        params: the network's parameters.
        macs: the multiply-accumulates for one input.
        budget: the limits that were given.
    """

    name: str
    options: Mapping[str, Any]
    factor: float
    params: int
    macs: int
    budget: Mapping[str, int]

    def create(self) -> nn.Module:
        """Builds the network."""
        return create(self.name, **self.options)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain values."""
        return asdict(self)


def fit(
    name: str,
    params: int | None = None,
    macs: int | None = None,
    neuron: str = "linear",
    rank: Any = None,
    **options: Any,
) -> SizedNetwork:
    """Finds the widest network whose cost does not exceed a budget.

    What is scaled is `width` (the residual networks and `digits_cnn`), `channels` where they are
    given, or `hidden` (`mlp`); the given or default values are those of factor 1.

    Args:
        name: one of `quadric.models.names()`.
        params: the most parameters it may have.
        macs: the most multiply-accumulates it may need for one input.
        neuron: a name of `quadric.neurons()`.
        rank: the neuron's rank; None for its default.
        **options: further options of `quadric.models.create`.

    Returns:
        The options that build the network, and its cost.

    Raises:
        InputError: if no budget is given, or no network fits it.

    Examples:
        >>> found = fit("mlp", params=1000, neuron="eigen", rank=3, in_features=4)
        >>> found.options["hidden"], found.params
        ((27, 27), 959)
    """
    budget = _budget(params, macs)
    given = checked_entry(name, {}).options
    scaled = _scaled_option(given, options)
    fixed = {"neuron": neuron, "rank": rank, **options}
    if neuron == "linear" and rank is None:
        del fixed["rank"]
    base = options.get(scaled, given[scaled])
    published = _published(name, options) if scaled == "width" else _given(scaled, base)
    known: dict[tuple[int, ...], dict[str, int]] = {}

    def value(factor: float) -> Any:
        return base * factor if scaled == "width" else rounded(published, factor)

    def key(factor: float) -> tuple[int, ...]:
        """Factors that round to the same widths build the same network."""
        return rounded(published, value(factor) if scaled == "width" else factor)

    def cost(factor: float) -> dict[str, int]:
        if key(factor) not in known:
            known[key(factor)] = _cost(name, {**fixed, scaled: value(factor)}, macs is not None)
        return known[key(factor)]

    def fits(factor: float) -> bool:
        try:
            have = cost(factor)
        except InputError:  # too narrow for the neuron
            return True
        return all(have[what] <= limit for what, limit in budget.items())

    # The cost grows about as the square of the widths. A mistake in the options shows here.
    start = math.sqrt(min(limit / max(1, cost(1.0)[what]) for what, limit in budget.items()))
    low, high = _NARROWEST, max(start, 2 * _NARROWEST)
    while fits(high):
        low, high = high, high * _STEP
    while high - low > _RESOLUTION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    narrowest = known.get(key(low)) or cost(high)  # at `low` the neuron may have no room
    for what, limit in budget.items():
        if narrowest[what] > limit:
            raise InputError(
                f"{what} must be at least {narrowest[what]:,}, the cost of {name!r} at its "
                f"narrowest, got {limit:,}: raise the budget or choose a smaller network"
            )
    factor = _shortest(low, lambda f: cost(f) == cost(low))
    sized = {**fixed, scaled: value(factor)}
    have = _cost(name, sized, True)
    return SizedNetwork(name, sized, factor, have["params"], have["macs"], budget)


def _budget(params: int | None, macs: int | None) -> dict[str, int]:
    budget = {k: v for k, v in (("params", params), ("macs", macs)) if v is not None}
    if not budget:
        raise InputError("a budget must be given, got none: give params=, macs= or both")
    for what, limit in budget.items():
        check_size(what, limit)
    return budget


def _scaled_option(known: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The option that makes a network wider."""
    if options.get("channels") is not None:
        return "channels"
    for option in ("width", "hidden"):
        if option in known:
            return option
    raise InputError(
        "a network must have one option for all its widths to be fitted, got one with "
        f"{', '.join(known)}: choose its widths yourself"
    )


def _given(option: str, widths: Any) -> tuple[int, ...]:
    if not widths:
        raise InputError(f"{option} must name widths to be scaled, got {widths!r}: give some")
    return tuple(widths)


def _published(name: str, options: Mapping[str, Any]) -> tuple[int, ...]:
    """The widths of a network's layers at width 1."""
    theirs = checked_entry(name, {}).options
    own = {k: v for k, v in options.items() if k in theirs and k != "width"}
    with torch.device("meta"):
        model = build(name, **own)
    return tuple(sorted({m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)}))


def _cost(name: str, options: dict[str, Any], count_macs: bool) -> dict[str, int]:
    with torch.device("meta"):
        model = create(name, **options)
    counts = {"params": count_parameters(model)}
    if count_macs:
        own = {k: v for k, v in options.items() if k in checked_entry(name, {}).options}
        examples = [x.to("meta") for x in example_inputs(name, **own)]
        counts["macs"] = count(model, *examples).macs
    return counts


def _shortest(factor: float, same: Callable[[float], bool]) -> float:
    """The factor with the fewest decimals that builds the same network."""
    for digits in range(1, 8):
        for step in (math.floor(factor * 10**digits), math.ceil(factor * 10**digits)):
            shorter: float = step / 10**digits
            if shorter > 0 and same(shorter):
                return shorter
    return factor
