"""Checkpoints that were damaged, planted, or cut off by a kill while they were written."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quadric.support.writing import is_partial
from quadric.train import checkpoints
from quadric.train.checkpoint_plugin import Checkpoints
from quadric.train.directory import RunDirectory
from quadric.train.runner import PlannedRun, train
from tests.command_line import assert_mistake, quadric
from tests.train.small import curve, law_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PlannedRun:
    """A run of three epochs without its result: it can go on."""
    run = law_run(tmp_path_factory.mktemp("runs") / "run")
    train(run)
    run.directory.result_file.unlink()
    return run


@pytest.fixture
def unfinished(made: PlannedRun, tmp_path: Path) -> PlannedRun:
    shutil.copytree(made.directory.path, tmp_path / "run")
    return law_run(tmp_path / "run")


def test_the_one_before_is_kept(made: PlannedRun) -> None:
    found = checkpoints.find(made.directory)
    assert found == checkpoints.WholeCheckpoint(made.directory.last_checkpoint, 3)
    assert checkpoints.read(made.directory.previous_checkpoint)["epoch"] + 1 == 2
    names = {file.name for file in made.directory.checkpoints.iterdir()}
    assert names == {"last.ckpt", "previous.ckpt"}


def test_no_flipped_bit_is_overlooked(made: PlannedRun, tmp_path: Path) -> None:
    whole = made.directory.last_checkpoint.read_bytes()
    file = tmp_path / "flipped.ckpt"
    draw = random.Random(1)
    for place in draw.sample(range(len(whole)), 100):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(checkpoints.CheckpointError):
            checkpoints.read(file)


class Payload:
    """Runs code when it is unpickled; here it only makes a folder."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.file,))


def plant(run: PlannedRun, tmp_path: Path) -> Path:
    """A last checkpoint with code in it, otherwise whole, and its one trace."""
    trace = tmp_path / "it ran"
    directory = run.directory
    state = checkpoints.read(directory.last_checkpoint)
    checkpoints.write(state | {"payload": Payload(trace)}, directory.last_checkpoint)
    return trace


def test_no_checkpoint_runs_code(unfinished: PlannedRun, tmp_path: Path) -> None:
    trace = plant(unfinished, tmp_path)
    unfinished.directory.previous_checkpoint.unlink()
    told = quadric("train", unfinished.directory.path, "--resume")
    assert_mistake(told, "last.ckpt holds more than numbers and names, which is never loaded")
    # Lightning before 2.6 asks to unpickle: that is not for it to say.
    last = unfinished.directory.last_checkpoint
    with pytest.raises(checkpoints.CheckpointError, match="more than numbers"):
        Checkpoints().load_checkpoint(last, weights_only=False)
    assert not trace.exists()
    torch.load(last, weights_only=False)  # the payload is one
    assert trace.exists()


def test_a_disk_that_fills_loses_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    checkpoints.write({"epoch": 0}, file)
    code = (
        "import resource, sys, torch; from pathlib import Path;"
        "from quadric.train import checkpoints\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))\n"
        "try: checkpoints.write({'epoch': 1, 'x': torch.zeros(10_000)}, Path(sys.argv[1]))\n"
        "except OSError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot write {file} (File too large): make room")
    assert checkpoints.read(file) == {"epoch": 0}
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


# Killed while a checkpoint is written, on a file system of its own.

WIDE = {"hidden": [700, 700]}


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system than the temporary one, where there is such."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        pytest.skip("needs a second file system, /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def kill_in_a_write(run: PlannedRun, write: int, size: int) -> None:
    """Trains until the n-th checkpoint of this process is being written, and kills it there."""
    directory = run.directory
    command = [sys.executable, "-c", "from quadric.cli import main; main()", "train"]
    command += [str(directory.path), "--resume", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writes, before, end = 0, False, time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < end:
            within = any(found < size for found in sizes(directory).values())
            writes += within and not before
            before = within
            if writes == write:
                break
            time.sleep(0.0005)
        else:
            pytest.fail(f"no write was seen: {process.poll()}, {process.communicate()}")
    finally:
        process.kill()
        process.communicate()


def sizes(directory: RunDirectory) -> dict[str, int]:
    """The files of the checkpoints, some of which another process renames meanwhile."""
    found = {}
    for folder, _, names in os.walk(directory.checkpoints):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = Path(folder, name).stat().st_size
    return found


def kills(folder: Path, count: int) -> None:
    whole = law_run(folder / "whole", **WIDE | {"epochs": 2 + count})
    expected = train(whole)
    size = whole.directory.last_checkpoint.stat().st_size * 9 // 10
    run = law_run(folder / "killed", **WIDE | {"epochs": 2 + count})
    run.directory.create(run.recipe, run.command)
    cut = 0
    for done in range(1, count + 1):
        kill_in_a_write(run, 2, size)
        found = checkpoints.find(run.directory)
        assert found is not None
        # At most the epoch that was being written is lost.
        assert (found.path, found.damage) == (run.directory.last_checkpoint, None)
        assert found.epochs >= done
        cut += any(map(is_partial, run.directory.checkpoints.iterdir()))
    assert cut > count // 2, "the kills came too late to show anything"
    result = train(run, resume=True)
    assert result is not None
    assert expected is not None
    assert curve(result) == curve(expected)
    assert set(sizes(run.directory)) == {"last.ckpt", "previous.ckpt"}


def test_a_kill_while_a_checkpoint_is_written(elsewhere: Path) -> None:
    kills(elsewhere, 1)


def test_one_that_the_system_cannot_read_counts_as_damaged(unfinished: PlannedRun) -> None:
    last = unfinished.directory.last_checkpoint
    last.unlink()
    last.symlink_to("/proc/self/mem")  # a file whose beginning is an input/output error
    found = checkpoints.find(unfinished.directory)
    assert found is not None
    assert found.epochs == 2
    assert f"{last} cannot be read (" in str(found.damage)


def test_a_damaged_best_one_names_the_remedy(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run", validation=0.25, epochs=1)
    train(run)
    run.directory.result_file.unlink()
    run.directory.best_checkpoint.write_bytes(b"")
    with pytest.raises(ValueError, match=r"best.ckpt is damaged .*: start again with --overwrite"):
        train(run, resume=True)
