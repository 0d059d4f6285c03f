"""Run directories: whose they are, who may write, what is checked before training."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quadric.support.locks import BusyError
from quadric.train.data import load_data
from quadric.train.directory import RunDirectory, is_run_directory
from quadric.train.network import build_network
from quadric.train.runner import bytes_of, plan_run, train
from tests.small_disk import small_disk
from tests.train.small import law_run


def test_a_directory_keeps_its_recipe(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run", neuron="shared")
    directory = run.directory
    directory.check_owner(run.recipe)  # a new one is anybody's
    directory.create(run.recipe, run.command)
    assert directory.recipe() == run.recipe
    assert directory.command() == run.command
    directory.check_owner(run.recipe)
    other = law_run(tmp_path / "run", neuron="shared", epochs=4).recipe
    with pytest.raises(ValueError, match=r"holds another recipe \(epochs is 3, not 4\)"):
        directory.check_owner(other)
    # A directory that the user names may be at another place now; one named by the recipe not.
    moved = law_run(tmp_path / "run", neuron="shared", data_dir="/x").recipe
    directory.check_owner(moved)
    with pytest.raises(
        ValueError, match=r"\(data_dir is None, not '/x'\): .* or go on with that run by `quadric"
    ):
        directory.check_owner(moved, named=False)


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    for path in (Path("/proc/quadric/run"), tmp_path / "file" / "run"):
        message = f"cannot write to run directory {path} "
        with pytest.raises(ValueError, match=re.escape(message)):
            RunDirectory(path).create(run.recipe, run.command)
        with pytest.raises(ValueError, match=re.escape(message)), RunDirectory(path).lock():
            pass


def test_a_recipe_that_cannot_be_written_does_not_block_the_directory(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run")
    with run.directory.lock(), small_disk(0), pytest.raises(OSError, match="recipe") as caught:
        run.directory.create(run.recipe, run.command)
    assert str(caught.value).count("cannot write") == 1
    (run.directory.path / ".quadric-x.partial").mkdir()  # what a kill leaves
    run.directory.checkpoints.mkdir(exist_ok=True)
    run.directory.check_owner(run.recipe)
    (run.directory.checkpoints / "last.ckpt").touch()
    with pytest.raises(ValueError, match="holds files but no recipe"):
        run.directory.check_owner(run.recipe)


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"MB of free space, this run writes about 1,000,000,00"):
        run.directory.create(run.recipe, run.command, need=10**18)
    assert not run.directory.path.exists()


@pytest.mark.parametrize(
    "overrides",
    [
        {"optimizer": "sgd", "momentum": 0.0, "hidden": [100, 100]},
        {"neuron": "eigen", "validation": 0.25, "hidden": [200, 200]},
        {"epochs": 40},
        {"keep_every": 1, "ema": 0.9, "hidden": [100, 100]},
        {"average": 2, "hidden": [200, 200]},
    ],
)
def test_the_space_is_that_of_what_is_written(tmp_path: Path, overrides: dict[str, Any]) -> None:
    run = law_run(tmp_path / "run", **overrides)
    expected = bytes_of(run.recipe, build_network(run.recipe, load_data(run.recipe)))
    train(run)
    directory = run.directory
    files = sum(file.stat().st_size for file in directory.path.rglob("*") if file.is_file())
    at_most = files + directory.last_checkpoint.stat().st_size  # the next one, beside the others
    assert at_most < expected < 2.5 * at_most
    # A run that goes on has most of it already.
    directory.create(run.recipe, run.command, files + shutil.disk_usage(tmp_path).free // 2)


def test_only_one_process_trains_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quadric.support.locks.SECONDS", 0.2)
    run = law_run(tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path;"
        "from quadric.train.directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True); time.sleep(60)"
    )
    run.directory.create(run.recipe, run.command)
    command = [sys.executable, "-c", code, str(run.directory.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(BusyError, match="another process trains in"), run.directory.lock():
            pass
        process.kill()
    monkeypatch.undo()
    with run.directory.lock():  # the lock died with the process
        pass


def test_the_command_of_a_moved_run_says_where_it_is_now(tmp_path: Path) -> None:
    run = law_run(tmp_path / "my run", data_dir="/old", workers=1)
    run.directory.create(run.recipe, run.command)
    assert run.directory.resume_command == f"quadric train '{tmp_path / 'my run'}' --resume"
    again = plan_run(str(run.directory.path), {"data_dir": "/the new", "workers": 2})
    # An option that is given twice has its last value.
    assert again.command == f"{run.command} --data-dir '/the new' --workers 2"
    assert again.resume_command.endswith("--resume --data-dir '/the new' --workers 2")
    again = plan_run(str(run.directory.path), {"kernels": False})
    assert again.command == f"{run.command} --set kernels=false"
    assert plan_run(str(run.directory.path)).command == run.command


def test_recipes_and_directories_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()  # a folder that has a recipe's name
    assert not is_run_directory("digits")
    assert is_run_directory(f"{tmp_path}/digits")
    (tmp_path / "digits" / "recipe.yaml").write_text("")
    assert is_run_directory("digits")
    assert not is_run_directory("nowhere/at/all")
