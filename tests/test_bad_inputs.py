"""Inputs that once did harm, as one table: the call, the error, its words; each at once."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from quadric import models
from quadric.analysis import drawing
from quadric.data.table_files import read_table
from quadric.errors import InputError
from quadric.runs.reading import read_runs
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor, compare
from quadric.support.locks import locked
from quadric.support.tensor_files import write_tensors
from quadric.tables.comparison.fit_log import FitLog
from quadric.tables.comparison.fits import run_fits
from quadric.tables.comparison.saving import check_path
from quadric.tables.modules import load_network
from quadric.train.runner import plan_run
from tests.command_line import assert_mistake, quadric
from tests.refusals import Check, refusals
from tests.runs.made import result

SECONDS = 5.0
"""Of processor time, on a slow machine; what was slow took 30."""
X = np.random.default_rng(0).normal(size=(30, 2))
DAYS = np.arange("2020-01-01", "2020-01-31", dtype="datetime64[D]")
MIXED = np.array([1, "a"] * 15, dtype=object)
LONG = "x" * 10**5


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    start = time.process_time()
    yield tmp_path
    assert time.process_time() - start < SECONDS


def fit(y: Any, kind: Any = QuadraticRegressor, **options: Any) -> None:
    kind((4,), max_iter=1, **options).fit(X, y)


def plan(**fields: Any) -> Any:
    return plan_run("law-lorentz", fields)


def of_recipe(line: str) -> Any:
    Path("mine.yaml").write_text(f"base: law-lorentz\n{line}\n")
    return plan_run("mine.yaml")


def bomb(suffix: str, zeros: int) -> Path:
    path = Path(f"bomb.csv{suffix}")
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(zeros // 2**20):
            file.write(b"0" * 2**20)
    return path


def described(**changes: Any) -> None:
    """Loads a network whose description is hostile."""
    network = {"in_features": 2, "out_features": 1, "hidden": [4], "members": 1, "dtype": "float32"}
    write_tensors("m.safetensors", {"a": torch.zeros(4, 2), "b": torch.zeros(4)}, {})
    facts = {"network": network | changes, "classes": None}
    Path("m.json").write_text(json.dumps(facts | changes))
    load_network("m.safetensors")


def mine_is_beside() -> None:
    Path("houses.json").write_text('{"mine": 1}')
    check_path(Path("houses.onnx"))


@refusals(
    (lambda: of_recipe("name: ../../../x"), InputError, "must be fit for a folder"),
    (lambda: of_recipe('name: "a\\0b"'), InputError, "must be fit for a folder"),
    (lambda: of_recipe(f"name: {LONG}"), InputError, "of 100,000 characters"),
    (lambda: plan_run(LONG), InputError, "unknown recipe"),
    (lambda: plan(**{LONG: 1}), InputError, "unknown field"),
    (lambda: plan(batch_size=10**20), InputError, "batch_size must be less than"),
    (lambda: models.create("resnet20", width=100_000.0), InputError, "must fit into memory"),
    (lambda: models.create("mlp", hidden=(10**7, 10**7)), InputError, "must fit into memory"),
    (lambda: fit(DAYS), InputError, "y must hold numbers, got the date"),
    (lambda: fit(pd.Series(DAYS)), InputError, "y must hold numbers, got the date"),
    (lambda: fit(DAYS - DAYS[0]), InputError, "y must hold numbers, got the date or time"),
    (
        lambda: fit(X[:, 0], standardize="x"),
        InputError,
        "standardize must be True, False or 'plain'",
    ),
    (lambda: fit(X[:, 0], random_state=-1), InputError, "random_state must be None"),
    (
        lambda: fit(MIXED, QuadraticClassifier),
        InputError,
        "one kind",
    ),
    (lambda: read_table(bomb(".gz", 2**28)), InputError, "unpacks to more than 300 times"),
    (lambda: models.create("mlp", hidden=(10**400,)), InputError, "hidden must be a number of 64"),
    (lambda: described(hidden=[10**12]), InputError, "does not describe a network"),
    (lambda: described(members=10**12), InputError, "does not describe a network"),
    (lambda: described(in_features=10**400), InputError, "does not describe a network"),
    (lambda: described(dtype="__name__"), InputError, "does not describe a network"),
    (lambda: described(network=None), InputError, "does not describe a network"),
    (lambda: described(classes="ab"), InputError, "does not describe a network"),
    (lambda: read_runs([result(0.5) | {"params": 10**400}]), InputError, "params must be a number"),
    (
        lambda: read_runs([result(0.5) | {"seed": 10**400}]),
        InputError,
        "seed must be a whole",
    ),
    (mine_is_beside, InputError, "there is a file of yours"),
)
def test_refused(check: Check) -> None:
    check()


def test_links_that_lead_back_end(here: Path) -> None:
    for name in "abc":
        (here / name).symlink_to(".")
    (here / "run").mkdir()
    (here / "run" / "result.json").write_text(json.dumps(result(0.5)))
    others = [here / f"runs{i}" for i in range(9)]
    for folder in others:
        folder.mkdir()
        for other in others:  # each way through all of them would be gone once
            (folder / other.name).symlink_to(other)
    assert len(read_runs([here])[0]) == 1


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"model": [], "fold": 0, "seed": 0}', "\xff", "[" * 10**5]
)
def test_damaged_fits_are_fitted_again(line: str, here: Path) -> None:
    log = FitLog({"a": 1}, "table", here / "fits")
    log.add(model="linear", fold=0, seed=0, status="ok", error=0.5)
    with log.file.open("ab") as file:
        file.write(f"{line}\n".encode("latin1"))
    again = FitLog({"a": 1}, "table", here / "fits")
    assert again.fits.keys() == log.fits.keys()
    assert len(again.frame()) == 1


def test_a_run_that_is_not_there_is_no_recipe() -> None:
    told = quadric("train", "runs/nothing", "--resume")
    assert_mistake(told, "there is no run directory runs/nothing")


def test_what_a_shell_closes() -> None:
    command = f"{sys.executable} -c 'from quadric.cli import main; main()' neurons"
    for end, code, words in ((" | head -1; exit ${PIPESTATUS[0]}", 0, ""), (" >&-", 2, "closed")):
        told = subprocess.run(
            ["bash", "-c", command + end], capture_output=True, text=True, check=False
        )
        assert (told.returncode, words in told.stderr, "Traceback" in told.stderr) == (
            code,
            True,
            False,
        )


def test_foreign_text_on_the_terminal(here: Path) -> None:
    (here / "result.json").write_text(json.dumps(result(0.5) | {"neuron": "\x1b]0;mine\x07=1"}))
    told = quadric("results", here)
    assert told.exit_code == 0
    assert "\x1b" not in told.stdout + told.stderr
    assert os.path.exists(here)


def test_a_name_in_a_picture_is_text(here: Path) -> None:
    pytest.importorskip("matplotlib")
    names = {"price_$_net_$": X[:, 0], "$\\bad{": X[:, 1], "=1+1": X[:, 0] ** 2}
    table = pd.DataFrame({name: np.tile(values, 4) for name, values in names.items()})
    told = compare(
        table, target="price_$_net_$", hidden=[2], folds=2, seeds=1, epochs=1, baselines=False,
        neurons="shared", run_dir=here / "run",
    )  # fmt: skip
    assert (here / "run" / "compare.png").stat().st_size > 10_000
    assert told.log.fits
    busy = "another comparison runs in"
    with locked(here / "run", "busy"), pytest.raises(InputError, match=busy):
        run_fits(told.table, told.plan, directory=here / "run")


def test_no_cell_of_an_exported_table_is_computed(here: Path) -> None:
    drawing._write(pd.DataFrame({"=a": ["@b", "c"], "d": [-1.5, 2]}), here / "table", latex=False)
    assert (here / "table.csv").read_text() == "'=a,d\n'@b,-1.5\nc,2.0\n"
