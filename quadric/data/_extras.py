"""Imports of optional packages, with the one line that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, purpose: str, extra: str = "train") -> Any:
    """Imports an optional module.

    Args:
        module: its name.
        purpose: what needs it, the subject of the error message.
        extra: the extra of this package that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks one of its own parts is another mistake: say it as it is.
        if error.name != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs {error.name}: pip install 'quadric[{extra}]'", name=error.name
        ) from None
