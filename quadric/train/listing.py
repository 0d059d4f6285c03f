"""The list of recipes that `quadric recipes` prints."""

from __future__ import annotations

from typing import Any

from quadric.support.texttable import text_table
from quadric.train import catalog


def facts(name: str | None = None) -> Any:
    """What is known of the recipes."""
    if name is not None:
        return catalog.load(name).model_dump()
    recipes = {name: catalog.load(name) for name in catalog.names()}
    return [
        {
            "name": name,
            "title": recipe.title,
            "reproduces": recipe.reproduces,
            "quick": catalog.has_quick(name),
            "command": catalog.first_line(name),
        }
        for name, recipe in recipes.items()
    ]


def table() -> str:
    """The recipes as a table, one line for each."""
    rows = [[recipe["name"], recipe["title"], recipe["reproduces"] or "-"] for recipe in facts()]
    closing = (
        "quadric recipes NAME shows a recipe, quadric train NAME trains it; --quick takes its "
        "variant of a few minutes, which is not the paper's."
    )
    return text_table(["recipe", "what it trains", "reproduces"], rows) + "\n\n" + closing


def text(name: str) -> str:
    """A recipe as it is written."""
    return catalog.text(name).rstrip()
