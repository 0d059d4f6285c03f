"""Code of the user's own in a recipe: what it names, and whether it is still what it was.

A recipe names code in its fields `model`, `dataset`, `loss` and `code`, and by a neuron that is not
one of Quadric's. `checksums` of a resolved recipe holds the SHA-256 of every module's file: a run
is not continued with a file that has changed.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Container, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from quadric import user_code
from quadric.errors import InputError
from quadric.layers import neurons
from quadric.train.recipe import Recipe


def code_words(recipe: Recipe) -> list[str]:
    """The options of a command that name all code of a recipe."""
    return [word for name in _sources(recipe).values() for word in ("--code", name)]


def unnamed(recipe: Recipe, code: Sequence[str]) -> list[str]:
    """The code that a recipe names, and the user does not."""
    known = {user_code.module_name(name) for name in code}
    return [source for name, source in _sources(recipe).items() if name not in known]


def _sources(recipe: Recipe) -> dict[str, str]:
    """The files or modules that a recipe names, by the names they are imported by."""
    functions = [user_code.split(name, field)[0] for field, name in recipe.functions().items()]
    sources: dict[str, str] = {}
    for name in (*recipe.code, *functions, *recipe.checksums):
        sources.setdefault(user_code.module_name(name), name)
    return sources


def load_code(
    recipe: Recipe,
    code: Sequence[str],
    where: str | Path,
    *,
    functions: Sequence[str] = (),
    strict: bool = True,
) -> Recipe:
    """Imports the code that a recipe names, if this call names it, too.

    It does in `code`, or by `functions` of other modules. Where a file of the same name lies
    elsewhere today, the recipe names that one from then on.
    """
    missing = unnamed(recipe, [*code, *functions])
    if missing:
        words = shlex.join(word for name in missing for word in ("--code", name))
        raise InputError(
            f"{where} uses code of your own ({', '.join(missing)}): look at it, then name it in "
            f"this call, too: {words}, in Python code={missing}"
        )
    recipe = _at_home(recipe, code)
    modules: dict[str, ModuleType] = {}
    for name in recipe.code:
        module = user_code.load(name)
        modules[module.__name__] = module
    for field, name in recipe.functions().items():
        if not callable(function_of(recipe, field)):
            kind = type(function_of(recipe, field)).__name__
            raise InputError(f"{field} {name!r} must be a function, got {kind}: name one")
        module = sys.modules[user_code.module_name(user_code.split(name, field)[0])]
        modules[module.__name__] = module
    for name in recipe.checksums:
        if name not in modules:
            modules[name] = user_code.load(name)
    row = neurons().get(recipe.neuron)
    if row is not None and not row.__module__.startswith("quadric."):
        modules[row.__module__] = sys.modules[row.__module__]
    now = {name: user_code.checksum(module) for name, module in sorted(modules.items())}
    for name, before in recipe.checksums.items():
        if before and now[name] != before:
            text = (
                f"{modules[name].__file__} has changed since the run of {recipe.name} began (its "
                f"SHA-256 began with {before[:8]}, now with {now[name][:8]})"
            )
            if strict:
                raise InputError(f"{text}: restore it, or start another run")
            warnings.warn(text, stacklevel=3)
    return recipe.model_copy(update={"checksums": now | recipe.checksums})


def _at_home(recipe: Recipe, code: Sequence[str]) -> Recipe:
    """The recipe with the files that this call names, at the places it says."""
    functions = {user_code.split(name, field)[0] for field, name in recipe.functions().items()}
    named = [os.path.normpath(name) if name.endswith(".py") else name for name in code]
    # A module that only a function names stands in that function's name.
    named = [name for name in named if name.endswith(".py") or name not in functions]
    names = {user_code.module_name(name) for name in named}
    rest = [name for name in recipe.code if user_code.module_name(name) not in names]
    return recipe.model_copy(update={"code": [*rest, *named]})


def modules_of(recipe: Recipe, fields: Container[str]) -> list[str]:
    """The modules of the functions that some fields of a recipe name."""
    named = recipe.functions().items()
    return [user_code.split(name, field)[0] for field, name in named if field in fields]


def function_of(recipe: Recipe, field: str) -> Any:
    """The function that a field names."""
    name = recipe.functions()[field]
    source, attribute = user_code.split(name, field)
    module = user_code.module_name(source)
    if module in map(user_code.module_name, recipe.code):  # which says where it is today
        source = module
    return user_code.function(f"{source}:{attribute}", f"{field} {name!r}")
