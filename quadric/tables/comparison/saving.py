"""The best quadratic network of a comparison, refitted on every row and written to a file.

The network takes the columns after the preparation, in their own units. A JSON beside the file says
which columns these are and how to make them: medians for holes, categories, parts of dates.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning

from quadric.data.preparation import learned_target, make_preparation, narrow
from quadric.errors import InputError
from quadric.exporting.deploying import Deployable, write_network
from quadric.saving import save
from quadric.support import provenance
from quadric.support.writing import check_writable
from quadric.tables.comparison.models import Contender
from quadric.tables.comparison.report import Comparison
from quadric.tables.comparison.run import count_outputs, target_values
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.modules import Scaled

SUFFIXES = (".onnx", ".safetensors")


def check_path(path: Path, json_file: str | None = None) -> None:
    """Refuses a file that cannot be written, before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"--save must end in {' or '.join(SUFFIXES)}, got {str(path)!r}")
    beside = _beside(path)
    for file in (path, beside):
        check_writable("--save", file)
    if json_file not in (None, "-") and Path(str(json_file)).resolve() == beside.resolve():
        raise InputError(
            f"--save {path} also writes {beside} with the columns of the network: name another "
            "file with --json"
        )


def _beside(path: Path) -> Path:
    """The description of the network in `path`."""
    return path.with_suffix(".json")


def save_best(comparison: Comparison, path: Path) -> list[str]:
    """Refits and writes; returns lines that say what was written."""
    best = comparison.best_quadratic()
    if best is None:
        raise InputError("no quadratic network was trained without diverging: nothing to save")
    contender = next(c for c in comparison.plan.contenders if c.label == best.model)
    model, preparation, X = _refit(comparison, contender)
    module = model.to_torch()
    assert isinstance(module, Scaled)
    columns = [str(name) for name in preparation.get_feature_names_out()]
    if path.suffix == ".onnx":
        # Rows of the table as examples: the file is compared with the network on them.
        names = (["input"], ["output"])
        rows = (torch.tensor(X[:8]),)
        write_network(Deployable(best.model, model.neuron, module, None, rows, names=names), path)
    else:
        save(module, path)
    description = {
        "dataset": comparison.table.name,
        "task": comparison.table.task,
        "target": str(comparison.table.target.name),
        "classes": [str(label) for label in getattr(model, "classes_", [])] or None,
        "inputs": columns,
        "preparation": _describe(preparation),
        "network": {
            "inputs": len(columns),
            "outputs": model.n_outputs_,
            "hidden": list(model.widths()),
            "neuron": model.neuron,
            "rank": contender.resolved_rank,
            "activation": model.activation,
            "dtype": str(X.dtype),
        },
        "params": model.n_parameters_,
        "epochs": model.n_iter_,
        "test_error": best.error,
        "versions": provenance.versions("scikit-learn"),
    }
    beside = _beside(path)
    provenance.write_json(beside, description)
    plain = columns == [str(column) for column in comparison.table.inputs.columns]
    takes = "the columns of the table" if plain else f"{len(columns)} prepared columns"
    return [
        f"{path}: the {best.model} network, refitted on all {len(comparison.table.target):,} rows",
        f"{beside}: it takes {takes}, as listed there",
    ]


def _refit(
    comparison: Comparison, contender: Contender
) -> tuple[QuadraticNetwork, ColumnTransformer, np.ndarray]:
    table, plan = comparison.table, comparison.plan
    preparation = make_preparation(table)
    prepared = np.asarray(preparation.fit_transform(table.inputs), dtype=np.float64)
    X = narrow(prepared, learned_target(table))
    model = plan.estimator(contender, X.shape[1], count_outputs(table), len(X), plan.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, target_values(table))
    return model, preparation, X


def _describe(preparation: ColumnTransformer) -> list[dict[str, Any]]:
    """What each input is made of, in order."""
    made: list[dict[str, Any]] = []
    for part, transformer, columns in preparation.transformers_:
        if part == "holes":
            made += [{"column": column, "kind": "1 if missing, else 0"} for column in columns]
        elif part == "categories":
            made += _describe_categories(transformer.named_steps["encode"], columns)
        else:
            kinds = ["number"]
            if part == "dates":
                kinds = [f"date: {what}" for what in transformer.named_steps["numbers"].PARTS]
                transformer = transformer.named_steps["fill"]
            inputs = [(column, kind) for column in columns for kind in kinds]
            fill = getattr(transformer, "statistics_", [None] * len(inputs))
            made += [
                {"column": column, "kind": kind, "if_missing": None if m is None else float(m)}
                for (column, kind), m in zip(inputs, fill, strict=True)
            ]
    return made


def _describe_categories(encoder: Any, columns: list[str]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for column, every, some in zip(
        columns, encoder.categories_, encoder.infrequent_categories_, strict=True
    ):
        rare = [] if some is None else [str(label) for label in some]
        labels = [str(label) for label in every if str(label) not in rare]
        made += [{"column": column, "kind": f"1 if {label!r}, else 0"} for label in labels]
        if rare:
            made.append({"column": column, "kind": "1 if rare or new, else 0", "rare": rare})
    return made
