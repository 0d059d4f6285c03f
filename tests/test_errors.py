"""The classes of errors, and that the library uses no others for a user's mistakes."""

from __future__ import annotations

import ast
import builtins
import errno
import sys
from pathlib import Path

import pytest
from torch import nn

import quadric
from quadric.errors import (
    FileError,
    InputError,
    InputTypeError,
    MissingExtraError,
    QuadricError,
)
from quadric.support.extras import load_extra, require

PACKAGE = Path(quadric.__file__).parent

# A mistake has a class of quadric/errors.py. What else may be raised, and where:
ALLOWED = {
    "NotImplementedError": ("",),  # methods that a subclass must have
    "AttributeError": (
        "__init__.py",
        "sklearn.py",
        "train/__init__.py",
        "solve/jets.py",
    ),  # __getattr__
    "KeyboardInterrupt": ("train/", "tables/many.py"),  # Ctrl-C, passed on
    "SystemExit": ("cli/__init__.py",),  # after Ctrl-C
    # As torch itself for a wrong use of autograd; what native.py raises, use_kernels() catches.
    "RuntimeError": ("ops/",),
    # Caught in the same file.
    "ValueError": ("data/uci.py",),
    "TypeError": ("saving.py",),
}


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (InputError, ValueError),
        (InputTypeError, TypeError),
        (MissingExtraError, ImportError),
        (FileError, OSError),
    ],
)
def test_a_mistake_is_one_of_pythons_own_errors_too(
    error: type[Exception], base: type[Exception]
) -> None:
    assert issubclass(error, QuadricError)
    assert issubclass(error, base)


def foreign_raises(package: Path) -> list[str]:
    """Where Python's own errors are raised that `ALLOWED` does not name."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and node.exc is not None:
                error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                word = ast.unparse(error)
                allowed = word in ALLOWED and name.startswith(ALLOWED[word])
                if hasattr(builtins, word) and not allowed:
                    found.append(f"quadric/{name}:{node.lineno} raises {word}")
    return found


def test_mistakes_have_classes_of_their_own() -> None:
    assert not foreign_raises(PACKAGE)


def test_errors_as_users_meet_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank must be >= 1, got 0"):
        quadric.QuadraticLinear(2, 3, rank=0)
    with pytest.raises(InputTypeError, match="model must be"):
        quadric.convert_(3)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="must exist") as caught:
        quadric.save(nn.Linear(2, 3), tmp_path / "none" / "model.safetensors")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "none")


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("plots", "a picture")
    assert load_extra("json", "a test").__name__ == "json"
    # None is how Python itself marks a module that must not be found.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"a picture needs .*pip install 'quadric\[plots\]"):
        require("plots", "a picture")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"a download needs the extra 'train': "):
        load_extra("pooch", "a download")


def test_a_package_that_lacks_a_part_of_its_own_is_not_a_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_a_package.py").write_text("import the_other_half\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="the_other_half") as caught:
        load_extra("half_a_package", "a test")
    assert not isinstance(caught.value, QuadricError)
