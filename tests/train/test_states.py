"""The states of a run directory, and what each call makes of them: one contract."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quadric.errors import QuadricError
from quadric.train.api import load
from quadric.train.directory import RunDirectory
from quadric.train.evaluation import evaluate
from quadric.train.runner import plan_run, train
from tests.train.small import curve, law_result, law_run, metrics

OPTIONS: dict[str, Any] = {"neuron": "eigen", "validation": 0.25}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three epochs."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    law_result(folder, **OPTIONS)
    return folder


# Each makes a state of the copy of a finished run.


def interrupted(folder: Path) -> None:
    (folder / "result.json").unlink()


def killed(folder: Path) -> None:
    """In the third epoch: its row may be there, its checkpoint is not."""
    interrupted(folder)
    (folder / "weights.safetensors").unlink()
    checkpoints = folder / "checkpoints"
    (checkpoints / "previous.ckpt").replace(checkpoints / "last.ckpt")


def begun(folder: Path) -> None:
    interrupted(folder)
    shutil.rmtree(folder / "checkpoints")


def without_last(folder: Path) -> None:
    """What a kill leaves between two renames, on a file system without links."""
    interrupted(folder)
    (folder / "checkpoints" / "last.ckpt").unlink()


def damaged(kind: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        interrupted(folder)
        file, draw = folder / "checkpoints" / "last.ckpt", random.Random(0)
        content = bytearray(file.read_bytes())
        if kind == "flipped":
            for place in draw.sample(range(len(content)), 40):
                content[place] ^= 0xFF
        made = {"empty": b"", "random": draw.randbytes(len(content)), "flipped": content}
        file.write_bytes(made.get(kind, content[: len(content) // 2]))

    return damage


def both_damaged(folder: Path) -> None:
    interrupted(folder)
    for name in ("last", "previous"):
        (folder / "checkpoints" / f"{name}.ckpt").write_bytes(b"half")


def empty(folder: Path) -> None:
    shutil.rmtree(folder)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def occupied(folder: Path) -> None:
    empty(folder)
    folder.mkdir()
    (folder / "thesis.tex").write_text("")


def leftovers(folder: Path) -> None:
    """Of a run that could not write its recipe."""
    empty(folder)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / ".quadric-x.partial").mkdir()


def file_is(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def result_has(field: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))

    return change


def other_recipe(folder: Path) -> None:
    file = folder / "recipe.yaml"
    file.write_text(file.read_text().replace("\nseed: 0\n", "\nseed: 1\n"))


CALLS: dict[str, Callable[[Path], Any]] = {
    "train": lambda folder: train(law_run(folder, **OPTIONS)),
    "resume": lambda folder: train(law_run(folder, **OPTIONS), resume=True),
    "overwrite": lambda folder: train(law_run(folder, **OPTIONS), overwrite=True),
    "go on": lambda folder: train(plan_run(str(folder)), resume=True),
    "evaluate": evaluate,
    "load": load,
}
NESTED = b"[" * 5000
NO_RECIPE = "is not a run directory, it has no recipe.yaml"
GO_ON = "epochs are done: continue it with `quadric train "
NONE_LEFT = "no other checkpoint is left: start again with --overwrite"
# What is trained ends with the curve of the whole run, whatever epoch it starts at.
STATES: list[tuple[Callable[[Path], None], dict[str, str]]] = [
    (empty, {"train": "ok", "resume": "ok", "overwrite": "ok", "evaluate": NO_RECIPE,
             "load": NO_RECIPE}),
    (leftovers, {"train": "ok"}),
    (lambda folder: None, {"train": "shown", "resume": "shown", "go on": "shown",
                           "overwrite": "ok"}),
    (interrupted, {"train": f"3 of 3 {GO_ON}", "resume": "ok", "overwrite": "ok", "go on": "ok"}),
    (killed, {"train": f"2 of 3 {GO_ON}", "resume": "ok", "go on": "ok", "overwrite": "ok",
              "evaluate": "has no weights.safetensors, the run is not finished: continue it",
              "load": "has no weights.safetensors"}),
    (begun, {"train": "ok", "resume": "ok"}),
    (without_last, {"train": f"2 of 3 {GO_ON}", "resume": "ok"}),
    *((damaged(kind), {"train": "2 of 3 epochs are in ", "resume": "ok"})
      for kind in ("empty", "random", "cut", "flipped")),
    (both_damaged, {"train": NONE_LEFT, "resume": NONE_LEFT, "overwrite": "ok"}),
    (other_recipe, {name: "holds another recipe (seed is 1, not 0): choose another --run-dir"
                    for name in ("train", "resume", "overwrite")}),
    (occupied, {"train": "holds files but no recipe.yaml: choose an empty --run-dir"}),
    (a_file, {"train": "is a file: choose another --run-dir"}),
    (file_is("recipe.yaml", b"name: \xff\xfe"), {"go on": "recipe.yaml is not a text in UTF-8",
                                               "load": "is not a text in UTF-8"}),
    (file_is("recipe.yaml", b"a: " + NESTED), {"train": "recipe.yaml is nested too deeply"}),
    (file_is("recipe.yaml", b"epochs: ["), {"go on": "recipe.yaml is not YAML"}),
    (file_is("recipe.yaml", b"name: 2024-99-99"), {"train": "is not YAML: month must be in 1..12"}),
    (file_is("recipe.yaml", b"epochs: 3\n"), {"go on": "recipe.yaml: field 'name' is missing"}),
    (file_is("result.json", b"{"), {"train": "result.json is not JSON: remove it"}),
    (file_is("result.json", NESTED), {"go on": "result.json is not JSON"}),
    *((result_has(field, value), {"train": f"result.json: {field} must "}) for field, value in (
        ("test_rmse", "good"), ("test_loss", [1]), ("params", "many"), ("seed", "one"),
        ("epochs", 3))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "call", "outcome"),
    [
        pytest.param(state, call, outcome, id=f"{i}-{getattr(state, '__name__', '')}-{call}")
        for i, (state, calls) in enumerate(STATES)
        for call, outcome in calls.items()
    ],
)
def test_a_state_and_a_call(
    whole: Path, tmp_path: Path, state: Callable[[Path], None], call: str, outcome: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    state(folder)
    torch.rand(7)  # nothing depends on the state of the global generator
    there = sorted(tmp_path.rglob("*"))
    if outcome not in ("ok", "shown"):
        with pytest.raises(QuadricError, match=re.escape(outcome)):
            CALLS[call](folder)
        assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".lock"] == [
            path for path in there if path.name != ".lock"
        ]
        return
    before = RunDirectory(whole).result()
    made = folder / "result.json"
    written = made.stat().st_mtime_ns if outcome == "shown" else None
    result = CALLS[call](folder)
    assert curve(result) == curve(before)
    for key in ("test_loss", "test_rmse", "best_epoch", "status"):
        assert result[key] == before[key]
    assert [row["epoch"] for row in metrics(RunDirectory(folder))] == ["1", "2", "3"]
    if written is not None:
        assert made.stat().st_mtime_ns == written
    weights, same = (load_file(path / "weights.safetensors") for path in (folder, whole))
    for name, value in weights.items():
        assert torch.equal(value, same[name])


def test_another_seed_has_another_curve(whole: Path, tmp_path: Path) -> None:
    assert curve(law_result(tmp_path / "run", **OPTIONS | {"seed": 1})) != curve(
        RunDirectory(whole).result()
    )


def test_a_damaged_checkpoint_is_told(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    damaged("cut")(folder)
    screen = io.StringIO()
    train(plan_run(str(folder)), resume=True, screen=screen)
    assert f"note: {folder / 'checkpoints' / 'last.ckpt'} is damaged (" in screen.getvalue()
    assert f"going on from {folder / 'checkpoints' / 'previous.ckpt'}" in screen.getvalue()
    assert "epoch 1/3" not in screen.getvalue()


class Killed(Exception):
    """Ends a run as a kill does: nothing is written after it."""


class KillingScreen:
    """Ends a run when a line of this epoch is printed, before its checkpoint is written."""

    def __init__(self, epoch: int) -> None:
        self.start = rf"epoch +{epoch}/"

    def write(self, text: str) -> int:
        if re.match(self.start, text):
            raise Killed
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


# A rate that is too large: the first epochs are the best.
UNSTABLE: dict[str, Any] = {
    "validation": 0.25, "optimizer": "sgd", "lr": 0.5, "momentum": 0.95, "schedule": "constant",
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "epoch"),
    [
        ({"neuron": "eigen", "epochs": 4}, 3),
        (UNSTABLE | {"neuron": "eigen", "epochs": 4, "seed": 2}, 3),
        ({"neuron": "eigen", "ema": 0.9}, 3),
        ({"neuron": "eigen", "ema": 0.9, "validation": 0.25}, 3),
        (UNSTABLE | {"epochs": 12, "patience": 3, "seed": 0}, 3),
        ({"epochs": 5, "keep_every": 2, "average": 2}, 4),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, options: dict[str, Any], epoch: int
) -> None:
    before = law_result(tmp_path / "whole", **options)
    run = law_run(tmp_path / "killed", **options)
    with pytest.raises(Killed):
        train(run, screen=KillingScreen(epoch))  # type: ignore[arg-type]
    assert run.epochs_done == epoch - 1
    assert len(metrics(run.directory)) == epoch
    # And the directory may have been moved meanwhile.
    shutil.move(tmp_path / "killed", tmp_path / "moved")
    result = train(plan_run(str(tmp_path / "moved")), resume=True)
    assert result is not None
    assert curve(result) == curve(before)
    for key in ("test_loss", "best_epoch", "stopped_early"):
        assert result.get(key) == before.get(key)
    assert len(metrics(RunDirectory(tmp_path / "moved"))) == len(before["epochs"])
    names = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())
             for name in ("whole", "moved")]  # fmt: skip
    assert names[0] == names[1]
    weights = [load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "moved")]
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nodes": 2}, "nodes must be 1 without a launcher, got 2"),
        ({"model": "resnet8", "hidden": None}, "needs a network for tables, got model 'resnet8'"),
        ({"logger": "nothing"}, "logger must be 'tensorboard', 'csv', 'mlflow' or 'wandb'"),
    ],
)
def test_a_mistake_costs_no_trained_network(
    whole: Path, tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(QuadricError, match=re.escape(message)):
        law_result(tmp_path / "new", **overrides)
    assert not (tmp_path / "new").exists()


def test_overwriting_removes_nothing_before_all_is_checked(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "run")

    def missing(*args: Any) -> None:
        raise ValueError("no such data")

    monkeypatch.setattr("quadric.train.runner.load_data", missing)
    with pytest.raises(ValueError, match="no such data"):
        CALLS["overwrite"](tmp_path / "run")
    assert RunDirectory(tmp_path / "run").is_finished
    assert (tmp_path / "run" / "weights.safetensors").is_file()
