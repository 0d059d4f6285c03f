"""The commands of training as a user types them, in this process."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quadric.cli.app import app
from quadric.train.step import TrainingModule
from tests.command_line import assert_mistake
from tests.small_disk import small_disk

LAW = "train law-lorentz --epochs 2 --batch-size 64 --set samples=128"


def quadric(line: str) -> Any:
    return CliRunner().invoke(app, line.split())


def quadric_words(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_evaluate_and_results(here: Path) -> None:
    linear = quadric(f"{LAW} --seed 1")
    assert linear.exit_code == 0, linear.output
    (run,) = (here / "runs").iterdir()
    assert re.fullmatch(r"law-lorentz-linear-[0-9a-f]{8}-s1", run.name)
    assert linear.stderr.count("epoch ") == 2
    assert re.search(r"^2 epochs, about .+$", linear.stderr, re.MULTILINE)
    assert "test RMSE" in linear.stdout
    assert "--neuron eigen" in linear.stdout.splitlines()[-1]
    shared = quadric(f"{LAW} --seed 1 --neuron shared --rank 4 --quiet")
    assert shared.stdout.splitlines()[-1] == "next: quadric results runs/law-lorentz-*"
    assert shared.stderr.count("epoch ") == 0

    again = quadric(f"{LAW} --seed 1")
    assert again.stdout.startswith("already finished; --overwrite trains it again\n")
    evaluated = quadric(f"evaluate runs/{run.name} --json -")
    assert json.loads(evaluated.stdout)["test_rmse"] == pytest.approx(
        json.loads((run / "result.json").read_text())["test_rmse"], rel=1e-5
    )
    table = quadric("results runs")
    assert table.exit_code == 0
    assert "shared[4] minus linear" in table.stdout
    assert len(json.loads(quadric("results runs --json -").stdout)["groups"]) == 2


def test_the_recorded_command_makes_the_same_run(here: Path) -> None:
    done = quadric_words(*LAW.split(), "--data-dir", "my data", "--set", "activation=tanh")
    assert done.exit_code == 0, done.output
    (run,) = (here / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    first = (run / "recipe.yaml").read_text().splitlines()[0]
    assert first == f"# {result['command']}"
    assert "--data-dir 'my data'" in first
    program, *words = shlex.split(result["command"])
    assert program == "quadric"
    again = quadric_words(*words)
    assert again.stdout.startswith("already finished;")
    # And the hint at the end is one to be pasted too.
    hint = shlex.split(done.stdout.splitlines()[-1].partition("neurons: ")[2])
    assert quadric_words(*hint[1:], "--quiet").exit_code == 0
    assert {json.loads(p.read_text())["neuron"] for p in here.glob("runs/*/result.json")} == {
        "linear",
        "eigen",
    }


@pytest.mark.parametrize("line", [LAW, "sweep law-lorentz --set epochs=1", "evaluate runs/x"])
def test_a_json_file_that_cannot_be_written_is_noticed_first(here: Path, line: str) -> None:
    message = "--json nowhere/x.json: there is no directory nowhere: make it, or name another file"
    assert_mistake(quadric(f"{line} --json nowhere/x.json"), message)
    assert_mistake(quadric(f"{line} --json {here}"), "cannot be written: name another file")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train digts", "unknown recipe 'digts': did you mean digits?"),
        ("train digits --set lr", "--set must be name=value"),
        ("train digits --lr 1 --set lr=2", "lr is given twice"),
        ("train digits --resume --overwrite", "--resume and --overwrite exclude each other"),
        ("train missing.yaml", "No such file or directory: missing.yaml"),
        ("evaluate nowhere", "is not a run directory"),
        ("results nowhere", "no such run: nowhere"),
        ("sweep digits --set seed=1,2", "seed is swept by --seeds"),
        ("sweep digits --neuron eigen --set neuron=fan", "neuron is swept by --neuron"),
    ],
)
def test_mistakes_are_one_line(here: Path, line: str, message: str) -> None:
    assert_mistake(quadric(line), message)
    assert not (here / "runs").exists() or not list((here / "runs").iterdir())


def test_a_run_directory_is_continued_only_when_asked(here: Path) -> None:
    assert quadric(f"{LAW} --run-dir r/x --quiet").exit_code == 0
    (here / "r" / "x" / "result.json").unlink()
    assert_mistake(
        quadric("train r/x"), "holds an unfinished run, 2 of 2 epochs are done: continue it with `"
    )
    assert_mistake(quadric("results r"), "r/x is not finished: quadric train r/x --resume")
    assert_mistake(quadric("train r/x --resume --epochs 9"), "got epochs=9 instead of 2")
    assert_mistake(quadric("train r/x --resume --quick"), "--quick and --run-dir belong to a")
    assert_mistake(quadric(f"{LAW} --run-dir r/x --seed 3"), "holds another recipe (seed is 0")
    assert quadric("train r/x --resume --quiet").exit_code == 0
    assert quadric("train r/x").stdout.startswith("already finished")


def test_sweep_trains_the_grid_and_tabulates_it(here: Path) -> None:
    line = "sweep law-lorentz --neuron linear,eigen --seeds 2 --set samples=128 --set epochs=1"
    listed = quadric(f"{line} --dry-run")
    assert len(listed.stdout.splitlines()) == 4
    assert not (here / "runs").exists()
    result = quadric(line)
    assert result.exit_code == 0
    assert "[4/4]" in result.stderr
    assert "eigen[9] minus linear" in result.stdout
    assert "2 paired seeds" in result.stdout
    again = quadric(line)
    assert again.stderr.count("(skipped)") == 4


def test_commands_keep_freed_memory_and_mistakes_leave_no_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("quadric.support.process.keep_freed_memory", lambda: calls.append("kept"))
    assert quadric("sweep law-lorentz --set epochs=1 --set samples=64").exit_code == 0
    assert quadric(f"{LAW} --quiet").exit_code == 0
    assert calls == ["kept", "kept"]
    done = quadric("train law-lorentz --set model=resnet8 --set hidden=null --run-dir mistake")
    assert_mistake(done, "needs a network for tables")
    assert not (here / "mistake").exists()


def test_a_disk_that_fills_in_the_middle(here: Path) -> None:
    with small_disk(6_000):  # too little for a checkpoint
        told = quadric(f"{LAW} --run-dir run --quiet")
    command = "quadric train run --resume"
    checkpoint = Path("run", "checkpoints", "last.ckpt")
    assert_mistake(told, f"cannot write {checkpoint} (File too large): make room")
    assert f"; then go on with `{command}`" in told.stderr
    assert quadric(command.removeprefix("quadric ")).exit_code == 0


def test_a_disk_that_lightning_finds_full(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own files, for TensorBoard, give errors that name none."""

    def full(self: TrainingModule) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TrainingModule, "on_train_epoch_start", full)
    told = quadric(f"{LAW} --run-dir run --quiet")
    assert_mistake(told, "cannot write run (No space left on device): make room")


