"""Tables of the evidence: what is read between measured points, and what is called clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.loading import load_tool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("runs", "laws", "tables"):
        load_tool("evidence_" + name, monkeypatch)
    load_tool("results_summary", monkeypatch)
    return load_tool("tables_of_evidence", monkeypatch)


def test_parameters_are_read_between_the_points(tool: Any) -> None:
    curve = [(100, 0.8), (400, 0.2), (1600, 0.3), (6400, 0.05)]
    assert tool.parameters_for(curve, 0.9) == 100  # the smallest one is good enough
    assert tool.parameters_for(curve, 0.4) == pytest.approx(200)  # half the way, in logarithms
    assert tool.parameters_for(curve, 0.1) == pytest.approx(1600)  # from 400, past the bad one
    assert tool.parameters_for(curve, 0.01) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "**−5.0 (−7.0 … −2.9)**"),
        ({"is_clear": False}, "−5.0 (−7.0 … −2.9)"),
        ({"low": None, "high": None, "is_clear": False}, "−5.0"),
        ({"difference": None}, ""),
    ],
)
def test_what_is_clear_is_bold(tool: Any, change: dict[str, Any], text: str) -> None:
    row = {"difference": -5.04, "low": -7.0, "high": -2.9, "is_clear": True}
    assert tool.changed(row | change) == text


def test_a_part_without_runs_says_so(tool: Any, tmp_path: Path) -> None:
    assert tool.runs_table("images", 100, ".2f")(tmp_path).startswith("No run is published yet")


def test_a_network_stands_beside_the_linear_one_that_is_as_good(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def row(arm: str, params: int, mean: float) -> dict[str, Any]:
        empty = dict.fromkeys(("std", "difference", "low", "high", "quadratic_share"))
        known = {"arm": arm, "params": params, "macs": 1, "mean": mean, "seeds": 3}
        return {**known, **empty, "is_clear": arm != "linear"}

    found = {
        "images/w8": {
            "linear": row("linear", 100, 0.6),
            "shared": row("shared", 110, 0.7),
            "quadralib": row("quadralib", 100, 0.5) | {"diverged": 1},
        },
        "images/r8": {"linear": row("linear", 400, 0.8), "eigen": row("eigen", 410, 0.9)},
    }
    monkeypatch.setattr(tool, "arms_of", lambda _, name: found.get(name, {}))
    lines = [line.split(" | ") for line in tool.sizes_table(tmp_path).splitlines()[2:]]
    assert [line[1] for line in lines] == ["linear", "shared", "quadralib", "linear", "eigen"]
    # An error of 0.3 lies between 0.4 at 100 parameters and 0.2 at 400, on logarithmic axes.
    assert lines[1][-1] == "1.62 |"
    assert lines[2][-1] == "under 1.00 |"  # the smallest linear one is better
    assert lines[2][4] == "50.00, 1 diverged"
    assert lines[4][-1] == "over 0.98 |"  # the largest linear one is not as good


def test_polynomials(monkeypatch: pytest.MonkeyPatch, tool: Any, tmp_path: Path) -> None:
    """Two arms, two seeds, one epoch: files, summary, and the squares that make the difference."""
    polynomial = load_tool("evidence_polynomial", monkeypatch)
    monkeypatch.setattr(polynomial, "SEEDS", range(10, 12))
    chosen = [n for n in polynomial.NETWORKS if n.name in ("linear", "shared-k4-norm")]
    for network in chosen:
        polynomial.measure(tmp_path / "polynomial", network, 1)
        polynomial.measure(tmp_path / "polynomial", network, 1)  # is there: nothing happens
    polynomial.summarize(tmp_path / "polynomial")
    rows = list(polynomial.rows(tmp_path / "polynomial"))
    assert [row["seeds"] - row["diverged"] for row in rows] == [2, 2]
    assert rows[0]["quadratic_share"] is None
    assert rows[1]["quadratic_share"] >= 0
    assert rows[1]["params"] <= rows[0]["params"]
    assert "| shared-k4 | none | norm |" in tool.polynomial_table(tmp_path)
