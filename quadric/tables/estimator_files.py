"""One file that takes the raw frame: a fitted estimator with its reader, scaling and network.

It is a safetensors file with a checksum. Its header holds all that is no tensor, as JSON; nothing
in it is ever run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadric.errors import InputError, described
from quadric.support.tensor_files import read_tensors, write_tensors
from quadric.tables.linear import linear_network
from quadric.tables.modules import Scaled, TableRegressor, check_sizes, empty
from quadric.tables.target_transforms import TransformedRegressor, empty_transform

KEY = "quadric_estimator"
FORMAT = 1

NOTED = (
    "loss_curve_", "best_loss_", "loss_", "n_iter_", "validation_scores_",
    "best_validation_score_", "solver_", "solver_reason_", "n_layers_", "n_parameters_",
    "fallback_", "network_share_", "n_outputs_", "n_features_in_", "target_name_",
)  # fmt: skip
"""What a fit says of itself, as plain data."""

_GAPS = "held_out_gaps"


def save_estimator(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes a fitted estimator."""
    from quadric import __version__

    module, preparation = model.module_, model._preparation
    reader = model._target_reader
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    parameters = dict(model.get_params())
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None  # a generator is no plain data
    transform = getattr(module, "transform", None)
    header = {
        "format": FORMAT,
        "version": __version__,
        "kind": type(model).__name__,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "names": None if names is None else [str(name) for name in names],
        "preparation": None if preparation is None else preparation.to_dict(),
        "target_reader": None if reader is None else asdict(reader),
        "columns": len(module.input_mean),
        "dtype": str(module.input_mean.dtype).removeprefix("torch."),
        "pressed": list(module.pressed),
        "flat": getattr(module, "flat", True),
        "ordered": getattr(module, "ordered", False),
        "transform": None if transform is None else type(transform).__name__,
        "classes": None if classes is None else [_plain(label) for label in classes.tolist()],
        "classes_dtype": None if classes is None else classes.dtype.str,
        "noted": {name: _plain(getattr(model, name, None)) for name in NOTED},
    }
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in module.state_dict().items()
    }
    if model._gaps is not None:
        tensors[_GAPS] = torch.tensor(model._gaps)
    write_tensors(path, tensors, {KEY: json.dumps(header)})


def _plain(value: Any) -> Any:
    """A value as JSON has it; a mapping whose keys may be of any type as pairs."""
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(key), _plain(entry)] for key, entry in value.items()]}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"a saved estimator holds plain values alone, got a {type(value).__name__}: use numbers, "
        "text, lists and mappings as parameters and labels"
    )


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {_value(key): _value(entry) for key, entry in plain["pairs"]}
    return tuple(_value(entry) for entry in plain) if isinstance(plain, list) else plain


def read_estimator(path: str | os.PathLike[str], kinds: Mapping[str, Any]) -> Any:
    """The estimator in a file; the kinds are the classes by name."""
    tensors, metadata = read_tensors(os.fspath(path))
    if KEY not in metadata:
        raise InputError(
            f"{path} must be a saved estimator, got a file of tensors alone: write it with "
            "estimator.save(path)"
        )
    what = f"{path} does not describe an estimator"
    with described(what):
        header = json.loads(metadata[KEY])
        written, version = int(header["format"]), str(header["version"])
    if written > FORMAT:
        raise InputError(
            f"{path} has format {written} of a later Quadric ({version}), this one reads {FORMAT}: "
            "upgrade Quadric"
        )
    with described(what):
        return _rebuilt(header, tensors, kinds[header["kind"]])


def _rebuilt(header: Mapping[str, Any], tensors: dict[str, Tensor], kind: Any) -> Any:
    wrong = set(header["parameters"]) ^ set(kind().get_params())
    if wrong:
        raise InputError(f"its parameters lack, or have beside, {sorted(wrong)}")
    model = kind(**{name: _value(value) for name, value in header["parameters"].items()})
    model._check_parameters()
    for name in NOTED:
        setattr(model, name, header["noted"][name])
    if header["names"] is not None:
        model.feature_names_in_ = np.asarray(header["names"], dtype=object)
    if header["classes"] is not None:
        labels = [_value(label) for label in header["classes"]]
        model.classes_ = np.array(labels, dtype=np.dtype(header["classes_dtype"]))
    else:
        model._flat = bool(header["flat"])
    if header["preparation"] is not None:
        from quadric.data.preparation import TablePreparation, column_from_dict

        model._preparation = TablePreparation.from_dict(header["preparation"])
        if len(model._preparation.names_) != header["columns"]:
            raise InputError("its columns are not those of its network")
        if header["target_reader"] is not None:
            model._target_reader = column_from_dict(header["target_reader"])
    gaps = tensors.pop(_GAPS, None)
    model._gaps = None if gaps is None else gaps.numpy()
    model.module_ = _module(model, header, tensors)
    model._optimizer = model._error_bars = None
    model.device = "cpu"
    return model


def _module(model: Any, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Scaled:
    dtype = getattr(torch, header["dtype"])
    columns, outputs = header["columns"], model.n_outputs_
    sizes = {"in_features": columns, "out_features": outputs, "members": model._members()}
    check_sizes(sizes | {"hidden": model._hidden()}, header["classes"], tensors)
    networks = [model._build(columns, seed=0).to(dtype) for _ in range(model._members())]
    regressor: Any = TableRegressor
    if header["transform"] is not None:
        shapes = {
            name.removeprefix("transform."): tensor
            for name, tensor in tensors.items()
            if name.startswith("transform.")
        }
        transform = empty_transform(header["transform"], shapes)
        regressor = partial(TransformedRegressor, transform=transform)
    flat = bool(header["flat"])
    classes = header["classes"]
    module = empty(networks, columns, outputs, classes, dtype, flat=flat, regressor=regressor)
    if "share" in tensors:
        module.add_linear(linear_network(columns, outputs).to(dtype), 1.0)
    module.load_state_dict(dict(tensors))
    if isinstance(module, TableRegressor):
        module.ordered = bool(header["ordered"])
    module.pressed = tuple(header["pressed"])
    return module.eval()