def test_a_finished_run_is_shown_where_nothing_can_be_written(here: Path) -> None:
    first = quadric(f"{LAW} --run-dir run --quiet")
    assert first.exit_code == 0
    for path in (here / "run").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with small_disk(0):
        for command in (f"{LAW} --run-dir run", "train run/", "train run/ --resume"):
            shown = quadric(command)
            assert shown.exit_code == 0, shown.output
            assert shown.stdout == f"already finished; --overwrite trains it again\n{first.stdout}"


@pytest.mark.parametrize(
    ("line", "again"),
    [
        (
            f"{LAW} --run-dir new",
            "quadric train law-lorentz --epochs 2 --batch-size 64 --set samples=128 --run-dir new",
        ),
        (
            f"{LAW} --run-dir run --overwrite",
            "quadric train law-lorentz --epochs 2 --batch-size 64 --set samples=128 --run-dir run "
            "--overwrite",
        ),
        ("train begun/ --resume --data-dir /x", "quadric train begun --resume --data-dir /x"),
    ],
)
def test_ctrl_c_before_the_run_begins_repeats_what_was_given(
    here: Path, monkeypatch: pytest.MonkeyPatch, line: str, again: str
) -> None:
    assert quadric(f"{LAW} --run-dir run --quiet").exit_code == 0
    shutil.copytree(here / "run", here / "begun", ignore=shutil.ignore_patterns("result.json"))
    shutil.rmtree(here / "begun" / "checkpoints")

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quadric.train.runner.load_data", interrupted)
    told = quadric(line)
    assert told.exit_code == 130
    found = re.search("start it again with `(.*)`", told.output)
    if "--overwrite" in line:  # the run before it is still there
        found = re.search("with `(.*)`", told.output)
    assert found is not None, told.output
    assert sorted(found[1].split()) == sorted(again.split())


@pytest.mark.filterwarnings("ignore::quadric.watchdog.CurvatureWarning")
def test_divergence_ends_with_code_1_and_the_layer() -> None:
    result = quadric(f"{LAW} --neuron eigen --set optimizer=sgd --lr 1e30")
    assert result.exit_code == 1
    assert "diverged" in result.stdout
    assert "layer 'hidden1'" in result.stdout


def test_recipes_lists_and_shows() -> None:
    assert "cifar10-wide-resnet110" in quadric("recipes").stdout
    assert quadric("recipes digits").stdout.startswith("# quadric train digits")
    assert len(json.loads(quadric("recipes --json -").stdout)) > 40
