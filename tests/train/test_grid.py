"""Sweeps: the grid, what is skipped, what is continued, two at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from quadric.train.grid import grid_values, plan_sweep, seeds_of, split_values, sweep
from quadric.train.runner import train
from tests.train.small import LISTENING

FIXED: dict[str, Any] = {"samples": 128, "batch_size": 64, "epochs": 2}


def runs(folder: Path, grid: dict[str, list[Any]], seeds: list[int]) -> list[Any]:
    return plan_sweep("law-lorentz", FIXED | grid, seeds, runs=folder)


def test_every_combination_is_one_run(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"neuron": ["eigen", "shared"], "lr": [0.1, 0.2, 0.3]}
    found = runs(tmp_path, grid, [0, 1])
    assert len(found) == 12
    assert len({run.directory.path for run in found}) == 12
    assert [run.recipe.seed for run in found] == [0] * 6 + [1] * 6


def test_combinations_that_compute_the_same_are_one_run(tmp_path: Path) -> None:
    # A linear network has neither eigenvalues nor a rank.
    grid = {"neuron": ["linear", "eigen"], "quadratic_lr": [0.1, 0.2], "rank": [3, 9]}
    found = runs(tmp_path, grid, [0, 1, 2])
    arms = [(run.recipe.neuron, run.recipe.rank, run.recipe.quadratic_lr) for run in found[:5]]
    assert len(found) == 3 * (1 + 4)
    assert arms == [
        ("linear", None, None),
        ("eigen", 3, 0.1),
        ("eigen", 9, 0.1),
        ("eigen", 3, 0.2),
        ("eigen", 9, 0.2),
    ]


def test_files_of_one_name_that_differ_cannot_be_swept_together(tmp_path: Path) -> None:
    files = []
    for folder, rate in (("a", 0.1), ("b", 0.2)):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "mine.yaml")
        files[-1].write_text(f"base: law-lorentz\ntitle: mine\nlr: {rate}\n")
    message = r"two runs would share the directory .*mine-linear-s0.*differ in lr \(0.1 and 0.2\)"
    with pytest.raises(ValueError, match=message):
        plan_sweep([str(file) for file in files], {}, [0], runs=tmp_path / "runs")
    # Nor one after the other.
    fixed = {"samples": 64, "batch_size": 64, "epochs": 1}
    first, second = (plan_sweep([str(file)], fixed, [0], runs=tmp_path / "runs") for file in files)
    assert [outcome.kind for outcome in sweep(first)] == ["done"]
    with pytest.raises(ValueError, match=r"holds another recipe \(lr is 0.1, not 0.2\)"):
        list(sweep(second))


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


def test_a_process_that_is_killed_is_said_to_be(tmp_path: Path) -> None:
    found = runs(tmp_path, {"neuron": ["linear", "eigen"]}, [0])
    before = set(active_children())

    def kill_one() -> None:
        while len(started := set(active_children()) - before) < 2:
            time.sleep(0.05)
        started.pop().kill()

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    outcomes = list(sweep(found, jobs=2))
    killer.join()
    # The pool may not yet watch the process that it started last. Then it learns of that one's
    # death only when the other has finished its run: one is done, and one failed.
    failed = [outcome for outcome in outcomes if outcome.kind == "failed"]
    assert len(outcomes) == 2
    assert failed
    assert all("was killed, perhaps for want of memory" in outcome.text for outcome in failed)
    kinds = [outcome.kind for outcome in sweep(found)]
    assert kinds.count("done") == len(failed)
    assert kinds.count("skipped") == 2 - len(failed)


def test_one_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    grid = {"neuron": ["linear", "eigen"], "hidden": [[4], []], "first": [1]}
    outcomes = list(sweep(runs(tmp_path, grid, [0])))
    kinds = {(o.run.recipe.neuron, tuple(o.run.recipe.hidden or ())): o for o in outcomes}
    # A perceptron without hidden layers has only its head, and nothing to convert.
    assert kinds["eigen", ()].kind == "failed"
    assert "InputError: at least one layer" in kinds["eigen", ()].text
    assert [o.kind for o in outcomes].count("done") == 3


def test_a_run_that_another_process_trains_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quadric.support.locks.SECONDS", 0.2)
    found = runs(tmp_path, {"neuron": ["linear", "eigen"]}, [0])
    with found[0].directory.lock():
        found[0].directory.create(found[0].recipe, found[0].command)
        outcomes = list(sweep(found))
    assert [outcome.kind for outcome in outcomes] == ["busy", "done"]


def test_a_process_of_a_sweep_has_one_thread() -> None:
    code = (
        "import os, torch; from quadric.train.grid import _start; torch.set_num_threads(2);"
        "_start(os.getppid()); print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "1 1\n", done.stderr


@pytest.mark.slow
def test_a_killed_sweep_leaves_nobody_behind_and_goes_on(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"neuron": ["linear", "eigen"]}
    fixed = {"samples": 64, "batch_size": 64, "epochs": 200}
    found = plan_sweep("law-lorentz", fixed | grid, [0], runs=tmp_path)
    words = "sweep law-lorentz --neuron linear,eigen --jobs 2"
    for name, value in fixed.items():
        words += f" --set {name}={value}"
    command = [str(Path(sys.executable).parent / "quadric"), *words.split()]
    with subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        end = time.monotonic() + 120
        while not all(run.directory.last_checkpoint.is_file() for run in found):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
    assert not any(run.directory.is_finished for run in found)
    done = [run.epochs_done for run in found]
    assert min(done) >= 1
    # Nobody trains on, and nobody holds the directories.
    outcomes = list(sweep(found))
    assert [outcome.kind for outcome in outcomes] == ["done", "done"]
    assert all(len(run.directory.result()["epochs"]) == 200 for run in found)


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_of_several_jobs(tmp_path: Path) -> None:
    # More runs than jobs: one that waits must not begin.
    words = "sweep law-lorentz --neuron linear,eigen --seeds 3 --jobs 2 --set epochs=100000"
    command = [*LISTENING, str(Path(sys.executable).parent / "quadric"), *words.split()]
    process = subprocess.Popen(
        [*command, "--set", "samples=64", "--runs-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while len(list(tmp_path.glob("*/checkpoints/last.ckpt"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"did not end: {process.communicate()}")
    assert process.returncode == 130, err
    assert out == "interrupted: the same command goes on where the sweep was\n"
    assert "Traceback" not in err
    assert len(list(tmp_path.glob("*/recipe.yaml"))) == 2


def test_values_are_split_at_commas_outside_brackets() -> None:
    assert split_values("1e-4,1e-3") == [1e-4, 1e-3]
    assert split_values("[24,48,96],[16,32,64]") == [[24, 48, 96], [16, 32, 64]]
    assert split_values("relu,none,null") == ["relu", "none", None]
    assert grid_values({"rank": None}, ["lr=0.1,0.2"]) == {"lr": [0.1, 0.2]}
    with pytest.raises(ValueError, match="--set must be name=value, got 'lr='"):
        grid_values({}, ["lr="])


def test_seeds_are_a_number_or_a_list() -> None:
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("4,7") == [4, 7]
    for text in ("x", "-1", "1.5", "0"):
        with pytest.raises(ValueError, match="--seeds must be"):
            seeds_of(text)
    with pytest.raises(ValueError, match="jobs must be >= 1"):
        list(sweep([], jobs=0))
