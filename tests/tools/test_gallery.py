"""The pictures of the gallery say what the results say."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    load_tool("evidence_functions", monkeypatch)
    return load_tool("gallery", monkeypatch)


def test_intervals_that_miss_are_counted(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tables: one holds, one misses, and one is of another form."""
    law: dict[str, Any] = {"readings": [[5, 0.2, 9.0], [9, 0.5, 20.0]], "seconds": 3.0}
    far = {"v": [2.0, 0.1], "v**2/mu": [0.051, 0.001]}
    near = {"v": [1.1, 0.1], "v**2/mu": [0.051, 0.001]}
    laws = [{**law, "terms": terms} for terms in (far, near, {"v": [1.2, 0.1]})]
    monkeypatch.setattr(tool, "read_piece", lambda path: {"laws": laws})
    figure = tool.draw_formula()
    titles = [axes.get_title() for axes in figure.axes]
    assert any(title.startswith("1 of 2 hold\nthe true 1.2") for title in titles)
    assert any(title.startswith("2 of 2 hold\nthe true 0.05097") for title in titles)
    assert "found in 2 of 3 such tables, in at most 3 s" in figure.get_suptitle()


def test_functions_are_those_that_the_other_fitted(tool: ModuleType) -> None:
    fits = tool.read_piece(tool.RESULTS / "functions.json")["fits"]
    names = {fit["function"] for fit in fits if fit["model"] == "pykan" and fit["seed"] == 0}
    labels = [label.get_text() for label in tool.draw_kan().axes[0].get_yticklabels()]
    assert {label.removeprefix("Feynman ") for label in labels} == names


def test_the_highest_score_is_the_digit(tool: ModuleType) -> None:
    digit = tool.read_piece(tool.RESULTS / "gallery.json")["digit"]
    bars = tool.draw_digit().axes[2].patches
    marked = [bar.get_facecolor() for bar in bars].index(max(bar.get_facecolor() for bar in bars))
    assert marked == digit["label"]
