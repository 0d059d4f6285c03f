"""Values that a command line gives by name: `--set name=value`."""

from __future__ import annotations

from quadric.errors import InputError


def split_assignment(text: str, example: str) -> tuple[str, str]:
    """The name and the value in `name=value`, both as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value:
        raise InputError(f"--set must be name=value, got {text!r}: such as --set {example}")
    return name.strip(), value
