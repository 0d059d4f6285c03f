"""Choosing layers by name: the include, exclude and rank arguments of the converter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from quadric.errors import InputError, InputTypeError

Selection = str | Sequence[str] | Callable[[str, nn.Module], bool]
Rank = int | Mapping[str, int] | Callable[..., int | None]


class ExactNames(list[str]):
    """A list of layer names that are meant exactly, never as suffixes.

    In an ordinary list `conv1` also means `layer1.0.conv1`; names that were read off a model must
    not.
    """


class Selector:
    """A compiled `include` or `exclude`.

    A string is a regular expression that must match the whole name, a list holds exact names or
    suffixes (after a dot), a callable gets the name and the module.
    """

    def __init__(self, argument: str, selection: Selection) -> None:
        self.argument = argument
        self.selection = selection
        self._exact = isinstance(selection, ExactNames)
        self._pattern: re.Pattern[str] | None = None
        if isinstance(selection, str):
            try:
                self._pattern = re.compile(selection)
            except re.error as error:
                raise InputError(
                    f"{argument} must be a valid regular expression, got {selection!r} ({error}): "
                    "mend it, or give a list of names"
                ) from None
        elif not callable(selection):
            if not isinstance(selection, Iterable):
                raise InputTypeError(
                    f"{argument} must be a regular expression, a list of names or a callable, got "
                    f"{type(selection).__name__}: give one of these"
                )
            self.selection = list(selection)
            for entry in self.selection:
                if not isinstance(entry, str):
                    raise InputTypeError(
                        f"{argument} must be a list of names, got the entry {entry!r} of type "
                        f"{type(entry).__name__}: give strings"
                    )
        self._used: set[str] = set()

    def matches(self, names: Sequence[str], module: nn.Module) -> bool:
        """Whether a layer known under these names is chosen."""
        if self._pattern is not None:
            hit = any(self._pattern.fullmatch(name) for name in names)
            self._used.update([self._pattern.pattern] if hit else [])
            return hit
        if callable(self.selection):
            hit = any(self.selection(name, module) for name in names)
            self._used.update(["callable"] if hit else [])
            return hit
        found = [entry for entry in self.selection if any(self._means(entry, n) for n in names)]
        self._used.update(found)
        return bool(found)

    def _means(self, entry: str, name: str) -> bool:
        return name == entry or (not self._exact and name.endswith("." + entry))

    def unused(self) -> list[str]:
        """What chose nothing: entries of a list, or the expression or callable as a whole."""
        if self._pattern is not None:
            return [] if self._used else [self._pattern.pattern]
        if callable(self.selection):
            return [] if self._used else [getattr(self.selection, "__name__", "callable")]
        return [entry for entry in self.selection if entry not in self._used]


def check_rank_argument(rank: Any) -> None:
    """Raises unless `rank` is None, a number, a mapping or a callable."""
    if rank is None or isinstance(rank, (int, Mapping)) or callable(rank):
        return
    raise InputTypeError(
        "rank must be an integer, a mapping from layer names, or a callable of the name, got "
        f"{rank!r} of type {type(rank).__name__}: give one of these"
    )


def rank_of(rank: Rank | None, names: Sequence[str]) -> int | None:
    """The rank of the layer known under these names; None for the neuron's default."""
    if isinstance(rank, Mapping):
        return next((rank[name] for name in names if name in rank), None)
    if callable(rank):
        return rank(names[0])
    return rank


def check_mapping(rank: Rank | None, names: Iterable[str]) -> None:
    """Raises if a rank mapping names a layer that is not there."""
    if isinstance(rank, Mapping):
        known = list(names)
        for name in rank:
            if name not in known:
                raise InputError(
                    f"rank must name layers that can be converted, got {name!r}; they are: "
                    f"{', '.join(known) or 'none'}"
                )
