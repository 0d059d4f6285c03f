"""Tables of runs, as text, markdown and plain data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quadric.runs.groups import group
from quadric.runs.tables import facts, group_table, run_rows, to_json
from tests.runs.made import EIGEN, LINEAR, read, result, write_run

RATES = [result(0.9, neuron="eigen", quadratic_lr=rate) for rate in (0.1, 0.2)]
DEEP = [one | {"recipe": "deep", "settings": one["settings"] | {"name": "deep"}} for one in EIGEN]


def table(results: list[dict[str, Any]], markdown: bool = False) -> str:
    return group_table(group(read(*results)), markdown)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([*LINEAR, *EIGEN], ["91.00 ± 1.00", "92.50 ± 0.50", "0.200 ± 0.000", "3.0 ± 0.0"]),
        ([*LINEAR, *EIGEN], ["20,000", "test accuracy %", "0.09 ± 0.01"]),
        (
            [*LINEAR, *EIGEN],
            ["digits: eigen[9] minus linear: +1.50 ± 1.24 points accuracy (95 % interval, 3 "
             "paired seeds; clear)"],
        ),
        ([LINEAR[0], EIGEN[0]], ["+2.00 points accuracy (one seed: no interval)"]),
        (
            [*LINEAR, *(result(a, seed=s, neuron="eigen") for s, a in enumerate((0.95, 0.9, 0.9)))],
            ["; not clear: the interval holds 0)"],
        ),
        ([*DEEP, *LINEAR], ["deep eigen[9] minus digits linear: +1.50 ± 1.24 points"]),
        ([LINEAR[0], *RATES], ["quadratic_lr", "eigen[9] (quadratic_lr=0.2) minus linear"]),
        ([LINEAR[0], result(None, seed=1)], ["2 (1 diverged)", "90.00"]),
        ([result(None)], [" - "]),
    ],
)  # fmt: skip
def test_a_row_is_a_group_over_its_seeds(
    results: list[dict[str, Any]], expected: list[str]
) -> None:
    text = table(results)
    for words in expected:
        assert words in text


def test_the_table_in_markdown() -> None:
    text = table([*LINEAR, *EIGEN], markdown=True)
    assert "| linear | 3 | 1,000 | 20,000 | 91.00 ± 1.00 |" in text
    assert "\n- digits: eigen[9] minus linear" in text


def test_the_data_is_strict_json_and_holds_the_values() -> None:
    data = json.loads(json.dumps(to_json(group(read(*LINEAR, *EIGEN))), allow_nan=False))
    assert data["groups"][0]["test_accuracy"]["values"] == [0.90, 0.92, 0.91]
    assert data["groups"][1]["seeds"] == [0, 1, 2]
    assert data["differences"][0]["second"] == "eigen[9]"
    assert data["differences"][0]["mean"] == pytest.approx(0.015)


def test_one_row_a_run() -> None:
    rows = run_rows(read(LINEAR[0], *RATES))
    assert [(row["neuron"], row["quadratic_lr"]) for row in rows] == [
        ("linear", None), ("eigen", 0.1), ("eigen", 0.2),
    ]  # fmt: skip
    keys = "recipe neuron rank seed quadratic_lr status params macs test_accuracy test_loss"
    assert list(rows[0]) == [*keys.split(), "seconds", "path"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"test accuracy": "92.00 %", "quadratic share": "0.200 (mean)", "test loss": "0.08"}),
        ({"test_top5": 1.0}, {"test top-5 accuracy": "100.00 %"}),
        ({"test_accuracy": None, "test_loss": None}, {"test accuracy": "not finite"}),
        ({"best_epoch": 2}, {"best epoch": "2, chosen on the validation part"}),
        ({"bleu": None}, {"test": "none, as there are no test files"}),
    ],
)
def test_one_result_in_a_few_words(changes: dict[str, Any], expected: dict[str, str]) -> None:
    shown = dict(facts(EIGEN[0] | {"seconds": 1.5} | changes))
    assert (shown["neuron"], shown["epochs"]) == ("eigen, rank 9", "2 in 1.5 s")
    assert shown | expected == shown


WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in "lightning yaml pandas scipy sklearn matplotlib".split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv[0] = "quadric"
from quadric.cli import main
main()
"""


@pytest.mark.parametrize(
    ("results", "code", "words"),
    [
        ([LINEAR[0], EIGEN[0]], 0, "eigen[9] minus linear: +2.00 points accuracy"),
        ([*LINEAR, *EIGEN], 2, "an interval needs the extra 'train': pip install"),
    ],
)
def test_quadric_results_needs_an_extra_for_intervals_alone(
    tmp_path: Path, results: list[dict[str, Any]], code: int, words: str
) -> None:
    for i, one in enumerate(results):
        write_run(tmp_path / str(i), one)
    command = [sys.executable, "-c", WITHOUT_EXTRAS, "results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stderr
