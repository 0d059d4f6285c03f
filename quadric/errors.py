"""The errors that a user can cause.

Each class is also one of Python's own, so that `except ValueError` still catches it. The command
line shows any `QuadricError` as one line and exits with code 2; every other exception is a bug and
keeps its traceback. A message has the rule, the value got, the remedy, and which layer or file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class QuadricError(Exception):
    """A mistake of the user's, with a message that says what to do."""


class InputError(QuadricError, ValueError):
    """An argument, option or file has a value that does not fit."""


class InputTypeError(QuadricError, TypeError):
    """An argument has the wrong type."""


class MissingExtraError(QuadricError, ImportError):
    """An optional dependency is not installed."""


class FileError(QuadricError, OSError):
    """A file or folder cannot be read or written."""


class DroppedColumnWarning(UserWarning):
    """A column of a frame from which nothing can be learned."""


def in_one_line(error: BaseException) -> str:
    """The class and message of an error that is not ours, shortened."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) < 300 else text[:300] + '…'}"


@contextlib.contextmanager
def explained(rule: str, remedy: str, alone: bool = False) -> Iterator[None]:
    """A context in which whatever goes wrong in foreign code is a mistake of the user's."""
    try:
        yield
    except Exception as error:
        cause = None if alone else error
        raise InputError(f"{rule}, got {in_one_line(error)}: {remedy}") from cause


@contextlib.contextmanager
def described(what: str, remedy: str = "save it again") -> Iterator[None]:
    """A context in which a file says how something is rebuilt; its values may raise anything."""
    try:
        yield
    except MissingExtraError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, QuadricError) else in_one_line(error)
        if isinstance(error, KeyError):
            reason = f"it lacks {error}"
        raise InputError(f"{what} ({reason}): {remedy}") from None
