"""Parts of a user's own, named as text: `package.module`, `file.py`, or either with `:function`.

Naming a part runs its code, so a name is only ever followed because the user gave it. Installed
packages come first, then the current folder. A file there, or one named by its path, is not run if
another user could have written it: it and all folders above it must belong to this user (or to
root) and be closed to others.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import operator
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from quadric.errors import InputError
from quadric.ownership import open_to_others


def split(name: str, what: str) -> tuple[str, str]:
    """The module and the attribute of `package.module:function`."""
    module, _, attribute = name.rpartition(":")
    relative = module.startswith(".") and not module.endswith(".py")
    if not module or relative or not attribute:
        raise InputError(
            f"{what} must be named as package.module:function, got {name!r}: give both parts"
        )
    return module, attribute


def module_name(name: str) -> str:
    """The name under which a module, or a file, is imported."""
    return Path(name).stem if name.endswith(".py") else name


def find(name: str, what: str, trust: bool | None = None) -> Any:
    """Imports `package.module:function`."""
    module, attribute = split(name, what)
    found = load(module, what, trust)
    try:
        return operator.attrgetter(attribute)(found)
    except AttributeError:
        where = getattr(found, "__file__", None)
        raise InputError(
            f"the module {module!r} must have {attribute!r} for {what}, and has not: name a "
            f"function that it defines{f' (it is {where})' if where else ''}"
        ) from None


def load(name: str, what: str = "a part", trust: bool | None = None) -> ModuleType:
    """Imports a module, or a file."""
    if name.endswith(".py"):
        return _load_file(Path(name), what, trust)
    if name in sys.modules:
        return sys.modules[name]
    found = _import(name)
    if found is None:
        folder, top = Path.cwd(), name.partition(".")[0]
        file, package = folder / f"{top}.py", folder / top
        if (file.is_file() or package.is_dir()) and str(folder) not in sys.path:
            if not trust:
                refuse_foreign(file if file.is_file() else package, trust is not None)
            # Behind all others: a file here never stands in for an installed package.
            sys.path.append(str(folder))
            found = _import(name)
    if found is None:
        raise InputError(
            f"the module {name!r} of {what} must be importable, and is not: run the command in "
            "its folder, install it, or name its file"
        )
    return found


def _import(name: str) -> ModuleType | None:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there, and one that it needs is not
        return None


def _load_file(path: Path, what: str, trust: bool | None) -> ModuleType:
    path = path.expanduser().resolve()
    name = path.stem
    if not path.is_file():
        raise InputError(f"there is no file {path} for {what}: name one that is there")
    if not name.isidentifier():
        raise InputError(f"{path} cannot be imported for {what}: rename it to a Python name")
    known = sys.modules.get(name)
    if known is not None:
        file = getattr(known, "__file__", None)
        if file is None or Path(file).resolve() != path:
            raise InputError(
                f"{path} cannot be imported for {what}, another module is called {name!r} "
                f"({file or 'built in'}): rename the file"
            )
        return known
    if not trust:
        refuse_foreign(path, trust is not None)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported for {what}: name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # what it imports may lie beside it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def checksum(module: ModuleType) -> str:
    """The SHA-256 of a module's file; empty for one without, as a notebook is."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def refuse_foreign(path: Path, trustable: bool = True) -> None:
    """Refuses a file, or a folder, that another user could have written."""
    real, folder = (Path(os.path.realpath(each)) for each in (path, path.absolute().parent))
    near = dict.fromkeys((real, real.parent, folder))
    above = dict.fromkeys(each for one in near for each in one.parents if each not in near)
    reasons = [*map(open_to_others, near), *(open_to_others(each, sticky=True) for each in above)]
    reason = next(filter(None, reasons), None)
    if reason is not None:
        raise InputError(
            f"{path} names code that would be run, and {reason}: copy it to a folder of your own"
            + (", or allow it with --trust" if trustable else "")
        )
