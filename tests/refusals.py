"""Bad input as a table: the call, the error, the words of its message.

@refusals(
    (lambda: quadric.decompose(torch.ones(2), 1), ValueError, "square matrix"),
    ...
)
def test_refusals(check: Check) -> None:
    check()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Check = Callable[[], None]


def refusals(*rows: tuple[Callable[[], Any], type[BaseException], str]) -> Any:
    """Parametrizes a test by checks, one a row: the call must raise the error with these words."""

    def checked(call: Callable[[], Any], error: type[BaseException], words: str) -> Check:
        def check() -> None:
            with pytest.raises(error, match=words):
                call()

        return check

    ids = [f"{number}-{words[:40]}" for number, (_, _, words) in enumerate(rows)]
    return pytest.mark.parametrize("check", [checked(*row) for row in rows], ids=ids)
