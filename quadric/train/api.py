"""Training from Python: `run`, `sweep`, `load`, `evaluate` and `results`.

The commands of the command line call these functions, and print what they give.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from quadric.runs.reading import read_runs
from quadric.runs.tables import facts, run_rows
from quadric.support.extras import load_extra
from quadric.support.texttable import text_table
from quadric.train import grid, runner
from quadric.train.directory import RUNS, RunDirectory
from quadric.train.network import load_run
from quadric.train.recipe import Recipe
from quadric.user_code import listed

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A finished run.

    Args:
        path: the run directory.
        values: the content of its result.json; by default it is read.
        code: the files or modules of your own that the run uses.

    Attributes:
        path: the run directory.
        values: the content of its result.json: settings, metrics, one record per epoch, provenance.
    """

    def __init__(
        self, path: str | Path, values: Mapping[str, Any] | None = None, code: Sequence[str] = ()
    ) -> None:
        self.path = Path(path)
        self.values = dict(RunDirectory(self.path).result() if values is None else values)
        self._code = code

    @property
    def metrics(self) -> dict[str, float | None]:
        """The test metrics by name, such as `accuracy` and `loss`; None for what is not finite."""
        return {
            name.removeprefix("test_"): value
            for name, value in self.values.items()
            if name.startswith("test_")
        }

    @property
    def is_ok(self) -> bool:
        """Whether it did not diverge."""
        return bool(self.values["status"] == "ok")

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return RunDirectory(self.path).recipe()

    @property
    def epochs(self) -> pd.DataFrame:
        """The curve: one row per epoch, as in metrics.csv."""
        pandas: Any = load_extra("pandas", "a table of epochs", "tables")
        frame: pd.DataFrame = pandas.DataFrame(self.values["epochs"]).set_index("epoch")
        return frame

    def model(self) -> nn.Module:
        """The trained network, in eval mode."""
        return load(self.path, code=self._code)

    def __repr__(self) -> str:
        return text_table(["", str(self.path)], facts(self.values))

    def _repr_html_(self) -> str:
        cells = [f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in
                 facts(self.values)]  # fmt: skip
        head = f"<caption>{html.escape(str(self.path))}</caption>"
        return f"<table>{head}{''.join(cells)}</table>"


def run(
    recipe: str | os.PathLike[str],
    *,
    quick: bool = False,
    run_dir: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] = RUNS,
    resume: bool = False,
    overwrite: bool = False,
    code: str | Sequence[str] = (),
    progress: bool = True,
    profile: bool = False,
    **fields: Any,
) -> Result:
    """Trains a recipe, or continues a run, to its end. What is finished is not trained again.

    Args:
        recipe: a recipe's name, a recipe file, or a run directory.
        quick: train the recipe's quick variant.
        run_dir: the run's directory; by default one below `runs` named after recipe, neuron, rank,
            seed and all other fields.
        runs: the folder in which such directories are made.
        resume: continue from the last checkpoint; without one, start.
        overwrite: train again in the same directory.
        code: files or modules of your own that are run: neurons that they register can be named,
            and what the recipe names must be among them.
        progress: print a line for each epoch.
        profile: measure the operators of a few steps, and write profile.txt.
        **fields: other values of the recipe's fields (docs/recipes.md), such as `neuron="eigen"`,
            `epochs=3`, `data_dir=...`. `model`, `dataset` and `loss` may be functions of yours.

    Returns:
        The result.

    Raises:
        InputError: if the recipe, a field or the directory does not fit.
        InterruptedTraining: if Ctrl-C ended it; the last checkpoint is there.

    Examples:
        >>> quadric.train.run("digits", neuron="eigen", epochs=3).metrics  # doctest: +SKIP
        {'accuracy': 0.95, 'loss': 0.17, 'top5': 1.0}
    """
    planned = runner.plan_run(recipe, fields, quick=quick, run_dir=run_dir, runs=runs, code=code)
    screen = runner.progress_stream(not progress)
    values = runner.train(
        planned, resume=resume, overwrite=overwrite, screen=screen, profile=profile
    )
    return Result(planned.directory.path, values or {}, planned.code)


def sweep(
    recipes: str | Sequence[str],
    *,
    seeds: int | Sequence[int] = 1,
    jobs: int = 1,
    quick: bool = False,
    runs: str | os.PathLike[str] = RUNS,
    code: str | Sequence[str] = (),
    progress: bool = True,
    **fields: Any,
) -> list[Result]:
    """Trains every combination of values and seeds. Finished runs are not trained again.

    Args:
        recipes: a name or several.
        seeds: the seeds, or their number: 3 means 0, 1, 2.
        jobs: the number of runs at the same time, each on one thread.
        quick: the recipes' quick variants.
        runs: the folder in which the run directories are made.
        code: files or modules of your own that are run, as in `run`.
        progress: print how each run ended, and with one job a line for each epoch.
        **fields: fields of the recipe. A list holds the values that are combined, such as
            `neuron=["linear", "eigen"]`; all else is the same in every run. A field that is a list
            itself stands in one: `channels=[[24, 48, 96]]`.

    Returns:
        The results of the runs, in the order of the combinations, seed by seed.

    Raises:
        InputError: if a recipe or a field does not fit.
        FailedRunsError: if runs failed, after all others have ended.
    """
    several = range(seeds) if isinstance(seeds, int) else seeds
    planned = grid.plan_sweep(recipes, fields, several, quick=quick, runs=runs, code=code)
    failed = grid.train_all(planned, jobs, runner.progress_stream(not progress))
    if failed:
        raise grid.FailedRunsError(f"{len(failed)} of {len(planned)} runs failed: {failed[0]}")
    return [Result(run.directory.path, code=run.code) for run in planned]


def load(
    run: str | os.PathLike[str] | Result,
    *,
    code: str | Sequence[str] = (),
    **environment: Any,
) -> nn.Module:
    """The trained network of a run, in eval mode.

    Args:
        run: a run directory, or a result.
        code: the files or modules of your own that the run uses.
        **environment: `data_dir`, if another one than when it was trained.

    Returns:
        The network.

    Raises:
        InputError: if the run is not finished, or uses code that this call does not name.
    """
    path = run.path if isinstance(run, Result) else Path(run)
    return load_run(path, listed(code), **environment).network.eval()


def results(
    runs: str | os.PathLike[str] | Result | Iterable[str | os.PathLike[str] | Result],
) -> pd.DataFrame:
    """Finished runs as a table, one row per run.

    Args:
        runs: run directories, folders of them, result files, or results.

    Returns:
        A pandas frame: recipe, neuron, rank, seed, the fields in which the runs differ, status,
        params, macs, the test metrics, seconds and path. Runs that are not finished are left out.

    Raises:
        InputError: if a path is not there, or none of them is finished.
    """
    pandas: Any = load_extra("pandas", "quadric.train.results", "tables")
    frame: pd.DataFrame = pandas.DataFrame(run_rows(read_runs(runs)[0]))
    return frame
