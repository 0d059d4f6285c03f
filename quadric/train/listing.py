"""The list of recipes that `quadric recipes` prints."""

from __future__ import annotations

from typing import Any

from quadric.texttable import text_table
from quadric.train import catalog


def facts(name: str | None = None) -> Any:
    """What is known of every recipe, or all fields of one."""
    if name is not None:
        return catalog.load(name).model_dump()
    return [
        {
            "name": recipe,
            "title": catalog.load(recipe).title,
            "reproduces": catalog.load(recipe).reproduces,
            "quick": catalog.has_quick(recipe),
            "command": catalog.first_line(recipe),
        }
        for recipe in catalog.names()
    ]


def table() -> str:
    """One line a recipe."""
    rows = [[recipe["name"], recipe["title"], recipe["reproduces"] or "-"] for recipe in facts()]
    closing = (
        "quadric recipes NAME shows a recipe, quadric train NAME trains it; --quick takes its "
        "variant of a few minutes, which is not the paper's."
    )
    return text_table(["recipe", "what it trains", "reproduces"], rows) + "\n\n" + closing


def text(name: str) -> str:
    """A recipe as it is written."""
    return catalog.text(name).rstrip()
