"""Names that become paths."""

from __future__ import annotations

import time

import pytest

from quadric.errors import InputError
from quadric.support.checks import LONGEST_NAME, check_name, file_name, nearest

BAD = (
    "",
    ".",
    "..",
    "../x",
    "/x",
    "a/b",
    "a\\b",
    "a\0",
    "a\n",
    " a",
    ".git",
    "\udc80",
    "a:b",
    "a" * 10**5,
)


@pytest.mark.parametrize("name", BAD, ids=range(len(BAD)))
def test_no_name_leads_out_of_its_folder(name: str) -> None:
    with pytest.raises(InputError, match="the name must be fit for a folder") as caught:
        check_name("the name", name)
    assert len(str(caught.value)) < 300
    safe = file_name(name)
    assert check_name("the name", safe) == safe


@pytest.mark.parametrize("name", ["law-lorentz", "Größe 2", "a.b", "x" * LONGEST_NAME])
def test_other_names_stay(name: str) -> None:
    assert check_name("the name", name) == name


def test_a_long_name_is_looked_up_at_once() -> None:
    start = time.monotonic()
    nearest("ab" * 50_000, ["abab" * 5] * 100)
    assert time.monotonic() - start < 2
