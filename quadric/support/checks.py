"""The guard that many arguments need."""

from __future__ import annotations

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
    return value
