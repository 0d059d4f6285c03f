"""Sweeps: the grid, what is skipped, what is continued, two at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quadric.train.run import train
from quadric.train.sweep import plan, seeds_of, split_assignment, split_values, sweep

FIXED: dict[str, Any] = {"samples": 128, "batch_size": 64, "epochs": 2}


def runs(folder: Path, grid: dict[str, list[Any]], seeds: list[int]) -> list[Any]:
    return plan(["law-lorentz"], grid, seeds, fixed=FIXED, runs=folder)


def test_every_combination_is_one_run(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"neuron": ["eigen", "shared"], "lr": [0.1, 0.2, 0.3]}
    found = runs(tmp_path, grid, [0, 1])
    assert len(found) == 12
    assert len({run.directory.path for run in found}) == 12
    assert [run.recipe.seed for run in found] == [0] * 6 + [1] * 6


def test_combinations_that_compute_the_same_are_one_run(tmp_path: Path) -> None:
    # A linear network has neither eigenvalues nor a rank.
    grid = {"neuron": ["linear", "eigen"], "eigenvalue_lr": [0.1, 0.2], "rank": [3, 9]}
    found = runs(tmp_path, grid, [0, 1, 2])
    arms = [(run.recipe.neuron, run.recipe.rank, run.recipe.eigenvalue_lr) for run in found[:5]]
    assert len(found) == 3 * (1 + 4)
    assert arms == [
        ("linear", None, None),
        ("eigen", 3, 0.1),
        ("eigen", 9, 0.1),
        ("eigen", 3, 0.2),
        ("eigen", 9, 0.2),
    ]


def test_a_sweep_skips_what_is_finished(tmp_path: Path) -> None:
    found = runs(tmp_path, {"neuron": ["linear", "eigen"]}, [0, 1])
    train(found[1])
    outcomes = list(sweep(found))
    assert [outcome.kind for outcome in outcomes].count("skipped") == 1
    assert outcomes[0].run == found[1]
    assert all(outcome.text.startswith("test RMSE ") for outcome in outcomes)
    assert {outcome.kind for outcome in sweep(found)} == {"skipped"}
    # More seeds later: only those are trained.
    more = runs(tmp_path, {"neuron": ["linear", "eigen"]}, [0, 1, 2])
    assert sum(outcome.kind == "done" for outcome in sweep(more)) == 2


def test_one_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    grid = {"neuron": ["linear", "eigen"], "hidden": [[4], []], "layers": ["first:1"]}
    outcomes = list(sweep(runs(tmp_path, grid, [0])))
    kinds = {(o.run.recipe.neuron, tuple(o.run.recipe.hidden or ())): o for o in outcomes}
    # A perceptron without hidden layers has only its head, and nothing to convert.
    assert kinds["eigen", ()].kind == "failed"
    assert "ValueError" in kinds["eigen", ()].text
    assert [o.kind for o in outcomes].count("done") == 3


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    found = runs(tmp_path, {"neuron": ["linear", "eigen"]}, [0])
    with found[0].directory.lock():
        found[0].directory.create(found[0].recipe, found[0].command)
        outcomes = list(sweep(found))
    assert [outcome.kind for outcome in outcomes] == ["busy", "done"]


@pytest.mark.slow
def test_two_at_a_time_give_the_same_results(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"neuron": ["linear", "eigen"]}
    one, two = (runs(tmp_path / name, grid, [0, 1]) for name in ("one", "two"))
    assert {o.kind for o in sweep(one)} == {o.kind for o in sweep(two, jobs=2)} == {"done"}
    for first, second in zip(one, two, strict=True):
        assert first.directory.result()["test_rmse"] == pytest.approx(
            second.directory.result()["test_rmse"], rel=1e-5
        )


def test_values_are_split_at_commas_outside_brackets() -> None:
    assert split_values("1e-4,1e-3") == [1e-4, 1e-3]
    assert split_values("[24,48,96],[16,32,64]") == [[24, 48, 96], [16, 32, 64]]
    assert split_values("relu,none,null") == ["relu", "none", None]
    assert split_assignment("lr=0.1,0.2") == ("lr", [0.1, 0.2])
    with pytest.raises(ValueError, match="--set must be field=value,value, got 'lr='"):
        split_assignment("lr=")


def test_seeds_are_a_number_or_a_list() -> None:
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("4,7") == [4, 7]
    for text in ("x", "-1", "1.5", "0"):
        with pytest.raises(ValueError, match="--seeds must be"):
            seeds_of(text)
    with pytest.raises(ValueError, match="jobs must be >= 1"):
        list(sweep([], jobs=0))
