"""Code of the user's own in a recipe: when it may run, and whether it is still what it was.

A recipe names code in its fields `model`, `dataset`, `loss` and `imports`, and by a neuron that is
not one of Quadric's. Whoever writes such a recipe chooses what runs. So code runs only if the user
asks for it by this command:

- named on the command line, or in an argument of a function: it runs;
- named in a recipe file: it runs if no other user could have written that file;
- named in a run directory, which may come from anywhere: it does not run until the user names it
  once more (`--import`), or says `--trust`.

`parts` of the resolved recipe holds the checksum of every module's file. A run is not continued
with a file that has changed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quadric import parts
from quadric.errors import InputError
from quadric.layers import neurons
from quadric.train.recipe import Recipe


def modules(recipe: Recipe) -> list[str]:
    """The modules that a recipe names, under the names they are imported by."""
    return list(_sources(recipe))


def import_words(recipe: Recipe) -> list[str]:
    """The options of a command that name all code of a recipe, so that it may run."""
    return [word for name in _sources(recipe).values() for word in ("--import", name)]


def _sources(recipe: Recipe) -> dict[str, str]:
    """The files or modules that a recipe names, by the names they are imported by."""
    functions = [parts.split(name, field)[0] for field, name in recipe.functions().items()]
    found: dict[str, str] = {}
    for name in (*recipe.imports, *functions, *recipe.parts):
        found.setdefault(parts.module_name(name), name)
    return found


def with_imports(recipe: Recipe, given: Sequence[str]) -> Recipe:
    """A recipe that also imports what the user names; a module's new place replaces its old one."""
    given = [os.path.normpath(name) if name.endswith(".py") else name for name in given]
    names = {parts.module_name(name) for name in given}
    rest = [name for name in recipe.imports if parts.module_name(name) not in names]
    return recipe.model_copy(update={"imports": [*rest, *given]})


def unnamed(recipe: Recipe, given: Sequence[str]) -> list[str]:
    """The modules that a recipe names, and the user does not."""
    known = {parts.module_name(name) for name in given}
    return [name for name in modules(recipe) if name not in known]


def check_consent(recipe: Recipe, given: Sequence[str], where: str | Path) -> None:
    """Refuses the code that a run directory names, unless the user names it too."""
    unknown = unnamed(recipe, given)
    if unknown:
        raise InputError(
            f"{where} names code that would be run ({', '.join(unknown)}): look at it, then allow "
            "it with --trust, or name its files with --import"
        )


def load_code(recipe: Recipe, *, trust: bool = False, strict: bool = True) -> Recipe:
    """Imports the code that a recipe names."""
    found: dict[str, Any] = {}
    for name in recipe.imports:
        module = parts.load(name, f"--import {name}", trust)
        found[module.__name__] = module
    for field, name in recipe.functions().items():
        function = function_of(recipe, field, trust)
        if not callable(function):
            kind = type(function).__name__
            raise InputError(f"{field} {name!r} must be a function, got {kind}: name one")
        module = sys.modules[parts.module_name(parts.split(name, field)[0])]
        found[module.__name__] = module
    for name in recipe.parts:
        if name not in found:
            found[name] = parts.load(name, "this run", trust)
    row = neurons().get(recipe.neuron)
    if row is not None and not row.rule.__module__.startswith("quadric."):
        found[row.rule.__module__] = sys.modules[row.rule.__module__]
    now = {name: parts.checksum(module) for name, module in sorted(found.items())}
    for name, before in recipe.parts.items():
        if before and now[name] != before:
            text = (
                f"{found[name].__file__} has changed since the run of {recipe.name} began (its "
                f"SHA-256 began with {before[:8]}, now with {now[name][:8]})"
            )
            if strict:
                raise InputError(f"{text}: restore it, or start another run")
            warnings.warn(text, stacklevel=3)
    return recipe.model_copy(update={"parts": now | recipe.parts})


def function_of(recipe: Recipe, field: str, trust: bool = True) -> Any:
    """The function that a field names."""
    name = recipe.functions()[field]
    source, attribute = parts.split(name, field)
    module = parts.module_name(source)
    if module in map(parts.module_name, recipe.imports):  # which says where it is today
        source = module
    return parts.find(f"{source}:{attribute}", f"{field} {name!r}", trust)


def name_of(function: Any, field: str) -> Any:
    """The name by which a recipe can keep a function; what is no function stays as it is."""
    if not callable(function):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is None or not name or "<" in name:
        raise InputError(
            f"{field} must be a function that has a name in its module, got {function!r}: define "
            "it at the top of a module, a script or a notebook"
        )
    return f"{module}:{name}"
