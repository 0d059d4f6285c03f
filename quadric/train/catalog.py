"""The recipes that ship with the package, found by name, and recipes from a user's own files.

A file holds the fields of `Recipe` (its name is the file's), and may hold two more keys: `base`,
the name of a recipe whose fields it starts from, and `quick`, fields of the variant `<name>-quick`
that finishes in minutes. A data set that ends in `*` makes the file a family: `law.yaml` with
`dataset: "law:*"` is the recipe `law-<name>` for every law.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from quadric.errors import InputError
from quadric.support.assignments import split_assignment
from quadric.support.checks import nearest
from quadric.support.texttable import text_table
from quadric.train.recipe import Recipe, make_recipe

QUICK = "-quick"
NOT_THE_PAPERS = "quick variant, not the paper's settings"


class _Loader(yaml.SafeLoader):
    """YAML whose numbers may be written 1e-4, as in YAML 1.2; in 1.1 that is a text."""


_Loader.yaml_implicit_resolvers = {
    key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)$"),
    list("-+0123456789."),
)


def parse(text: str, where: str) -> Any:
    """Reads YAML."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError:
        raise InputError(f"{where} is nested too deeply: a recipe is a flat list") from None
    except (yaml.YAMLError, ValueError) as error:  # such as the date 2024-99-99
        raise InputError(f"{where} is not YAML: {' '.join(str(error).split())}") from None


def read(path: Path) -> str:
    """The text of a recipe file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text in UTF-8: restore it, or write it anew") from None


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Fields as `field=value`, the value as in a recipe."""
    pairs = [split_assignment(text, "lr=0.05") for text in texts]
    return {field: parse(value, f"the value of {field!r}") for field, value in pairs}


def names() -> list[str]:
    """Lists the recipes, without their quick variants."""
    listed: list[str] = []
    for name, text in _files().items():
        family = str(text.get("dataset", ""))
        if family.endswith(":*"):
            listed += [f"{name}-{member}" for member in _members(family)]
        else:
            listed.append(name)
    return listed


def load(name: str, quick: bool = False) -> Recipe:
    """Loads a recipe."""
    if name.endswith(QUICK) and not is_path(name) and name not in names():
        name, quick = name.removesuffix(QUICK), True
    values = _values(name)
    fast = values.pop("quick", None)
    title = Path(name).stem if is_path(name) else name
    where = f"recipe {title}"
    if not quick:
        return make_recipe({"name": title, **values}, where)
    if not fast:
        raise InputError(f"{where} has no quick variant: leave --quick out, or choose --epochs")
    if not isinstance(fast, dict):
        raise InputError(f"{where}: quick must be a mapping of fields, got {fast!r}")
    values["title"] = f"{values.get('title', '')} ({NOT_THE_PAPERS})"
    values["reproduces"] = ""
    recipe = make_recipe({"name": title + QUICK, **values}, where)
    return recipe.with_overrides(fast)


def facts(name: str | None = None) -> Any:
    """What is known of a recipe, or of all of them."""
    if name is not None:
        return load(name).model_dump()
    return [
        {
            "name": name,
            "title": recipe.title,
            "reproduces": recipe.reproduces,
            "quick": bool(_values(name).get("quick")),
            "command": _first_line(name),
        }
        for name, recipe in ((name, load(name)) for name in names())
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
    """A recipe's file as it is, or the resolved quick variant or member of a family."""
    if is_path(name):
        return read(Path(name))
    if name in _files():
        return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    recipe = load(name)
    return recipe.to_yaml(f"quadric train {name}")


def _first_line(name: str) -> str:
    """The command in the first line of a recipe's file."""
    if name not in _files():
        return f"quadric train {name}"
    return text(name).partition("\n")[0].removeprefix("#").strip()


def is_path(name: str) -> bool:
    """Whether a name is a file rather than a recipe that ships."""
    return name.endswith((".yaml", ".yml"))


def _folder() -> Any:
    return resources.files("quadric") / "recipes"


@lru_cache(maxsize=1)
def _files() -> dict[str, dict[str, Any]]:
    """The raw values of each file that ships, by name."""
    files = {}
    for path in sorted(_folder().iterdir(), key=lambda path: _by_number(path.name[:-5])):
        if path.name.endswith(".yaml"):
            where = f"recipe file {path.name}"
            files[path.name.removesuffix(".yaml")] = _mapping(
                parse(path.read_text(encoding="utf-8"), where), where
            )
    return files


def _by_number(name: str) -> list[Any]:
    """resnet20 before resnet110."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _mapping(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{where} must hold a mapping of fields, got {type(values).__name__}")
    return values


def _members(family: str) -> Iterator[str]:
    from quadric.data import laws, uci

    kinds = {"law": laws.names, "uci": uci.names}
    yield from kinds[family.partition(":")[0]]()


def _values(name: str) -> dict[str, Any]:
    """The fields of a file, those of its base below them."""
    if is_path(name):
        values = dict(_mapping(parse(read(Path(name)), name), name))
    else:
        values = dict(_found(name))
    base = values.pop("base", None)
    if base is None:
        return values
    below = _values(str(base))
    # A multiplier of channels replaces the base's numbers, and the other way round.
    if values.get("channels") is not None:
        below.pop("width", None)
    if values.get("width") is not None:
        below.pop("channels", None)
    if isinstance(values.get("quick"), dict):
        values["quick"] = (below.get("quick") or {}) | values["quick"]
    return below | values


def _found(name: str) -> dict[str, Any]:
    files = _files()
    if name in files and not str(files[name].get("dataset", "")).endswith(":*"):
        return files[name]
    for family, values in files.items():
        dataset = str(values.get("dataset", ""))
        member = name.removeprefix(f"{family}-")
        if dataset.endswith(":*") and member != name:
            # Any table of a folder is a member of uci; a law is one of ours.
            if dataset == "uci:*" or member in _members(dataset):
                title = str(values.get("title", "")).replace("*", member)
                return values | {"dataset": dataset.replace("*", member), "title": title}
    near = nearest(name, names(), 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`quadric recipes` lists them"
    raise InputError(f"unknown recipe {name!r}: {hint}")
