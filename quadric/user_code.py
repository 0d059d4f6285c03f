"""Code of a user's own, named as text: `package.module`, `file.py`, or either with `:function`.

Naming code runs it, so it is run only when the very call that needs it names it (`--code`,
`code=`, or a function in an option): never because a file that is read says so. Installed packages
come first, then the current folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from quadric.errors import InputError


def listed(code: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """One name or several, as a list."""
    several = [code] if isinstance(code, str | os.PathLike) else code
    return [os.fspath(name) for name in several]


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


def function(name: str, what: str) -> Any:
    """What `package.module:function` names; its module is imported."""
    source, attribute = split(name, what)
    module = load(source, what)
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        where = getattr(module, "__file__", None)
        raise InputError(
            f"the module {source!r} must have {attribute!r} for {what}, and has not: name a "
            f"function that it defines{f' (it is {where})' if where else ''}"
        ) from None


def load(name: str, what: str | None = None) -> ModuleType:
    """Imports a module, or a file."""
    what = what or f"--code {name}"
    if name.endswith(".py"):
        return _load_file(Path(name), what)
    if name in sys.modules:
        return sys.modules[name]
    module = _import(name)
    folder, top = Path.cwd(), name.partition(".")[0]
    is_here = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
    if module is None and is_here and str(folder) not in sys.path:
        # Behind all others: a file here never stands in for an installed package.
        sys.path.append(str(folder))
        module = _import(name)
    if module is None:
        raise InputError(
            f"the module {name!r} of {what} must be importable, and is not: run the command in "
            "its folder, install it, or name its file"
        )
    return module


def _import(name: str) -> ModuleType | None:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there, and one that it needs is not
        return None


def _load_file(path: Path, what: str) -> ModuleType:
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
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # as the name ends in .py
    assert spec.loader is not None
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


def name_of(value: Any, field: str) -> Any:
    """The name of a function, by which it is imported; what is no function stays as it is."""
    if not callable(value):
        return value
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module is None or not name or "<" in name:
        raise InputError(
            f"{field} must be a function that has a name in its module, got {value!r}: define "
            "it at the top of a module, a script or a notebook"
        )
    return f"{module}:{name}"
