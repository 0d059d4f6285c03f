"""Does a quadratic network help on this table? `quadric.sklearn.compare` says so."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from quadric.data.preparation import TablePreparation
from quadric.data.user_table import UserTable
from quadric.errors import InputError
from quadric.models.activations import ACTIVATIONS
from quadric.support.checks import check_size
from quadric.tables.comparison.baselines import absent_others, choose_others
from quadric.tables.comparison.fit_log import FitLog
from quadric.tables.comparison.fits import Progress, count_outputs, run_fits, target_values
from quadric.tables.comparison.plan import LARGE_ROWS, SEEDS, ComparisonPlan, parse_neurons
from quadric.tables.comparison.report import TableComparison
from quadric.tables.comparison.saving import check_path, save_best
from quadric.tables.comparison.sources import check_table, load_source
from quadric.tables.comparison.splitting import parse_split
from quadric.tables.inputs import as_pandas
from quadric.tables.second_order import SOLVERS

Place = str | os.PathLike[str] | None


def compare(
    source: str | os.PathLike[str] | pd.DataFrame,
    *,
    target: str | None = None,
    task: str | None = None,
    neurons: str = "eigen,shared",
    hidden: Sequence[int] = (64, 64),
    activation: str = "silu",
    solver: str = "auto",
    folds: int = 5,
    seeds: int | None = None,
    seed: int = 0,
    split: str = "random",
    epochs: int | None = None,
    rows: int | None = None,
    delimiter: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    na_values: Sequence[str] = (),
    data_dir: Place = None,
    run_dir: Place = None,
    baselines: bool = True,
    opponents: Sequence[str] = (),
    save: Place = None,
    progress: Progress | None = None,
    on_result: Callable[[str], object] | None = None,
) -> TableComparison:
    """Says whether a quadratic network is better on a table, and by how much.

    Every fit of the cross-validation is kept in a directory, so that the same call goes on where it
    was stopped. It also gets compare.json, compare.png and a result.json for each network.

    Args:
        source: a DataFrame, a CSV or Parquet file, `law:NAME`, `uci:NAME`, a data set of
            scikit-learn, `feynman:I.12.11`, `special:ellipkinc`, or a formula with ranges, such as
            "sin(x*y)/z; x=0:3; y=0:1; z=1:2".
        target: the column to predict; only a frame or a file needs it.
        task: "regression" or "classification"; None finds it from the target.
        neurons: the neurons to compare with linear, with an optional rank: "eigen:3,shared".
        hidden: widths of the linear network; the others have no more parameters.
        activation: the function between the layers: silu, relu, tanh, gelu, sigmoid, none and
            others of torch, by its names.
        solver: "adam"; "lm" goes on with Levenberg-Marquardt where Adam stops (regression); "auto"
            does so on small tables with small networks, as long as something is gained. All
            networks have the same one.
        folds: the number of folds of the cross-validation.
        seeds: starts of each network on each fold; None for 3, and 1 on more than 15,000 rows.
        seed: the seed of the split and of the first start.
        split: "random"; "time" or "time:COLUMN" tests on later rows, "group:COLUMN" on other
            groups than those that were learned from.
        epochs: the most epochs of a fit; None for enough to converge.
        rows: the first rows of a frame or file, or the number of samples of a law.
        delimiter: the sign between the columns of a file; None finds it.
        drop: columns of a frame or file to leave out.
        categories: columns of a frame or file to take as categories.
        na_values: cells that stand for a hole, besides the usual words.
        data_dir: the folder of the UCI tables.
        run_dir: the folder that keeps the fits; None for a directory under runs/compare.
        baselines: whether to fit scikit-learn's models too, and LightGBM where it is installed.
        opponents: further models: lightgbm, xgboost, catboost, tabm, realmlp, gp (a Gaussian
            process on at most 1,000 rows); all: those that are installed.
        save: a file for the best network, refitted on all rows: .quadric takes the raw table, .onnx
            and .safetensors the prepared columns.
        progress: called with the number of new fits, what is being fitted, and the number of all.
        on_result: called with a line about each model as soon as it is fitted on all folds.

    Returns:
        The comparison: print it, or take `verdict()`, `differences`, the frames `summary`, `errors`
        and `fits`, and `to_dict()`.

    Raises:
        InputError: if an argument, the table or the directory does not fit.
        MissingExtraError: if an opponent that is named is not installed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     answer = compare("diabetes", hidden=[4], folds=2, seeds=1, epochs=2,
        ...                      baselines=False, run_dir=f"{folder}/run")
        >>> list(answer.summary.index)
        ['linear', 'eigen', 'shared']
    """
    networks, widths = parse_neurons(neurons), tuple(hidden)
    sizes = {"seeds": seeds, "epochs": epochs, "rows": rows}
    _check(widths, activation, solver, sizes, save)
    others, way = choose_others(opponents, usual=baselines), parse_split(split)
    source = as_pandas(source)
    table = load_source(
        source if isinstance(source, pd.DataFrame) else os.fspath(source),
        target=target,
        task=task,
        data_dir=data_dir,
        rows=rows,
        delimiter=delimiter,
        drop=drop,
        categories=categories,
        na_values=na_values,
        split=way,
        seed=seed,
    )
    table = check_table(table, folds)
    plan = _plan(
        table,
        solver,
        seeds,
        networks=networks,
        hidden=widths,
        activation=activation,
        max_iter=epochs,
        folds=folds,
        seed=seed,
        with_baselines=baselines,
        others=others,
        absent=tuple(absent_others(opponents)),
        split=way,
    )

    def on_model(log: FitLog, label: str) -> None:
        if on_result is not None:
            on_result(TableComparison(table, plan, log).line(label))

    log = run_fits(table, plan, directory=run_dir, progress=progress, on_model=on_model)
    comparison = TableComparison(table, plan, log)
    _write(comparison)
    if save is not None:
        comparison.written += save_best(comparison, Path(save))
    return comparison


def _plan(table: UserTable, solver: str, seeds: int | None, **chosen: Any) -> ComparisonPlan:
    """What was chosen, and what the size of the table decides."""
    large = len(table.target) > LARGE_ROWS
    starts = (1 if large else SEEDS) if seeds is None else seeds
    plan = ComparisonPlan(task=table.task, seeds=starts, large=large, **chosen)
    columns = len(TablePreparation().fit(table.inputs, target_values(table)).names_)
    return plan.with_solver(solver, len(table.target), columns, count_outputs(table))


def _check(
    hidden: tuple[int, ...], activation: str, solver: str, sizes: dict[str, Any], save: Place
) -> None:
    """Refuses what does not depend on the table, before it is read."""
    for name, size in sizes.items():
        if size is not None:
            check_size(name, size)
    if not hidden or min(hidden) < 1:
        raise InputError(f"hidden must be positive whole numbers, as in (64, 64), got {hidden!r}")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    if save is not None:
        check_path(Path(save))


def _write(comparison: TableComparison) -> None:
    """Writes the numbers and the picture, and notes what was written."""
    comparison.write()
    if importlib.util.find_spec("matplotlib") is not None:
        from quadric.tables.comparison.picture import draw

        picture = comparison.log.path / "compare.png"
        draw(comparison, picture)
        comparison.written.append(f"{picture}: the picture")
    else:
        comparison.written.append("no picture: pip install 'quadric[plots]'")
