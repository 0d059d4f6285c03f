"""The best network of a comparison, refitted on every row and written to a file.

A `.quadric` file takes the raw table (`quadric.sklearn.load`). The other two hold what `to_torch()`
of the estimator gives: it takes the columns of the table where all are numbers, else the prepared
ones, in their own units. A JSON beside it says which columns these are and how to make them:
medians for holes, categories, parts of dates.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning

from quadric.data.preparation import TablePreparation
from quadric.data.user_table import UserTable
from quadric.errors import DroppedColumnWarning, InputError
from quadric.exporting.deploying import Deployable, write_network
from quadric.runs.reading import read_json
from quadric.saving import save
from quadric.support import provenance
from quadric.support.writing import check_writable
from quadric.tables.comparison.fits import count_outputs, target_values
from quadric.tables.comparison.report import TableComparison
from quadric.tables.comparison.winner import python_line, winner
from quadric.tables.estimators import QuadraticNetwork

SUFFIXES = (".quadric", ".onnx", ".safetensors")


def check_path(path: Path, json_file: str | None = None) -> None:
    """Refuses a file that cannot be written, before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"--save must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}"
        )
    beside = _beside(path)
    check_writable("--save", path)
    if path.suffix == ".quadric":
        return
    check_writable("--save", beside)
    if beside.exists() and not _is_description(beside):
        raise InputError(
            f"--save {path} also writes {beside} with the columns of the network, and there is a "
            "file of yours: name another file"
        )
    if json_file not in (None, "-") and Path(str(json_file)).resolve() == beside.resolve():
        raise InputError(
            f"--save {path} also writes {beside} with the columns of the network: name another "
            "file with --json"
        )


def _beside(path: Path) -> Path:
    """The description of the network in `path`."""
    return path.with_suffix(".json")


def _is_description(file: Path) -> bool:
    """Whether a file is what `save_best` writes beside a network."""
    try:
        return {"takes", "inputs", "network"} <= read_json(file).keys()
    except InputError:
        return False


def save_best(comparison: TableComparison, path: Path) -> list[str]:
    """Refits and writes; returns lines that say what was written."""
    best = comparison.best_network()
    if best is None:
        raise InputError("no network was trained without diverging: nothing to save")
    table, plan = comparison.table, comparison.plan
    preparation = TablePreparation().fit(table.inputs, target_values(table))
    model = plan.estimator(
        best, len(preparation.names_), count_outputs(table), len(table.inputs), plan.seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DroppedColumnWarning)
        model.fit(table.inputs, target_values(table))
    lines = [f"{path}: the {best.label} network, refitted on all {len(table.target):,} rows"]
    if model.fallback_:
        lines.append(f"{model.fallback_} took the network's place: {model.solver_reason_}")
    first = winner(comparison)
    if first != best.label and first is not None:
        line = python_line(comparison, first)
        lines.append(f"{first} has a lower error, but is no network: refit it by {line}")
    if path.suffix == ".quadric":
        _take_raw_tables(model, table)
        model.save(path)
        return [*lines, f"quadric predict {path} FILE -o OUT predicts for files like this one"]
    module = model.to_torch()
    # The columns of the table where all are numbers, else prepared ones: see `to_torch`.
    plain = preparation.exported() is not None
    columns = preparation.inputs_ if plain else preparation.names_
    if path.suffix == ".onnx":
        # Rows of the table as examples: the file is compared with the network on them.
        head = table.inputs.head(8)
        rows = head.to_numpy(preparation.dtype_) if plain else model.prepare(head)
        names = (["input"], ["output"])
        write_network(
            Deployable(best.label, model.neuron, module, None, (torch.tensor(rows),), names=names),
            path,
        )
    else:
        save(module, path)
    description = {
        "dataset": table.name,
        "task": table.task,
        "target": str(table.target.name),
        "classes": [str(label) for label in getattr(model, "classes_", [])] or None,
        "takes": "the columns of the table, NaN for a hole" if plain else "prepared columns",
        "inputs": columns,
        "preparation": None if plain else preparation.describe(),
        "network": {
            "in_features": len(preparation.names_),
            "out_features": model.n_outputs_,
            "hidden": list(model._hidden()),
            "neuron": "linear" if model.fallback_ else model.neuron,
            "rank": None if model.fallback_ else best.resolved_rank,
            "activation": model.activation,
            "members": len(model.module_.networks),
            "dtype": preparation.dtype_.name,
        },
        "params": model.n_parameters_,
        "epochs": model.n_iter_,
        "test_error": comparison.summary["error"][best.label],
        "versions": provenance.versions("scikit-learn"),
    }
    beside = _beside(path)
    provenance.write_json(beside, description)
    takes = "the columns of the table" if plain else f"{len(columns)} prepared columns"
    return [*lines, f"{beside}: it takes {takes}, as listed there"]


def _take_raw_tables(model: QuadraticNetwork, table: UserTable) -> None:
    """Lets an estimator that was fitted to columns of their final type read them as they were."""
    assert model._preparation is not None
    for name, reader in table.readers.items():
        if name in model._preparation.encodings_:
            model._preparation.encodings_[name].column = reader
    model.target_name_ = str(table.target.name)
