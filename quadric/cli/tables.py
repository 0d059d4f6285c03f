"""The command `quadric compare`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.writing import check_writable


def compare(
    source: str | None = Argument(
        None,
        metavar="FILE|law:NAME|feynman:NAME|uci:NAME|DATASET|FORMULA",
        help="What to learn from.",
    ),
    target: str | None = Option(None, help="Column to predict, of a file."),
    task: str | None = Option(
        None, help="regression or classification; else found from the target."
    ),
    neurons: str = Option(
        "eigen,shared", help="Neurons to compare with linear, with rank: eigen:3,shared."
    ),
    hidden: str = Option("64,64", help="Hidden layers of the linear network."),
    activation: str = Option("silu", help="silu, relu, tanh, gelu, sigmoid, none, ..."),
    solver: str = Option(
        "auto", help="adam, lm (Levenberg-Marquardt after Adam), or auto: lm where it is cheap."
    ),
    folds: int = Option(5, help="Folds of the cross-validation."),
    seeds: int | None = Option(
        None, help="Starts of each network on each fold: 3, or 1 on large tables.", min=1
    ),
    seed: int = Option(0, help="Of the split and the first start.", min=0),
    split: str = Option(
        "random", help="Test on random rows, on later ones (time) or on new groups (group:COLUMN)."
    ),
    epochs: int | None = Option(None, help="Epochs at most; else enough to converge.", min=1),
    rows: int | None = Option(None, help="First rows of a file, or samples of a law.", min=1),
    delimiter: str | None = Option(None, help="Of a file; else found."),
    drop: str = Option("", help="Columns to leave out: a,b."),
    categories: str = Option("", help="Columns to take as categories: a,b."),
    na_values: str = Option("", help="Cells that stand for a hole: x,-999."),
    data_dir: Path | None = Option(None, help="Where the UCI tables are."),
    run_dir: Path | None = Option(None, help="Where fits are kept; else under runs/compare."),
    baselines: bool = Option(True, help="Fit scikit-learn's models and LightGBM too."),
    opponents: str = Option("", help="More models: xgboost,catboost,tabm,realmlp,gp; or all."),
    save: Path | None = Option(
        None, help="Refit the best network: model.quadric (raw tables), .onnx or .safetensors."
    ),
    html: Path | None = Option(None, help="Write a page of all models."),
    json_file: options.JsonFile = None,
    list_: bool = Option(False, "--list", help="List laws and data sets, and exit."),
) -> None:
    """Say whether a quadratic network is better on a table, and by how much.

    Networks of equal size and other models are cross-validated. Every fit is kept: the same command
    goes on where it was stopped.

    Example: quadric compare houses.csv --target price
    """
    require("tables", "quadric compare")
    from quadric.analysis.page import report
    from quadric.sklearn import compare as compare_table
    from quadric.support.provenance import finite
    from quadric.tables.comparison.saving import check_path
    from quadric.tables.comparison.sources import list_sources, source_facts
    from quadric.tables.comparison.winner import python_lines

    if list_:
        return options.show(list_sources(data_dir), source_facts(), json_file)
    if source is None:
        raise InputError(
            "name a table: quadric compare FILE --target COLUMN, law:NAME, uci:NAME or a data set "
            "(quadric compare --list)"
        )
    if html is not None:
        check_writable("--html", html)
    if save is not None:
        check_path(save, json_file)
        if save.suffix == ".onnx":
            require("onnx", "quadric compare --save model.onnx")
    try:
        with options.progress_bar(None, "comparing") as advance:
            comparison = compare_table(
                source,
                target=target,
                task=task,
                neurons=neurons,
                hidden=options.numbers("hidden", hidden),
                activation=activation,
                solver=solver,
                folds=folds,
                seeds=seeds,
                seed=seed,
                split=split,
                epochs=epochs,
                rows=rows,
                delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter),
                drop=options.words(drop),
                categories=options.words(categories),
                na_values=options.words(na_values),
                data_dir=data_dir,
                run_dir=run_dir,
                baselines=baselines,
                opponents=options.words(opponents),
                save=save,
                progress=advance,
                on_result=lambda line: advance(0, line=line),
            )
    except KeyboardInterrupt:
        print("stopped: the same command goes on with the fits it has", file=sys.stderr)
        raise typer.Exit(130) from None
    if html is not None:
        report([comparison.log.path], html, title=f"{comparison.table.name}: all models")
        comparison.written.append(f"{html}: a page of all models")
    options.show(
        "\n".join([str(comparison), *python_lines(comparison), *comparison.written]),
        finite(comparison.to_dict()),
        json_file,
    )


def predict(
    model: Path = Argument(help="What estimator.save, or quadric compare --save, wrote."),
    source: Path = Argument(metavar="FILE", help="CSV or Parquet, of any size."),
    out: Path = Option(..., "--out", "-o", help="CSV, or Parquet by its name."),
    coverage: float | None = Option(
        None, help="Share of new targets that intervals hold; else 0.9 where there are some."
    ),
    delimiter: str | None = Option(None, help="Of a CSV file; else found."),
    json_file: options.JsonFile = None,
) -> None:
    """Predict for every row of a file, with a saved estimator.

    The output has the columns of the file, the predictions, and intervals or the probabilities of
    classes. Rows are read and written in parts, so that a file may be larger than memory.

    Example: quadric predict model.quadric houses.csv -o predicted.csv
    """
    require("tables", "quadric predict")
    from quadric.sklearn import load
    from quadric.tables.predicting import predict_file

    with options.progress_bar(None, "predicting") as advance:
        rows = predict_file(
            load(model),
            source,
            out,
            coverage=coverage,
            delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter),
            progress=lambda count: advance(count, "rows"),
        )
    options.show(f"{out}: {rows:,} rows", {"file": str(out), "rows": rows}, json_file)
