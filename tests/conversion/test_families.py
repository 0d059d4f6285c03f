"""Every cell of the table of families in docs/families.md, run again."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from tests.conversion.cells import CELLS, run
from tests.conversion.families import FAMILIES, HUGGING_FACE

RECORDED = json.loads(
    (Path(__file__).parents[2] / "results" / "families.json").read_text(encoding="utf-8")
)


def test_the_table_has_every_family_and_every_cell() -> None:
    assert len(FAMILIES) == 20
    assert list(RECORDED["families"]) == list(FAMILIES)
    assert all(list(row) == list(CELLS) for row in RECORDED["families"].values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries whose models these are
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str) -> None:
    if name in HUGGING_FACE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("transformers", reason="needs the Hugging Face extras")
    assert {column: run(name, column) for column in CELLS} == RECORDED["families"][name]
