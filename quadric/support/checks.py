"""The guards that many arguments need."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

from quadric.errors import InputError, InputTypeError


def check_size(name: str, value: int) -> int:
    """Returns a whole number >= 1; refuses all else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputTypeError(
            f"{name} must be an integer >= 1, got {value!r} of type {type(value).__name__}: give "
            "a whole number"
        )
    if value < 1:
        raise InputError(f"{name} must be >= 1, got {value}: give a positive number")
    if value > sys.maxsize:
        raise InputError(f"{name} must be a number of 64 bits, got a larger one: make it smaller")
    return value


LONGEST_NAME = 120
"""Characters; with what we add to a name it stays within what file systems take."""


def check_name(what: str, name: str) -> str:
    """Returns a name that a file or folder may be given; refuses all else.

    No other text becomes a part of a path, or goes through `file_name` first.
    """
    fine = name.isprintable() and 0 < len(name) <= LONGEST_NAME
    if not fine or name.strip() != name or name[0] == "." or set(name) & set('/\\:*?"<>|'):
        shown = name if len(name) <= LONGEST_NAME else f"{name[:20]}… of {len(name):,} characters"
        raise InputError(
            f"{what} must be fit for a folder, at most {LONGEST_NAME} characters without '/', got "
            f"{shown!r}: choose another name"
        )
    return name


def file_name(text: str) -> str:
    """A text as the name of a file, as far as it may be one.

    Examples:
        >>> file_name("../my table"), file_name("..")
        ('_my_table', 'unnamed')
    """
    return re.sub(r"[^\w.-]+", "_", text).lstrip(".")[:LONGEST_NAME] or "unnamed"


def nearest(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """The names that a misspelled one may mean; looking at a very long one would take minutes."""
    return difflib.get_close_matches(name[:LONGEST_NAME], list(names), n=count)
